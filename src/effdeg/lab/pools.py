"""Many runs at once, each in a process of its own; one that fails leaves the others alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch

from effdeg._files import make_folder
from effdeg.lab.assignments import Assignment
from effdeg.lab.store import Run

# Seconds between two looks at what goes on.
TICK = 0.2
# Seconds that a child has to end by itself before it is killed. Nothing is lost: it goes on from its last checkpoint.
GRACE = 10.0


@dataclass(frozen=True, eq=False)
class Order:
    """A run to be carried out."""

    run: Run
    assignment: Assignment

    @property
    def log(self) -> Path:
        """Where what it prints goes, after what it printed in earlier attempts."""
        return self.run.folder / "log.txt"

    def prepare(self) -> None:
        """Make room for the log, and forget an earlier failure."""
        make_folder(self.run.folder)
        (self.run.folder / "failure.txt").unlink(missing_ok=True)

    def error(self) -> str | None:
        """Say in one line why it ended unfinished; None if it is finished."""
        if self.run.finished:
            return None
        record = self.run.record()
        if record is not None and record.failure is not None:
            text = record.failure
        else:
            text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return next((line for line in reversed(text.splitlines()) if line.strip()), "it ended before it was finished")

    def died(self, how: str) -> str | None:
        """Keep with the run how its process died, which that could not; None if the run was finished all the same."""
        if self.run.finished:
            return None
        with suppress(OSError):  # that it is told matters more than that it is kept
            self.run.fail(how)
        return how


@dataclass(frozen=True, eq=False)
class Ended:
    """A run that came to an end: without an error if it is finished."""

    order: Order
    error: str | None


Progress: TypeAlias = tuple[list[Order], list[Ended]]
"""What is under way, and what has ended since the last look."""


def on_this_machine(orders: Sequence[Order], processes: int) -> Generator[Progress, None, None]:
    """Carry out runs, so many at once; when the iterator is closed, those that are under way are ended.

    Args:
        orders: The runs.
        processes: How many at once. They share the cores, and the GPUs where none of these was named.

    Yields:
        What is under way, and what has ended.
    """
    waiting = list(orders)
    running: dict[int, tuple[Order, subprocess.Popen[bytes]]] = {}
    try:
        while waiting or running:
            ended = []
            for slot in range(processes):
                if waiting and slot not in running:
                    order = waiting.pop(0)
                    try:
                        running[slot] = order, _start(order, slot, processes)
                    except OSError as error:  # its folder cannot be used, which is no matter of the others
                        ended.append(Ended(order, str(error)))
            time.sleep(TICK)
            for slot, (order, child) in list(running.items()):
                if child.poll() is not None:
                    child.communicate()  # closes its standard input
                    del running[slot]
                    ended.append(Ended(order, _error(order, child.returncode)))
            yield [order for order, _ in running.values()], ended
    finally:
        _end([child for _, child in running.values()])


def _start(order: Order, slot: int, processes: int) -> "subprocess.Popen[bytes]":
    assignment, environment = order.assignment, dict(os.environ)
    if assignment.device == "cuda" and torch.cuda.device_count() > 1:
        assignment = replace(assignment, device=f"cuda:{slot % torch.cuda.device_count()}")
    if assignment.device == "cpu":
        # Each would otherwise take all cores, and they would mostly wait for each other.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    order.prepare()
    with order.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "effdeg.lab.workers", assignment.to_json()],
            stdin=subprocess.PIPE,  # never written to: it closes when this process ends, however it does
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _error(order: Order, code: int) -> str | None:
    if code >= 0:
        return order.error()
    killed = f"killed by {signal.Signals(-code).name}"
    return order.died(f"{killed}, as the system does when memory runs out" if -code == signal.SIGKILL else killed)


def _end(children: "Sequence[subprocess.Popen[bytes]]") -> None:
    for child in children:
        child.terminate()
    until = time.monotonic() + GRACE
    for child in children:
        try:
            child.communicate(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
