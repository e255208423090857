"""A process of a sweep: it imports torch once, and carries out each run it is sent in a fork of itself.

``python -m effdeg.lab.workers`` reads one order per line from standard input and answers each with the exit code of the
run's process. A fork starts in milliseconds and shares nothing with the runs before it: neither memory nor random
numbers, and its death takes no other run with it. Nothing imports this file.
"""

import json
import os
import subprocess
import sys
import threading
import warnings

import torch

from effdeg.lab.assignments import Assignment, work
from effdeg.lab.registry import all_recipes

# Elsewhere a process cannot be forked safely once libraries such as torch are loaded.
_FORKS = sys.platform == "linux"


def _serve() -> None:
    all_recipes()  # imports what runs need
    torch.optim.SGD([torch.zeros(())])  # the first optimizer imports half of torch
    for line in sys.stdin:
        print(_fork(line) if _FORKS else _start(line), flush=True)


def _fork(line: str) -> int:
    with warnings.catch_warnings():
        # NumPy's threads, of which Python warns here, are made ready for forks by their own library.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        raise SystemExit(_run(line))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _start(line: str) -> int:
    return subprocess.run([sys.executable, "-u", "-m", "effdeg.lab.workers", line], check=False).returncode


def _run(line: str) -> int:
    """Carry out a run in this process, which is its own."""
    order = json.loads(line)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    return work(Assignment(**order["assignment"]))


def _end_with_sweep() -> None:
    """Wait for the other end of standard input to be closed: a sweep that is killed cannot end its runs itself."""
    os.read(0, 1)  # not sys.stdin, whose lock this thread would hold when Python shuts down
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1:]:
        raise SystemExit(_run(sys.argv[1]))
    _serve()
