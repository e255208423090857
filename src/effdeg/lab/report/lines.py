"""One line of an experiment's table: the runs that belong to it at one scale, and what they say together."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from effdeg.lab.matches import settings_of
from effdeg.lab.recipe import Row
from effdeg.lab.report.spread import Spread
from effdeg.lab.report.wording import SIGNS
from effdeg.lab.settings import RunSettings
from effdeg.lab.store import Record
from effdeg.lab.tuning import Choice

State = Literal["run", "not run", "not finished", "failed"]


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a table.

    Attributes:
        row: What it is in the recipe.
        runs: Its finished runs, by seed.
        state: Whether it was run; if not, whether it was tried.
        failure: The last words of the error that ended it, if it failed.
        own: The strengths that the recipe gives it.
        strengths: The strengths it was run with.
        choice: How tuning went, if this line was tuned.
        fixed: Strengths that the recipe gives it and that are not tuned.
        also: Other strengths it was run with at the same scale, which are not shown, and their accuracies.
    """

    row: Row
    runs: tuple[Record, ...]
    state: State
    failure: str | None
    own: Mapping[str, Any]
    strengths: Mapping[str, Any]
    choice: Choice | None
    fixed: Mapping[str, Any]
    also: tuple[tuple[Mapping[str, Any], Spread], ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """All strengths it was run with, tuned or not; none if it was not run."""
        return {**self.strengths, **self.fixed} if self.runs else {}

    @cached_property
    def accuracies(self) -> dict[int, float]:
        """The test accuracy of each seed."""
        return {seed_of(run): value_in(run, "test_accuracy") for run in self.runs}

    @cached_property
    def accuracy(self) -> Spread | None:
        """The test accuracy over seeds."""
        return Spread.of(list(self.accuracies.values())) if self.runs else None

    @property
    def train_accuracy(self) -> float | None:
        """The mean training accuracy."""
        return self._mean("train_accuracy")

    @property
    def seconds(self) -> float | None:
        """The mean time that training took."""
        return self._mean_time("seconds")

    @property
    def seconds_per_epoch(self) -> float | None:
        """The mean time of an epoch."""
        return self._mean_time("seconds_per_epoch")

    @property
    def milliseconds_per_step(self) -> float | None:
        """The mean time of a step."""
        return self._mean_time("milliseconds_per_step")

    @property
    def effective_degree(self) -> tuple[float, float] | None:
        """The mean effective degree and what the measurements leave of its standard error; None if not measured."""
        found = [run.summary["effective_degree"] for run in self.runs if run.summary and _measured(run.summary)]
        if not found or len(found) < len(self.runs):
            return None
        stderr = math.sqrt(math.fsum((each["stderr"] or 0.0) ** 2 for each in found)) / len(found)
        return Spread.of([each["value"] for each in found]).mean, stderr

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines it was run on."""
        return tuple(dict.fromkeys(map(machine_of, self.runs)))

    def _mean_time(self, key: str) -> float | None:
        return None if any(run.environment.get("shared") for run in self.runs) else self._mean(key)

    def _mean(self, key: str) -> float | None:
        found = [value_in(run, key) for run in self.runs]
        return None if not found or any(map(math.isnan, found)) else Spread.of(found).mean


def line_of(
    row: Row, settings: RunSettings, runs: Sequence[Record], choice: Choice | None, *, with_accuracy: bool = True
) -> Line:
    """Put together a line.

    Args:
        row: The line of the recipe.
        settings: Its settings, with the row's own strengths.
        runs: All its runs at one scale, finished or not.
        choice: How tuning went.
        with_accuracy: Leave out runs that came to their end without an accuracy: they went wrong.

    Returns:
        The line, with the tuned strengths if they were run; else its own; else those with most seeds. Never is a
        strength chosen by its test accuracy.
    """
    own = {key: getattr(settings, key) for key in row.strengths}
    fixed = {key: getattr(settings, key) for key in SIGNS if key in row.changes and key not in row.strengths}
    usable = [run for run in runs if run.finished]
    if with_accuracy:
        usable = [run for run in usable if not math.isnan(value_in(run, "test_accuracy"))]
    groups = _by_strengths(row, settings, usable)
    if not groups:
        return Line(row, (), *_state(runs), own, own, choice, fixed)
    preferred = [*([choice.changes] if choice else []), own]
    groups.sort(key=lambda group: (*(group[0] != strengths for strengths in preferred), -len(group[1])))
    (strengths, picked), *others = groups
    # Older versions may have left a second run of the same seed.
    by_seed = {seed_of(run): run for run in reversed(picked)}
    also = tuple((each, Spread.of([value_in(run, "test_accuracy") for run in found])) for each, found in others)
    ordered = tuple(by_seed[seed] for seed in sorted(by_seed))
    return Line(row, ordered, "run", None, own, strengths, choice, fixed, also)


def _by_strengths(row: Row, settings: RunSettings, runs: Iterable[Record]) -> list[tuple[dict[str, Any], list[Record]]]:
    groups: list[tuple[dict[str, Any], list[Record]]] = []
    for run in runs:
        complete = settings_of(run, type(settings))
        strengths = {key: complete[key] for key in row.strengths}
        group = next((group for group in groups if group[0] == strengths), None)
        if group is None:
            groups.append((strengths, [run]))
        else:
            group[1].append(run)
    return groups


def seed_of(run: Record) -> int:
    """Return the seed of a run."""
    return int(run.settings.get("seed", 0))


def machine_of(run: Record) -> str:
    """Name the machine that a run was done on."""
    processes = int(run.environment.get("processes", 1))
    shared = " (shared)" if run.environment.get("shared") else ""
    return f"{processes} × " * (processes > 1) + str(run.environment.get("device", "unknown device")) + shared


def value_in(run: Record, key: str) -> float:
    """Return a number of a finished run's summary, nan where there is none."""
    value = (run.summary or {}).get(key)
    return math.nan if value is None else float(value)


def _measured(summary: Mapping[str, Any]) -> bool:
    return (summary.get("effective_degree") or {}).get("value") is not None


def _state(runs: Sequence[Record]) -> tuple[State, str | None]:
    if not runs:
        return "not run", None
    failures = [run.failure for run in runs if run.failure]
    if len(failures) < len(runs):
        return "not finished", None
    return "failed", failures[-1].strip().splitlines()[-1]
