"""Carry out runs: one in this process, or many in warm worker processes or on Ray.

A worker imports torch once and carries out one run after another, so that a CUDA context, compiled kernels and caches
are paid for once. A worker that dies takes its run with it and is replaced.
"""

import faulthandler
import gc
import io
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from effdeg_lab.recipe import Recipe, find_recipe
from effdeg_lab.runs import BusyError, FinishedError, Job, RunFolder, StoppedError

TICK = 1.0
"""Seconds between two looks at what runs are doing; the end of a run is noticed at once."""
GRACE = 20.0
"""Seconds that a run has to save when it is asked to stop; Slurm kills after 30."""

Ending = Literal["finished", "finished elsewhere", "busy", "stopped", "failed"]


@dataclass(frozen=True, eq=False)
class Order:
    """A run to be carried out, in words that travel to other processes: settings as JSON has them, names, paths."""

    recipe: str
    method: str
    settings: dict[str, Any]
    runs: str
    data: str | None
    device: str

    def open(self, asked_to_stop: Callable[[], bool] = lambda: False) -> tuple[Recipe, Job]:
        """Find the recipe and make the job."""
        recipe, data = find_recipe(self.recipe), None if self.data is None else Path(self.data)
        base = recipe.resolve(recipe.method(self.method))
        job = Job(
            base.change(self.settings),
            recipe.name,
            self.method,
            base,
            RunFolder(self.runs),
            torch.device(self.device),
            data,
            asked_to_stop=asked_to_stop,
        )
        return recipe, job


class Ended(NamedTuple):
    """How a run ended, and the last line of the error if it failed."""

    order: Order
    ending: Ending
    error: str = ""


Progress = Iterator[tuple[list[Order], list[Ended]]]
"""At least every second: what is under way, and what has ended since."""


def execute(recipe: Recipe, job: Job) -> None:
    """Carry out a run in this process, or what is left of it.

    An error is recorded in the run's file and raised. SIGTERM asks the run to save and stop. Under ``torchrun`` every
    process calls this, and the first one writes.

    Raises:
        StoppedError: If it was asked to stop.
        BusyError: If another process works on it.
        FinishedError: If it is finished.
    """
    on_gpu, first, asked = job.device.type == "cuda", is_first_process(), job.asked_to_stop
    with (
        catch_signals(signal.SIGTERM) as received,
        torch.random.fork_rng(devices=[job.device] if on_gpu else []),
        torch.cuda.device(job.device) if on_gpu else nullcontext(),
        closing(job),
    ):
        job.asked_to_stop = lambda: bool(received) or asked()
        torch.manual_seed(job.settings.seed)
        try:
            if first:
                job.claim()  # before anything is loaded for a run that another process works on
            recipe.run(job.settings, job)
            if first and not ((run := job.read()) and run.finished):
                raise ValueError(f"{recipe.name} ended without a summary: its run must call job.finish(summary).")
        except StoppedError:
            with suppress(OSError):
                job.record_stop()
            raise
        except (BusyError, FinishedError):
            raise
        except Exception:
            with suppress(OSError):  # the error itself matters more than its record
                if first:
                    job.fail(traceback.format_exc())
            raise


def is_first_process() -> bool:
    """Return whether this is the first process of ``torchrun``, or the only one."""
    return not (
        torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank()
    )


@contextmanager
def catch_signals(*numbers: int) -> Iterator[list[int]]:
    """Collect signals while the block runs, in the main thread; a second one of a kind has its usual effect."""
    received: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in numbers if in_main_thread}

    def receive(number: int, _: object) -> None:
        received.append(number)
        signal.signal(number, before[number])

    try:
        for number in before:
            signal.signal(number, receive)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(order: Order, asked_to_stop: Callable[[], bool] = lambda: False) -> tuple[Ending, str]:
    """Carry out a run in a process that is not its own, with all that it prints in its log."""
    try:
        recipe, job = order.open(asked_to_stop)
        job.claim()  # the log of a run that another process works on is left alone
        with closing(job), _print_to(job.folder / "log.txt"):
            execute(recipe, job)
    except FinishedError:
        return "finished elsewhere", ""
    except BusyError:
        return "busy", ""
    except StoppedError:
        return "stopped", ""
    except Exception as error:
        return "failed", _get_last_line(error)
    return "finished", ""


@contextmanager
def _print_to(log: Path) -> Iterator[None]:
    """Append what this process prints to a file, libraries in C included; an empty file is not kept."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    with log.open("ab") as stream:
        kept = {number: os.dup(number) for number in (1, 2)}
        for number in kept:
            os.dup2(stream.fileno(), number)
        try:
            yield
        except Exception as error:
            if not isinstance(error, StoppedError):
                traceback.print_exc()
            raise
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, before in kept.items():
                os.dup2(before, number)
                os.close(before)
            if os.fstat(stream.fileno()).st_size == 0:
                with suppress(OSError):
                    log.unlink()
                    log.parent.rmdir()


def _serve(connection: Connection) -> None:
    """Carry out the runs that arrive, until None arrives, the sweep is gone, or SIGTERM."""
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # or a log would lack what was printed before a kill
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the keyboard is the sweep's to handle
    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    stop = threading.Event()

    def end(*_: object) -> None:
        stop.set()
        orders.put(None)

    def listen() -> None:
        with suppress(EOFError, OSError):
            while (order := connection.recv()) is not None:
                orders.put(order)
        end()
        time.sleep(GRACE)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=listen, daemon=True).start()
    while not stop.is_set() and (order := orders.get()) is not None:
        ended = _work(order, stop.is_set)
        with suppress(OSError):  # the sweep may be gone
            connection.send(ended)
        gc.collect()
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # or the networks of many runs would exceed its limit of recompilations
        if order.device.startswith("cuda"):
            if ended[0] == "failed":
                return  # an error of CUDA spoils all that follows in the same process
            torch.cuda.empty_cache()


class WorkerPool:
    """Worker processes on this machine, which are kept until the pool is closed."""

    def __init__(self, processes: int) -> None:
        self._workers = [_Worker(slot, processes) for slot in range(processes)]

    def carry_out(self, orders: Sequence[Order]) -> Progress:
        """Carry out runs, several at once."""
        waiting = list(orders)
        while waiting or self._busy:
            for worker in self._workers:
                if waiting and worker.order is None:
                    worker.send(waiting.pop(0))
            ready = wait([worker.connection for worker in self._busy], TICK)
            ended = [worker.receive() for worker in self._busy if worker.connection in ready or worker.dead]
            yield [worker.order for worker in self._busy if worker.order], ended

    def close(self) -> None:
        """Make all runs save and stop, and end the workers."""
        started = [worker for worker in self._workers if worker.process is not None]
        for worker in started:
            with suppress(OSError):
                worker.connection.send(None)
        for worker in started:
            worker.end()

    @property
    def _busy(self) -> "list[_Worker]":
        return [worker for worker in self._workers if worker.order is not None]


class _Worker:
    """A worker process as the sweep sees it, replaced when it has died."""

    def __init__(self, slot: int, processes: int) -> None:
        self._slot, self._processes = slot, processes
        self.process: Any = None
        self.connection: Connection
        self.order: Order | None = None

    @property
    def dead(self) -> bool:
        return self.process is None or not self.process.is_alive()

    def send(self, order: Order) -> None:
        self.order = order
        if order.device == "cuda" and torch.cuda.device_count() > 1:
            order = replace(order, device=f"cuda:{self._slot % torch.cuda.device_count()}")
        if self.dead:
            self._start(on_cpu=order.device == "cpu")
        with suppress(OSError):  # if it has just died, that is noticed when its answer is awaited
            self.connection.send(order)

    def receive(self) -> Ended:
        """Return how the run ended, after the connection became readable or the process died."""
        assert self.order is not None
        order, self.order = self.order, None
        try:
            if not self.connection.poll():  # what the run has started may keep the connection open
                raise EOFError
            ended = Ended(order, *self.connection.recv())
        except (EOFError, OSError):
            self.end()
            return _bury(order, self.process.exitcode)
        if ended.ending == "failed" and order.device.startswith("cuda"):
            self.end()
        return ended

    def end(self) -> None:
        """Wait for the process to end, which it is made to after a while."""
        self.process.join(GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()

    def _start(self, *, on_cpu: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        divide = on_cpu and "OMP_NUM_THREADS" not in os.environ
        if divide:  # or each would take all cores, and they would mostly wait for each other
            os.environ["OMP_NUM_THREADS"] = str(max(1, _count_cores() // self._processes))
        try:
            self.process.start()
        finally:
            theirs.close()  # or the end of the worker would not be noticed
            if divide:
                del os.environ["OMP_NUM_THREADS"]


class RayPool:
    """Tasks of Ray, which may span many machines: all must see the runs and the data by the same path."""

    def __init__(self, address: str, per_gpu: int) -> None:
        import ray

        self._ray, self._per_gpu = ray, per_gpu
        self._connects = not ray.is_initialized()
        if self._connects:
            ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
        self._pending: dict[Any, Order] = {}

    def carry_out(self, orders: Sequence[Order]) -> Progress:
        """Carry out runs, each with a core and, on GPUs, its share of one."""
        # A process for each run, so that nothing that a run does to its process touches another.
        task = self._ray.remote(max_calls=1, max_retries=0)(_work)
        for order in orders:
            gpus = 1 / self._per_gpu if order.device.startswith("cuda") else 0
            self._pending[task.options(num_cpus=1, num_gpus=gpus).remote(order)] = order
        while self._pending:
            ready, _ = self._ray.wait(list(self._pending), timeout=TICK)
            ended = [self._receive(each, self._pending.pop(each)) for each in ready]
            yield list(self._pending.values()), ended

    def close(self) -> None:
        """Cancel what is under way; it continues from its last checkpoint another time."""
        for task in self._pending:
            self._ray.cancel(task)
        if self._connects:
            self._ray.shutdown()

    def _receive(self, task: Any, order: Order) -> Ended:
        try:
            return Ended(order, *self._ray.get(task))
        except Exception as error:  # errors of the run come back as values: its process died, or cannot import it
            return _bury(order, _get_last_line(error))


def _bury(order: Order, how: str | int) -> Ended:
    """Record how a run's process died, in words or by its exit code, which the process could not."""
    if how in {0, -signal.SIGTERM}:
        return Ended(order, "stopped")
    if isinstance(how, int):
        name = f"killed by {signal.Signals(-how).name}" if how < 0 else f"its process ended with exit code {how}"
        how = f"{name}, as the system does when memory runs out" if how == -signal.SIGKILL else name
    _, job = order.open()
    if (known := job.read()) and known.finished:
        return Ended(order, "finished")
    with suppress(OSError):
        job.fail(how)
    return Ended(order, "failed", how)


def _count_cores() -> int:
    """Count the cores that this process may use, which under Slurm are not all of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _get_last_line(error: Exception) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
