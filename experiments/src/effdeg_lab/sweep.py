"""All runs of a recipe: first those that tune, then those that results come from; finished ones are skipped."""

import importlib.util
import os
import platform
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from effdeg.io import write_json
from effdeg_lab.plan import Plan, Planned
from effdeg_lab.progress import progress_bar
from effdeg_lab.recipe import Recipe, find_recipe
from effdeg_lab.runs import RunFolder, StoppedError
from effdeg_lab.status import SWEEPS, describe_score
from effdeg_lab.workers import TICK, Ended, Order, RayPool, WorkerPool, catch_signals, execute

__all__ = ["Outcome", "Plan", "Planned", "execute", "sweep"]

_SHOWN = 3
"""More running runs than these do not fit next to the bar."""
_LOOK = 5.0
"""Seconds between two looks at the files of running runs."""


@dataclass
class Outcome:
    """How a sweep went.

    Attributes:
        finished: The runs that it carried out.
        skipped: Those that were finished before.
        elsewhere: Those that another process finished in the meantime.
        stopped: Those that were asked to stop; they continue when they are started again.
        failed: Those that failed, each with the last line of its error and its log.
        untimed: Methods without runs at equal time, because no finished run shows how long they train.
    """

    finished: list[Planned] = field(default_factory=list)
    skipped: list[Planned] = field(default_factory=list)
    elsewhere: list[Planned] = field(default_factory=list)
    stopped: list[Planned] = field(default_factory=list)
    failed: list[tuple[Planned, str, Path]] = field(default_factory=list)
    untimed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = {"finished": len(self.finished), "finished before": len(self.skipped), "failed": len(self.failed)}
        more = {"finished elsewhere": len(self.elsewhere), "stopped": len(self.stopped)}
        counts |= {name: count for name, count in more.items() if count}
        return ", ".join(f"{count} {name}" for name, count in counts.items())


def sweep(
    plan: Plan,
    *,
    runs: RunFolder,
    device: torch.device,
    data: Path | None = None,
    processes: int = 1,
    ray: str | None = None,
    progress: bool = True,
) -> Outcome:
    """Carry out all planned runs that are not finished yet.

    SIGTERM and Ctrl-C make every run save and stop. Several sweeps may share a folder: a run that another process works
    on is left to it and waited for.

    Args:
        plan: What to run. Its recipe must be one that :func:`effdeg_lab.find_recipe` finds, as other processes do.
        runs: The folder that the runs are kept in.
        device: Where to compute; "cuda" deals out all GPUs.
        data: The folder that holds the data sets.
        processes: How many runs at once; on Ray, how many share a GPU.
        ray: The address of a Ray cluster, or "local"; None for worker processes on this machine.
        progress: Whether to show a bar, and a line for every run that ends.

    Raises:
        StoppedError: After SIGTERM.
    """
    if processes < 1:
        raise ValueError(f"--processes {processes} is too small: it must be at least 1.")
    if ray is not None and importlib.util.find_spec("ray") is None:
        raise ImportError(f"--ray {ray} needs ray: pip install 'effdeg-lab[ray]'")
    _check_found(plan.recipe)
    plan.check(data)
    runs.make()
    pool = WorkerPool(processes) if ray is None else RayPool(ray, processes)
    with catch_signals(signal.SIGTERM, signal.SIGINT) as received, closing(pool):
        sweeping = _Sweep(plan, runs, device, data, pool, progress, received)
        sweeping.carry_out(plan.plan_tuning(), "tuning")
        finals = plan.plan_final(runs.read(brief=True))
        sweeping.carry_out(finals, "runs")
        if plan.equal_time is not None and not received:
            timed, sweeping.outcome.untimed = plan.plan_equal_time(finals, runs)
            sweeping.carry_out(timed, "equal time")
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    if received:
        raise StoppedError
    return sweeping.outcome


@dataclass
class _Sweep:
    plan: Plan
    runs: RunFolder
    device: torch.device
    data: Path | None
    pool: WorkerPool | RayPool
    progress: bool
    received: list[int]
    outcome: Outcome = field(default_factory=Outcome)
    looked: float = -_LOOK

    def carry_out(self, planned: Sequence[Planned], title: str) -> None:
        """Carry out those of the runs that are not finished yet, until a signal arrives."""
        known = self.runs.find_all([each.settings for each in planned])
        due = {}
        for each, run in zip(planned, known, strict=True):
            if run and run.finished:
                self.outcome.skipped.append(each)
            else:
                due[self._order(each)] = each
        waiting = self.runs.folder / SWEEPS / f"{platform.node()}-{os.getpid()}.json"
        shown = self.progress and bool(planned)
        with progress_bar(f"{self.plan.recipe.name}, {title}", len(planned), enabled=shown) as update:
            while due and not self.received:
                for running, ended in self.pool.carry_out(list(due)):
                    for end in ended:
                        if end.ending != "busy":
                            self._record(end, due.pop(end.order))
                    update(len(planned) - len(due))
                    if time.monotonic() >= self.looked + _LOOK:
                        self.looked = time.monotonic()
                        counts = Counter(each.method for order, each in due.items() if order not in running)
                        waiting.parent.mkdir(exist_ok=True)
                        write_json(waiting, {"recipe": self.plan.recipe.name, "waiting": counts})
                        if self.progress:
                            update(note=self._describe([due[order] for order in running]))
                    if self.received:
                        break
                if due and not self.received:  # other processes work on the rest: they finish it, or leave it
                    time.sleep(TICK)
        waiting.unlink(missing_ok=True)

    def _order(self, planned: Planned) -> Order:
        data = None if self.data is None else str(self.data.absolute())
        folder, settings = str(self.runs.folder.absolute()), planned.settings.to_dict()
        return Order(self.plan.recipe.name, planned.method, settings, folder, data, str(self.device))

    def _record(self, ended: Ended, planned: Planned) -> None:
        (run,) = self.runs.find_all([planned.settings])
        words: list[str] = [ended.ending]
        if ended.ending == "failed":
            log = run.file.with_suffix("") / "log.txt" if run else self.runs.folder
            self.outcome.failed.append((planned, ended.error, log))
            words.append(ended.error)
        elif ended.ending == "stopped":
            self.outcome.stopped.append(planned)
        else:
            (self.outcome.finished if ended.ending == "finished" else self.outcome.elsewhere).append(planned)
            words += describe_score(run.summary if run else None)
        if self.progress:
            print(f"{self._label(planned)}: {', '.join(words)}", flush=True)

    def _label(self, planned: Planned) -> str:
        method = self.plan.recipe.method(planned.method)
        title = method.title if planned.purpose == "final" else f"{method.title} ({planned.purpose})"
        shown = [f"{key} {getattr(planned.settings, key)}" for key in (*self.plan.recipe.grid, *method.tune, "seed")]
        return ", ".join([title, *shown])

    def _describe(self, running: Sequence[Planned]) -> str:
        runs = self.runs.find_all([each.settings for each in running[:_SHOWN]])
        notes = [
            " ".join([self._label(each), *describe_score(run.metrics[-1] if run and run.metrics else None)])
            for each, run in zip(running, runs, strict=False)
        ]
        more = [f"{len(running) - _SHOWN} more"] if len(running) > _SHOWN else []
        return " · ".join(notes + more)


def _check_found(recipe: Recipe) -> None:
    """Raise unless other processes, which know the recipe by its name alone, find the same one."""
    found = find_recipe(recipe.name)
    if found.run is not recipe.run or type(found.settings) is not type(recipe.settings):
        raise ValueError(
            f"{recipe.name!r} is the name of a recipe with another run function or other settings, which other "
            "processes would run: keep yours in a module, and give it as package.module:RECIPE."
        )
