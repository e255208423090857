"""Many runs at once, each in a process of its own; one that fails leaves the others alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TypeAlias

import torch

from effdeg._utils.files import make_folder
from effdeg.lab.assignments import Assignment, Ending
from effdeg.lab.store import Run

# Seconds between two looks at runs that are under way; the end of a run is noticed at once.
TICK = 2.0
# Seconds that a process has to end by itself before it is killed. Nothing is lost: runs go on from their checkpoints.
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
        """Make room for the log, and forget an earlier failure; raise if the folder is not this run's."""
        make_folder(self.run.folder)
        self.run.check_settings()
        (self.run.folder / "failure.txt").unlink(missing_ok=True)

    def ended(self, code: int) -> "Ended":
        """Describe how it ended, by the exit code of its process."""
        if code == Ending.BUSY_ELSEWHERE:
            return Ended(self, None, busy=True)
        if code < 0:
            return Ended(self, self.died(code))
        return Ended(self, self.error(), elsewhere=code == Ending.FINISHED_ELSEWHERE)

    def error(self) -> str | None:
        """Return in one line why it ended unfinished; None if it is finished."""
        if self.run.finished:
            return None
        record = self.run.record()
        if record is not None and record.failure is not None:
            text = record.failure
        else:
            text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return next((line for line in reversed(text.splitlines()) if line.strip()), "it ended before it was finished")

    def died(self, how: str | int) -> str | None:
        """Keep with the run how its process died, which that could not; None if the run was finished all the same.

        Args:
            how: In words, or the signal that killed it as a negative exit code.
        """
        if self.run.finished:
            return None
        if isinstance(how, int):
            killed = f"killed by {signal.Signals(-how).name}"
            how = f"{killed}, as the system does when memory runs out" if -how == signal.SIGKILL else killed
        with suppress(OSError):  # that it is told matters more than that it is kept
            self.run.fail(how)
        return how


@dataclass(frozen=True, eq=False)
class Ended:
    """A run that came to an end.

    Attributes:
        order: The run.
        error: Why it is not finished; None if it is.
        elsewhere: Whether another process finished it.
        busy: Whether another process works on it, so that nothing was done here.
    """

    order: Order
    error: str | None
    elsewhere: bool = False
    busy: bool = False


Progress: TypeAlias = tuple[list[Order], list[Ended]]
"""What is under way, and what has ended since the last look."""


def on_this_machine(orders: Sequence[Order], processes: int) -> Generator[Progress, None, None]:
    """Carry out runs, several at once; when the iterator is closed, those that are under way are ended.

    Args:
        orders: The runs.
        processes: How many at once. They share the cores, and the GPUs where none of these was named.

    Yields:
        What is under way, and what has ended.
    """
    waiting = list(orders)
    workers = [_Worker(slot, processes) for slot in range(min(processes, len(waiting)))]
    running: dict[Future[int], tuple[Order, _Worker]] = {}
    with ThreadPoolExecutor(max(1, len(workers))) as threads:
        try:
            while waiting or running:
                ended = []
                busy = [worker for _, worker in running.values()]
                for worker in workers:
                    if waiting and worker not in busy:
                        order = waiting.pop(0)
                        try:
                            worker.send(order)
                        except OSError as error:  # its folder cannot be used, which is no matter of the others
                            ended.append(Ended(order, str(error)))
                        else:
                            running[threads.submit(worker.wait)] = order, worker
                done, _ = wait(running, timeout=0 if ended else TICK, return_when=FIRST_COMPLETED)
                for each in done:
                    order, _ = running.pop(each)
                    ended.append(order.ended(each.result()))
                yield [order for order, _ in running.values()], ended
        finally:
            for worker in workers:
                worker.close()
            for worker in workers:
                worker.end()


class _Worker:
    """A process that carries out runs one after the other (:mod:`effdeg.lab.workers`); one that died is replaced."""

    def __init__(self, slot: int, processes: int) -> None:
        self._slot, self._processes = slot, processes
        self._process: subprocess.Popen[bytes] | None = None

    def send(self, order: Order) -> None:
        """Begin a run."""
        assignment = order.assignment
        if assignment.device == "cuda" and torch.cuda.device_count() > 1:
            assignment = replace(assignment, device=f"cuda:{self._slot % torch.cuda.device_count()}")
        order.prepare()
        order.log.open("ab").close()
        if self._process is None or self._process.poll() is not None:
            self._process = self._start(on_cpu=assignment.device == "cpu")
        line = json.dumps({"assignment": asdict(assignment), "log": str(order.log.absolute())})
        _pipes(self._process)[0].write(line.encode() + b"\n")

    def wait(self) -> int:
        """Wait for the run to end, and return its exit code."""
        assert self._process is not None
        answer = _pipes(self._process)[1].readline()
        if answer:
            return int(answer)
        self.close()  # which ends the run, if it has outlived the worker
        return self._process.wait()

    def close(self) -> None:
        """Ask the process, and the run under way, to end."""
        if self._process is not None:
            _pipes(self._process)[0].close()

    def end(self) -> None:
        """Wait for the process to end, which it is made to after a while."""
        if self._process is None:
            return
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
        _pipes(self._process)[1].close()

    def _start(self, *, on_cpu: bool) -> "subprocess.Popen[bytes]":
        environment = dict(os.environ)
        if on_cpu:
            # Each would otherwise take all cores, and they would mostly wait for each other.
            environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self._processes)))
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "effdeg.lab.workers"],
            bufsize=0,
            stdin=subprocess.PIPE,  # which is closed when this process ends, however it does
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # an interrupt from the keyboard is this process's to handle
        )


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
