"""All runs of an experiment: first those that tune, then those that results come from; finished ones are skipped."""

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from effdeg._utils.checks import check_count
from effdeg._utils.files import make_folder
from effdeg._utils.imports import require
from effdeg._utils.progress import progress_bar
from effdeg.lab import registry
from effdeg.lab.assignments import Assignment
from effdeg.lab.jobs import Job, equal_time_jobs, final_jobs, tuning_jobs
from effdeg.lab.pools import TICK, Ended, Order, Progress, on_this_machine
from effdeg.lab.ray_pool import on_ray
from effdeg.lab.recipe import Recipe
from effdeg.lab.records import last_entry
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Store

# More than these do not fit next to the bar.
_SHOWN = 3


@dataclass(frozen=True)
class Failure:
    """A run that failed; the next sweep tries it again.

    Attributes:
        job: What it was.
        error: The last line of its error.
        log: All that it printed.
    """

    job: Job
    error: str
    log: Path


@dataclass(frozen=True)
class Outcome:
    """How a sweep went.

    Attributes:
        finished: The runs that it carried out.
        skipped: Those that were finished before.
        elsewhere: Those that another process finished meanwhile.
        failed: Those that failed.
        notes: What could not be planned, and why.
    """

    finished: tuple[Job, ...] = ()
    skipped: tuple[Job, ...] = ()
    elsewhere: tuple[Job, ...] = ()
    failed: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def counts(self) -> str:
        """How many runs ended in which way."""
        elsewhere = f"{len(self.elsewhere)} finished elsewhere meanwhile, " if self.elsewhere else ""
        return f"{len(self.finished)} finished now, {len(self.skipped)} before, {elsewhere}{len(self.failed)} failed"

    def __str__(self) -> str:
        failures = [f"{each.job.row}: {each.error} (see {each.log})" for each in self.failed]
        return "\n".join([self.counts, *failures, *self.notes])


def sweep(
    recipe: Recipe[Any],
    *,
    store: Store,
    data: Path | None,
    device: torch.device,
    processes: int = 1,
    ray: str | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    changes: Mapping[str, Any] | None = None,
    tune: bool = True,
    tuning_changes: Mapping[str, Any] | None = None,
    equal_time: str | None = None,
    progress: bool = True,
) -> Outcome:
    """Carry out all runs of an experiment that are not finished yet.

    Args:
        recipe: The experiment, as :func:`effdeg.lab.registry.find_recipe` gives it, so that other processes find it.
        store: Where the runs are kept.
        data: The folder that holds the data sets.
        device: Where runs compute.
        processes: How many run at once; on Ray with GPUs, how many share one of these.
        ray: Run on Ray: the address of a cluster, or ``local``. All its machines must see the store's folder and the
            data by the same path, and have effdeg installed.
        methods: The lines, by name; by default all.
        seeds: The seeds; by default the recipe's.
        changes: A user's changes, which win over the recipe and over tuning.
        tune: Tune first what was not tuned yet. Strengths that were tuned before are used in any case.
        tuning_changes: A user's changes to the runs that tune alone.
        equal_time: Give every line the time that this one took, too: run it again for as many epochs as it takes.
        progress: Show a bar, and a line for every run that ends.

    Returns:
        What was finished, here and elsewhere, skipped and failed.
    """
    check_count("processes", processes, least=1)
    _check_found(recipe)
    if ray is not None:
        require("ray", extra="ray", purpose="a sweep on Ray")
    chosen: dict[str, Any] = {"methods": methods, "changes": changes, "tuning_changes": tuning_changes}
    # Planned before anything runs, so that what is wrong with it is said now and not in an hour.
    tuning = tuning_jobs(recipe, **chosen) if tune else []
    planned = final_jobs(recipe, [], seeds=seeds, **chosen)
    if equal_time is not None:
        equal_time_jobs(recipe, planned, store, equal_time)
    make_folder(store.folder)

    carrier = _Carrier(recipe, store, data, device, processes, ray, progress)
    outcome = carrier.carry_out(tuning, "tuning") if tuning else Outcome()
    finals = final_jobs(recipe, store.records(), seeds=seeds, **chosen)
    outcome += carrier.carry_out(finals, "runs")
    if equal_time is None:
        return outcome
    jobs, notes = equal_time_jobs(recipe, finals, store, equal_time)
    return outcome + carrier.carry_out(jobs, "at equal time") + Outcome(notes=tuple(notes))


def _check_found(recipe: Recipe[Any]) -> None:
    """Raise unless other processes, which know the recipe by its name alone, find what it does here."""
    found = registry.find_recipe(recipe.name)
    if found.train is not recipe.train or type(found.settings) is not type(recipe.settings):
        raise ValueError(
            f"{recipe.name!r} is the name of a recipe with another train or other settings than this one's. Other "
            "processes would run that one: keep yours in a module, and give it as package.module:RECIPE."
        )


@dataclass(frozen=True)
class _Carrier:
    recipe: Recipe[Any]
    store: Store
    data: Path | None
    device: torch.device
    processes: int
    ray: str | None
    progress: bool

    def carry_out(self, jobs: Sequence[Job], description: str) -> Outcome:
        """Carry out those of the jobs that are not finished yet."""
        orders = {self._order(job): job for job in jobs}
        due = [order for order in orders if not order.run.finished]
        outcome = Outcome(skipped=tuple(job for order, job in orders.items() if order not in due))
        done = len(outcome.skipped)
        with progress_bar(f"{self.recipe.name}, {description}", len(jobs), enabled=self.progress) as update:
            update(done)
            while due:
                busy = []
                with closing(self._pool(due)) as pool:
                    for running, ended in pool:
                        busy += [each.order for each in ended if each.busy]
                        over = [each for each in ended if not each.busy]
                        outcome = sum((self._outcome(each, orders[each.order]) for each in over), outcome)
                        done += len(over)
                        if self.progress:
                            update(done, self._note(running or busy, orders))
                due = busy
                if busy:  # another sweep is at them: it finishes them, or leaves them to this one
                    time.sleep(TICK)
        return outcome

    def _outcome(self, ended: Ended, job: Job) -> Outcome:
        if self.progress:
            print(f"{self._label(job)}: {_result(ended)}", flush=True)
        if ended.error is not None:
            return Outcome(failed=(Failure(job, ended.error, ended.order.log),))
        return Outcome(elsewhere=(job,)) if ended.elsewhere else Outcome(finished=(job,))

    def _order(self, job: Job) -> Order:
        data = None if self.data is None else str(self.data.absolute())
        runs = str(self.store.folder.absolute())
        assignment = Assignment(job.recipe, to_dict(job.settings), runs, data, str(self.device))
        return Order(self.store.run(job.settings), assignment)

    def _pool(self, orders: Sequence[Order]) -> Generator[Progress, None, None]:
        if self.ray is None or not orders:
            return on_this_machine(orders, self.processes)
        return on_ray(orders, self.ray, self.processes)

    def _label(self, job: Job) -> str:
        row = self.recipe.row(job.row)
        title = row.title if job.purpose == "final" else f"{row.title} ({job.purpose})"
        told = {key: getattr(job.settings, key) for key in (*self.recipe.grid, *row.strengths, "seed")}
        return ", ".join([title, *(f"{key} {value}" for key, value in told.items())])

    def _note(self, running: Sequence[Order], orders: Mapping[Order, Job]) -> str:
        notes = [
            " ".join([self._label(orders[order]), *_accuracy(last_entry(order.run.folder))])
            for order in running[:_SHOWN]
        ]
        more = [f"{len(running) - _SHOWN} more"] if len(running) > _SHOWN else []
        return " · ".join(notes + more)


def _result(ended: Ended) -> str:
    if ended.error is not None:
        return f"failed: {ended.error}"
    record = ended.order.run.record()
    summary = record.summary if record and record.summary else {}
    took = [_time(summary["seconds"])] if "seconds" in summary else []
    where = ["finished elsewhere"] if ended.elsewhere else []
    return ", ".join([*where, *_accuracy(summary), *took]) or "finished"


def _accuracy(found: Mapping[str, Any]) -> list[str]:
    accuracy = found.get("test_accuracy")
    return [] if accuracy is None else [f"{accuracy:.1%}"]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
