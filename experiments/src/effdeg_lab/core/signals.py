"""Signals that ask a run or sweep to stop, and the end of processes whose parent has died."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def list_stop_signals() -> list[int]:
    """Return SIGTERM, and SIGHUP (the terminal was closed) unless it is ignored, as under nohup."""
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none
    return [signal.SIGTERM, *([hang_up] if hang_up and signal.getsignal(hang_up) != signal.SIG_IGN else [])]


@contextmanager
def catch_signals(*numbers: int) -> Iterator[list[int]]:
    """Collect signals while the block runs; a second Ctrl-C has its usual effect. Works only in the main thread."""
    received: list[int] = []
    before: dict[int, Any] = {}

    def receive(number: int, _: object) -> None:
        received.append(number)
        _drop_closed_terminal()
        if number == signal.SIGINT:
            os.write(2, b"\nsaving and stopping; Ctrl-C again stops at once\n")  # printing may have been interrupted
            signal.signal(number, before[number])

    try:
        if threading.current_thread() is threading.main_thread():
            before |= {number: signal.signal(number, receive) for number in numbers}
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent(grace: float = 0.0) -> None:
    """End this process when its parent has died, after SIGTERM and some seconds to save."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        if grace:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _drop_closed_terminal() -> None:
    """Discard further output if the terminal was closed: an error in printing would keep a run from saving."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
