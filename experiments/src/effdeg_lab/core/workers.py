"""Carry out runs: one in this process, or many in worker processes.

A worker imports torch once and carries out one run after another, so that the CUDA context, compiled kernels and caches
are set up only once. A worker that dies is replaced, and its run counts as failed.
"""

import faulthandler
import gc
import io
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from effdeg_lab.core.recipe import Recipe, find_recipe
from effdeg_lab.core.runs import (
    BusyError,
    CannotStackError,
    FinishedError,
    Job,
    RunFolder,
    StoppedError,
    get_rank_and_size,
)
from effdeg_lab.core.settings import Settings
from effdeg_lab.core.signals import catch_signals, end_with_parent, list_stop_signals

TICK = 1.0  # seconds between two checks of the runs; the end of a run is noticed at once
GRACE = 20.0  # seconds that a run has to save when it is asked to stop; Slurm kills after 30
_TERMINATED = 128 + signal.SIGTERM  # the exit code of a worker that exited cleanly after SIGTERM
_ENDINGS = {FinishedError: "finished elsewhere", BusyError: "busy", StoppedError: "stopped"}


class Planned(NamedTuple):
    method: str
    settings: Settings
    purpose: Literal["tuning", "final", "equal time"]


class Ended(NamedTuple):
    """How a planned run ended: its headline if it finished, the last line of the error if it failed."""

    planned: Planned
    ending: str
    note: str = ""


def execute(recipe: Recipe, *jobs: Job) -> None:
    """Carry out or continue a run in this process; under ``torchrun``, in every process.

    Several jobs are trained together; if one fails, that is recorded and the others continue. An error that ends all of
    them is recorded in their files and raised. SIGTERM and SIGHUP make runs save and raise :class:`StoppedError`.
    """
    device, recorded = jobs[0].device, jobs if get_rank_and_size()[0] == 0 else ()
    on_gpu = device.type == "cuda"
    with (
        catch_signals(*list_stop_signals()) as received,
        torch.random.fork_rng(devices=[device] if on_gpu else []),
        torch.cuda.device(device) if on_gpu else nullcontext(),
        ExitStack() as stack,
    ):
        for job in jobs:
            stack.enter_context(closing(job))
            job.asked_to_stop = lambda asked=job.asked_to_stop: bool(received) or asked()  # type: ignore[misc]
        torch.manual_seed(jobs[0].settings.seed)
        try:
            for job in recorded:
                job.claim()  # before loading anything: another process may be working on it
            left = ""
            try:
                if len(jobs) > 1 and recipe.run_stacked is not None:
                    recipe.run_stacked(jobs)
                else:
                    recipe.run(jobs[0].settings, jobs[0])
            except SystemExit as error:
                left = f" by sys.exit({error.code})"
            if any(job.claimed for job in recorded):
                raise ValueError(f"{recipe.name} ended without a summary{left}: its run must call job.finish(summary).")
        except (BusyError, FinishedError, CannotStackError):
            raise
        except Exception as error:
            text = None if isinstance(error, StoppedError) else traceback.format_exc()
            after_finish = not any(job.claimed for job in jobs)  # otherwise the error is of those that are not finished
            for job in recorded:
                with suppress(OSError):  # raise the error itself, even if it cannot be recorded
                    if job.claimed:  # has not finished or failed before
                        job.fail(text)
                    elif after_finish and text is not None and (known := job.read()) and known.finished:
                        job.fail(text, after_finish=True)
            raise


@dataclass(frozen=True)
class Workplace:
    """Where the runs of a recipe are carried out; plain values that can be sent to other processes."""

    recipe: str
    runs: Path
    data: Path | None
    device: str

    def open(self, planned: Planned) -> tuple[Recipe, Job]:
        recipe, method = find_recipe(self.recipe), planned.method
        base, folder, device = recipe.resolve(recipe.method(method)), RunFolder(self.runs), torch.device(self.device)
        return recipe, Job(planned.settings, recipe.name, method, base, folder, device, self.data, code=recipe.code)

    def work(self, planned: Sequence[Planned]) -> list[Ended]:
        """Carry out a run, or several together, in a process of their own.

        Output goes to the log of the first run. The error of a run that fails while others continue goes to its own.
        """
        ended, jobs = list[Ended](), dict[Planned, Job]()
        for each in planned:
            try:
                recipe, job = self.open(each)
                job.claim()  # before writing to its log: another process may be working on it
                jobs[each] = job
            except Exception as error:
                ended.append(_describe_end(each, error))
        for job in reversed(jobs.values()):
            _print_to(job.folder / "log.txt")
            if len(jobs) > 1:
                names = ", ".join(job.file.stem for job in jobs.values())
                print(f"trained together, with the log of the first: {names}")
        ending: Exception | None = None
        try:
            if jobs:
                execute(recipe, *jobs.values())
        except CannotStackError:
            traceback.print_exc()
            return [*ended, *(each for alone in jobs for each in self.work([alone]))]
        except Exception as error:
            ending = error
        for each, job in jobs.items():
            run = job.read()
            if run and run.finished:
                ended.append(Ended(each, "finished", recipe.study.headline(run)))
            elif ending is not None:
                ended.append(_describe_end(each, ending))
            else:
                _print_to(job.folder / "log.txt")
                print(failure := (run and run.failure) or "its file was deleted")
                ended.append(Ended(each, "failed", _get_last_line(failure)))
        return ended

    def record_death(self, planned: Planned, how: str | int | None) -> Ended:
        """Record a run whose process died, given the reason or the exit code."""
        _, job = self.open(planned)
        if (known := job.read()) and known.finished:
            return Ended(planned, "finished")
        if how in (-signal.SIGTERM, _TERMINATED):
            return Ended(planned, "stopped")
        if isinstance(how, int):
            how = f"killed by {signal.Signals(-how).name}" if how < 0 else f"its process ended with exit code {how}"
            how += " (perhaps out of memory); the next sweep continues it" if how.endswith("SIGKILL") else ""
        with suppress(OSError):
            job.fail(str(how))
        return Ended(planned, "failed", str(how))


class WorkerPool:
    """Worker processes on this machine, which share its cores or GPUs and live until the pool is closed."""

    def __init__(self, place: Workplace, processes: int) -> None:
        gpus = torch.cuda.device_count() if place.device == "cuda" else 1
        devices = [f"cuda:{slot % gpus}" if gpus > 1 else place.device for slot in range(processes)]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # Without a limit, each worker would use all cores and slow down the others.
        threads = max(1, cores // processes) if place.device == "cpu" and "OMP_NUM_THREADS" not in os.environ else None
        # Runs on one GPU take turns; those on different GPUs decode images at the same time.
        decoders = max(1, cores // min(gpus, processes)) if place.device == "cuda" else None
        self.workers = [_Worker(replace(place, device=device), threads, decoders) for device in devices]

    def carry_out(self, planned: Sequence[Sequence[Planned]]) -> Iterator[list[Ended]]:
        """Carry out runs, those in one entry together; at least every second, yield those that have ended since.

        Runs for which the others left no memory on the GPU are tried again when these have ended, one at a time.
        """
        waiting, crowded_out = list(planned), list[Sequence[Planned]]()
        running: dict[_Worker, Sequence[Planned]] = {}
        shared = set[_Worker]()  # those whose run has run beside another
        while waiting or running or crowded_out:
            if crowded_out and not waiting and not running:
                waiting.append(crowded_out.pop(0))
            for worker in self.workers:
                if waiting and worker not in running:
                    running[worker] = waiting.pop(0)
                    worker.send(running[worker])
            shared |= running.keys() if len(running) > 1 else set()
            wait([worker.connection for worker in running], TICK)
            # A child process of a run may keep the connection of a dead worker open.
            for worker in [each for each in running if each.connection.poll() or not each.process.is_alive()]:
                ended = worker.receive(running.pop(worker))
                again = [each for each in ended if worker in shared and "CUDA out of memory" in each.note]
                crowded_out += [[each.planned] for each in again]
                shared.discard(worker)
                yield [each for each in ended if each not in again]
            yield []

    def close(self) -> None:
        """Make all runs save and stop, and end the workers."""
        started = [worker for worker in self.workers if worker.process is not None]
        for worker in started:
            worker.process.terminate()
        for worker in started:
            worker.end()


class _Worker:
    """The sweep's side of a worker process; it is replaced when it has died or a run has failed in it."""

    def __init__(self, place: Workplace, threads: int | None = None, decoders: int | None = None) -> None:
        self.place, self.threads, self.decoders = place, threads, decoders
        self.process: Any = None
        self.connection: Connection

    def send(self, planned: Sequence[Planned]) -> None:
        if self.process is None or not self.process.is_alive():
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, self.place, self.threads, self.decoders))
            self.process.start()
            theirs.close()  # otherwise the end of the worker would not be noticed
        with suppress(OSError):  # if it has just died, receive notices that
            self.connection.send(planned)

    def receive(self, planned: Sequence[Planned]) -> list[Ended]:
        try:
            if not self.connection.poll():
                raise EOFError
            ended: list[Ended] = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(GRACE)
            ended = [self.place.record_death(each, self.process.exitcode) for each in planned]
        # A CUDA error, for example, breaks everything that follows in the same process.
        if any(each.ending == "failed" for each in ended):
            self.process.terminate()
            self.end()
        return ended

    def end(self) -> None:
        self.connection.close()  # an idle worker then exits
        self.process.join(GRACE)
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, place: Workplace, threads: int | None, decoders: int | None) -> None:
    """Carry out the runs that arrive, until the sweep ends or SIGTERM arrives."""
    faulthandler.enable()
    for name in ("SIGINT", "SIGHUP"):  # the sweep handles Ctrl-C and a closed terminal; Windows has no SIGHUP
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    # Exit instead of dying from the signal: Python would warn of semaphores that libraries have not released.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    end_with_parent(GRACE)
    if threads is not None:
        torch.set_num_threads(threads)
    if decoders is not None:
        os.environ.setdefault("EFFDEG_DECODERS", str(decoders))
    find_recipe(place.recipe)  # imports the settings' class, perhaps from the working directory
    with suppress(EOFError, OSError):
        while True:
            connection.send(place.work(connection.recv()))
            gc.collect()
            torch.cuda.empty_cache()
            if "torch._dynamo" in sys.modules:
                torch.compiler.reset()  # otherwise many runs would exceed its limit of recompilations


def _print_to(log: Path) -> None:
    """Redirect all output of this process, including that of C libraries, to the end of a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that output before a kill is not lost
    with log.open("ab") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)


def _describe_end(planned: Planned, error: Exception) -> Ended:
    if type(error) in _ENDINGS:
        return Ended(planned, _ENDINGS[type(error)])
    traceback.print_exception(error)
    return Ended(planned, "failed", _get_last_line(error))


def _get_last_line(error: Exception | str) -> str:
    return next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
