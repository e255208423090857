"""The process of one run of a sweep: ``python -m effdeg.lab.workers ASSIGNMENT``. Nothing imports this file."""

import os
import sys
import threading

from effdeg.lab.assignments import Assignment, work


def _end_with_sweep() -> None:
    """Wait for the other end of standard input to be closed: a sweep that is killed cannot end its runs itself."""
    os.read(0, 1)  # not sys.stdin, whose lock this thread would hold when Python shuts down
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    raise SystemExit(0 if work(Assignment.from_json(sys.argv[1])) else 1)
