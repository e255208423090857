"""The results that a study reads: a recipe's finished runs, by scale and method, and what tuning chose.

Equal settings are one run, whichever recipe it was made for: it is the settings that decide, not a run's header.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.runs import Run
from effdeg_lab.core.settings import format_setting

# Settings of scale that change only what a run records, not how it ends.
_RECORDING = {"evaluate_every", "measure_every", "measure_also", "suspect"}
# The training time of a run at equal time, as a multiple of the reference's; planned runs may miss it by more.
_SHORTEST, _LONGEST, _MISSED = 0.8, 1.05, 1.5
_LISTED = 5  # the most seeds that are listed one by one

Progress = Literal["run", "not run", "not finished", "failed"]


def group_runs(runs: Iterable[Run], names: Iterable[str]) -> list[tuple[dict[str, Any], list[Run]]]:
    names = list(names)
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run in runs:
        values = run.read(names)
        groups.setdefault(json.dumps(values), (values, []))[1].append(run)
    return list(groups.values())


def get_position(values: Sequence[Any], value: Any) -> int:
    """Return the position of a value in the recipe's list, as a sort key; a user's own values come last."""
    return values.index(value) if value in values else len(values)


@dataclass(frozen=True)
class Choice:
    """The result of tuning a method: the values that did best on held-out examples, and all that were tried."""

    changes: dict[str, Any]
    score: float
    tried: list[tuple[dict[str, Any], float]]
    held_out: int
    epochs: int


class Selection:
    """The runs of a recipe's kind, their settings completed; with ``changes``, only those with these settings count."""

    def __init__(self, recipe: Recipe, runs: Iterable[Run], changes: Mapping[str, Any] | None = None) -> None:
        self.recipe, self.changes, kind = recipe, dict(changes or {}), type(recipe.settings)
        complete = [replace(run, settings=kind.complete(run.settings)) for run in runs if run.kind == kind.kind_name()]
        names = recipe.settings.to_dict().keys()
        self.runs = [
            run for run in complete if run.settings.keys() == names
        ]  # an unknown one may have changed anything

    def list_runs(self, method: Method, *, tuning: bool = False, held_out: int | None = None) -> list[Run]:
        """List the runs of a method, finished or not: of any scale and tuned value, at every point of the recipe.

        Settings of scale that the method itself sets must be equal. With ``tuning``, list the runs that tune it on
        held-out examples, of the recipe's number or a given one; these have a scale of their own.
        """
        recipe, changes = self.recipe, self.changes | ({} if held_out is None else {"held_out": held_out})
        together = {**(recipe.tuning if tuning else {}), **changes}
        if tuning and together.get("held_out", 0) < 1:
            return []
        settings, scale = recipe.resolve(method, together).to_dict(), {"seed", *recipe.settings.scale_names()}
        free = (scale - method.changes.keys() | method.tune.keys()) - changes.keys() | (scale if tuning else set())
        required = {key: value for key, value in settings.items() if key not in {*free, *recipe.axes}}
        fixed = {axis: settings[axis] for axis in recipe.axes if axis in changes}
        points = [point | fixed for point in recipe.points()]
        runs = (run for run in self.runs if all(run.settings[key] == value for key, value in required.items()))
        return [run for run in runs if run.read(recipe.axes) in points]

    def list_tuning_runs(self, method: Method, held_out: int | None = None) -> list[Run]:
        """List the runs that tune a method, with any number of held-out examples or a given one.

        A single value on another number than the recipe's or the given one is not tuning, and is left out.
        """
        if not self.recipe.tuning:
            return []
        usual, listed = held_out or self.recipe.tuning["held_out"], list[Run]()
        for size in [held_out] if held_out else dict.fromkeys(run.settings["held_out"] for run in self.runs):
            tuned = self.list_runs(method, tuning=True, held_out=size)
            tuned = [run for run in tuned if run.settings["held_out"] == size]
            listed += tuned if size == usual or len(group_runs(tuned, method.tune)) > 1 else []
        return listed

    def list_choices(self, method: Method, held_out: int | None = None) -> list[Choice]:
        """List what tuning chose for a method by its finished runs, one choice for each scale, the most relevant first.

        The recipe's number of held-out examples comes first, then the method's own scale, then more epochs. Choices
        from a single value are used only if there are no others: it was not tuned, and may be another recipe's.
        """
        usual, choices = self.recipe.tuning.get("held_out"), list[tuple[Choice, tuple[bool, int, int]]]()
        tuned = self.list_tuning_runs(method, held_out) if method.tune else []
        finished, scale_names = (run for run in tuned if run.finished), self.recipe.settings.scale_names()
        for scale, same_scale in group_runs(finished, ("held_out", *scale_names)):
            groups = group_runs(same_scale, method.tune)
            groups.sort(key=lambda group: [*map(get_position, method.tune.values(), group[0].values())])
            # A run without an accuracy went wrong and must not be chosen, so it scores 0.
            scores = [np.nan_to_num([run.value("test_accuracy") for run in runs]) for _, runs in groups]
            tried = [(values, statistics.fmean(score)) for (values, _), score in zip(groups, scores, strict=True)]
            best = max(tried, key=lambda pair: pair[1])
            choice = Choice(*best, tried, scale["held_out"], int(scale.get("epochs", 0)))
            own = [key for key in method.changes if key in scale and key not in self.recipe.tuning]
            fits = all(scale[key] == method.changes[key] for key in own)
            choices.append((choice, (fits, choice.epochs, len(same_scale))))
        choices = [each for each in choices if len(each[0].tried) > 1] or choices
        choices.sort(key=lambda each: (each[0].held_out == usual, *each[1]), reverse=True)
        return [choice for choice, _ in choices]


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and the standard deviation, which is None for a single seed."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        values = list(values)
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    @property
    def stderr(self) -> float | None:
        return None if self.std is None else self.std / math.sqrt(self.count)


class Difference(NamedTuple):
    """The difference between two methods with a 95% interval by Student's t, paired by seed where they share seeds.

    There is no interval for a single seed, for seeds that agree to the last digit, which is a coincidence, nor if some
    seeds failed, as the others may be those that do well.
    """

    value: float
    interval: tuple[float, float] | None
    reason: str = ""  # why there is no interval, except for a single seed

    @classmethod
    def of(cls, one: Mapping[int, float], other: Mapping[int, float], *, comparisons: int = 1) -> "Difference":
        """Compare two sets of values, each given by seed.

        With several comparisons, intervals are widened so that all of them hold at once in 95% of cases (Bonferroni).
        """
        shared = [one[seed] - other[seed] for seed in one if seed in other]
        sides = [Spread.of(shared)] if shared else [Spread.of(one.values()), Spread.of(other.values())]
        value = sides[0].mean if shared else sides[0].mean - sides[1].mean
        count = min(side.count for side in sides)  # conservative where the variances differ
        stderr = math.sqrt(sum((side.std or 0.0) ** 2 / side.count for side in sides))
        if count == 1 or stderr < 1e-12:
            return cls(value, None, "" if count == 1 else "the seeds agree to the last digit")
        margin = float(student.ppf(1 - 0.025 / comparisons, count - 1)) * stderr
        return cls(value, (value - margin, value + margin))


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """The runs of one method at one scale."""

    method: Method
    runs: tuple[Run, ...]  # finished, ordered by seed; in a pool, at all points of the grid
    state: Progress
    failed: tuple[Run, ...] = ()  # ended by an error, or without a number that the study needs; otherwise like ``runs``
    values_used: Mapping[str, Any] | None = None  # the tuned settings and their values in these runs
    choice: Choice | None = None  # the tuning that chose these values, or else the best one; None if not tuned
    candidates: Sequence[Mapping[str, Any]] = ()  # what the recipe tunes with

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The summaries as a data frame, indexed by seed, with dotted columns such as ``effective_degree.value``."""
        frame = pd.json_normalize([run.summary or {} for run in self.runs])
        return frame.set_index(pd.Index([run.seed for run in self.runs], name="seed"))

    @property
    def epochs(self) -> int:
        """The number of epochs; 0 if the runs have no such setting."""
        return int(self.runs[0].settings.get("epochs", 0)) if self.runs else 0

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.machine for run in self.runs))

    def describe_failed(self, key: str | None = None) -> str:
        """Return how many runs failed, or ended with NaN under this key: ``ED: 3 of 5 seeds; 2 failed``, or nothing."""
        nan = () if key is None else (run for run in self.runs if run.is_nan(key))
        return self._describe_lost(len([*self.failed, *nan]), "failed")

    def describe_untuned(self) -> str:
        """Return ``ED: 2 of 4 tuning runs`` if not all are finished, so that the best values may be missing."""
        if self.choice is None:
            return ""
        tried, total = [values for values, _ in self.choice.tried], len(self.candidates)
        count = sum(each in tried for each in self.candidates)
        return f"{self.method.title}: {count} of {total} tuning runs" if count < total else ""

    def describe_missing(self, key: str) -> str:
        """Return how many runs have nothing under this key: ``ED: 3 of 5 seeds; 2 without x``, or nothing."""
        missing = [run for run in self.runs if math.isnan(run.value(key)) and not run.is_nan(key)]
        return self._describe_lost(len(missing), f"without {key}")

    def _describe_lost(self, lost: int, how: str) -> str:
        total = len(self.runs) + len(self.failed)
        unit = "seeds" if len({run.seed for run in (*self.runs, *self.failed)}) == total else "runs"
        return f"{self.method.title}: {total - lost} of {total} {unit}; {lost} {how}" if lost else ""

    def values(self, key: str) -> "pd.Series[float]":
        """Return one number of each summary by seed, nan where a run lacks it."""
        frame = self.frame  # reindexing would take a hundred times as long
        return frame[key].astype(float) if key in frame else pd.Series(np.nan, index=frame.index, name=key)

    def spread(self, key: str = "test_accuracy") -> Spread | None:
        """Return the mean and deviation over seeds; None if the method was not run or a run lacks the number."""
        values = self.values(key)
        return None if values.empty or values.isna().any() else Spread.of(values)

    def time(self, key: str = "seconds") -> float | None:
        """Return the mean time of the runs that did not share their device; None if there are none."""
        times = [run.value(key) for run in self.runs if not run.environment.get("shared")]
        return float(np.mean(times)) if times and not np.isnan(times).any() else None


@dataclass(frozen=True, eq=False)
class EqualTime:
    """What methods reach in the training time of the reference method, at the end of finished runs."""

    reference: Method
    seconds: float
    # By name, the longest runs that took 80 to 105% of that time, and their epochs.
    reached: Mapping[str, tuple[MethodRuns, int]]
    # The shortest runs of methods whose runs all took longer, or that were planned for equal time but took longer.
    longer: Mapping[str, MethodRuns]


@dataclass(frozen=True, eq=False)
class Results:
    """The runs of a recipe at one scale: with equal epochs, examples and precision, so that methods are comparable."""

    recipe: Recipe
    scale: Mapping[str, Any]  # the settings of scale, which all runs share
    methods: tuple[MethodRuns, ...]  # every method of the recipe, run or not
    equal_time: EqualTime | None = None  # None if the reference, or every other method, was not run
    point: str = ""  # the point of the grid, such as "labeled 250"; empty for all points
    # Other settings that the user changed from the recipe's.
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> list[MethodRuns]:
        """The methods that were run."""
        return [each for each in self.methods if each.runs]

    @property
    def runs(self) -> list[Run]:
        return [run for each in self.methods for run in each.runs]

    @property
    def size(self) -> int:
        """The number of methods that were run; for a pool, the number of models."""
        return len(self.runs) if self.recipe.axes else len(self.done)

    @property
    def epochs(self) -> int:
        """The number of epochs; 0 if the runs have no such setting."""
        return int(self.scale.get("epochs", 0))

    @property
    def varies_epochs(self) -> bool:
        """Whether the epochs depend on the method or on the point of the grid."""
        return "epochs" in self.recipe.axes or any("epochs" in each.method.changes for each in self.done)

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    @property
    def machines(self) -> list[str]:
        return list(dict.fromkeys(run.machine for run in self.runs))

    @property
    def heading(self) -> str:
        """The epochs, seeds and machines, in one line."""
        epochs = f"{self.epochs} {'epoch' if self.epochs == 1 else 'epochs'}"
        seeds = f"{'seed' if len(self.seeds) == 1 else 'seeds'} {_write_seeds(self.seeds)}" if self.seeds else ""
        parts = [self.point, epochs if self.epochs and not self.varies_epochs else "", seeds, *self.machines]
        return ", ".join(filter(None, parts))

    @property
    def failures(self) -> list[str]:
        """One sentence for each method of which runs failed, with an error."""
        needs = f"it has no {self.recipe.study.needs}, or that is not a number"
        return [f"{each.describe_failed()}: {each.failed[-1].error or needs}" for each in self.methods if each.failed]

    @property
    def different_code(self) -> list[str]:
        """A sentence on the runs that were made by other code than the recipe has now, if there are any."""
        other = [run for run in self.runs if run.code not in (None, self.recipe.code)]
        count, verb = len(self.runs), "was" if len(other) == 1 else "were"
        which = f"{len(other)} of these {count} runs" if count > 1 else "This run"
        text = f"{which} {verb} made by other code than {self.recipe.name} has now: "
        return [f"{text}{run.name}." for run in other[:1]]

    @property
    def different_data(self) -> list[str]:
        """One sentence for each data set whose fingerprint was not the same in all runs, with a run of each kind."""
        kinds: dict[tuple[Any, Any], dict[str, Run]] = {}
        for run in (run for run in self.runs if "data" in run.environment):
            key = run.settings.get("data"), run.settings.get("pixels")  # some images are decoded to this size
            kinds.setdefault(key, {}).setdefault(run.environment["data"], run)
        return [
            f"These runs may not be comparable: {data}, or the names of its files, differed in "
            f"{', '.join(run.name for run in runs.values())}."
            for (data, _), runs in kinds.items()
            if len(runs) > 1
        ]

    @property
    def departures(self) -> list[str]:
        """The settings that differ from the recipe's, each written as ``epochs 36 (recipe: 300)``."""
        own = self.recipe.settings.to_dict()
        scale = {name: value for name, value in self.scale.items() if name not in _RECORDING and value != own[name]}
        shown = {**self.changes, **scale} if self.done else {}
        by_method = {name for each in self.recipe.methods for name in each.changes} - scale.keys()
        return [
            f"{name} {_write(value)}" + ("" if name in by_method else f" (recipe: {_write(own[name])})")
            for name, value in shown.items()
        ]

    def find(self, name: str) -> MethodRuns:
        self.recipe.method(name)  # raises with suggestions if there is none
        return next(each for each in self.methods if each.method.name == name)

    def split(self) -> list["Results"]:
        """Return the results at each point of the grid that was run; without a grid, only these results."""
        axes = list(self.recipe.grid)
        groups = group_runs(self.runs, axes) if axes else []
        points = [values for values, _ in groups]
        points.sort(key=lambda point: [*map(get_position, self.recipe.grid.values(), point.values())])

        def pick(each: MethodRuns, point: Mapping[str, Any]) -> MethodRuns:
            runs, failed = (tuple(run for run in part if run.read(axes) == point) for part in (each.runs, each.failed))
            state: Progress = each.state if runs or not each.runs else "failed" if failed else "not run"
            return replace(each, runs=runs, failed=failed, state=state)

        def name(point: Mapping[str, Any]) -> str:
            return ", ".join(str(value) if axis == "data" else f"{axis} {value}" for axis, value in point.items())

        return [
            replace(self, methods=tuple(pick(each, point) for each in self.methods), point=name(point))
            for point in points
        ] or [self]

    def difference(
        self, one: MethodRuns, other: MethodRuns | None = None, key: str = "test_accuracy"
    ) -> Difference | None:
        """Compare a method with another, by default the first; None if they are the same or either was not run."""
        other = other or self.methods[0]
        values = [dict(each.values(key).dropna()) for each in (one, other)]
        if one is other or not (one.runs and other.runs):
            return None
        lost = (text for each in (one, other) for text in (each.describe_failed(key), each.describe_untuned()))
        failed = "; ".join(filter(None, lost))
        difference = Difference.of(*values) if all(values) else None
        if failed:
            return Difference(difference.value if difference else math.nan, None, failed)
        if difference is None or difference.interval is not None:
            return difference
        missing = (each.describe_missing(key) for each in (one, other))
        return difference._replace(reason="; ".join(filter(None, (*missing, difference.reason))))


def _write_seeds(seeds: Sequence[int]) -> str:
    """List seeds; for many consecutive ones, only the first and the last."""
    if len(seeds) > _LISTED and list(seeds) == [*range(seeds[0], seeds[-1] + 1)]:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _write(value: Any) -> str:
    return f"{len(value)} values" if isinstance(value, list) and len(value) > 3 else format_setting(value)


def collect(recipe: Recipe, runs: Sequence[Run], changes: Mapping[str, Any] | None = None) -> list[Results]:
    """Sort the runs of a recipe by scale and method, or only those with the settings in ``changes``.

    There is one entry per scale; if nothing was run, there is a single empty one. Scales with more epochs or steps come
    first, except that scales with fewer than half as many methods as the fullest come after the others, and scales with
    a single method last.
    """
    selection = Selection(recipe, runs, changes)
    asked = recipe.settings.change(selection.changes).to_dict()
    own = {name: asked[name] for name in recipe.settings.scale_names()}
    planned = [recipe.resolve(each).to_dict() for each in recipe.methods]
    others = {name: asked[name] for name in selection.changes if name not in {"seed", *own, *recipe.axes}}
    others = {name: value for name, value in others.items() if any(each[name] != value for each in planned)}

    scales: dict[str, dict[str, Any]] = {}  # those of finished runs
    by_scale: dict[tuple[str, str], list[Run]] = {}
    for method in recipe.methods:
        # What the method or the points of the grid set themselves belongs to no scale.
        fixed = {name: own[name] for name in (*method.changes, *recipe.axes) if name in own}
        for run in selection.list_runs(method):
            scale = run.read(own) | fixed
            by_scale.setdefault((json.dumps(scale), method.name), []).append(run)
            if run.finished:
                scales.setdefault(json.dumps(scale), scale)
    choices = {method.name: selection.list_choices(method) for method in recipe.methods}
    results = []
    for key, scale in (scales or {json.dumps(own): own}).items():
        methods = [
            _pick_runs(selection, method, by_scale.get((key, method.name), []), choices[method.name])
            for method in recipe.methods
        ]
        results.append(Results(recipe, scale, tuple(methods), changes=others))
    results = [replace(each, equal_time=_equal_time(each, results)) for each in results]
    most = max(each.size for each in results)

    def order(each: Results) -> tuple[bool, bool, int, int, int]:
        departures, length = sum(each.scale[key] != own[key] for key in own), each.epochs or each.scale.get("steps", 0)
        return each.size == 1 < most, 2 * each.size < most, -length, -each.size, departures

    return sorted(results, key=order)


def _pick_runs(selection: Selection, method: Method, runs: Sequence[Run], choices: Sequence[Choice]) -> MethodRuns:
    """Pick the runs with tuned values, else the method's own, else those with most seeds; never by test accuracy."""
    recipe, choice = selection.recipe, choices[0] if choices else None
    needs, candidates = recipe.study.needs, recipe.candidates(method)
    usable = [run for run in runs if run.finished and (needs is None or not math.isnan(run.value(needs)))]
    failed = [run for run in runs if run.failure is not None or (run.finished and needs and run.is_nan(needs))]
    if not usable:
        state: Progress = "failed" if failed and len(failed) == len(runs) else "not finished" if runs else "not run"
        return MethodRuns(method, (), state, tuple(failed), choice=choice, candidates=candidates)
    own = recipe.resolve(method, selection.changes).to_dict()
    preferred = [*(each.changes for each in choices), {key: own[key] for key in method.tune}]
    groups = group_runs(usable, method.tune)
    values, picked = min(groups, key=lambda group: (*(group[0] != each for each in preferred), -len(group[1])))
    choice = next((each for each in choices if each.changes == values), choice)

    def by_point(runs: Iterable[Run]) -> dict[str, Run]:
        """Keep one run of each seed at each point: older versions may have left a second one."""
        return {json.dumps([run.seed, run.read(recipe.axes)]): run for run in runs}

    points = by_point(reversed(picked))
    lost = by_point(run for run in failed if run.read(method.tune) == values)
    ordered = tuple(sorted(points.values(), key=lambda run: run.seed))
    never_done = tuple(run for point, run in lost.items() if point not in points)
    return MethodRuns(method, ordered, "run", never_done, values_used=values, choice=choice, candidates=candidates)


def _equal_time(results: Results, scales: Sequence[Results]) -> EqualTime | None:
    """Find what methods reach in the training time of ``recipe.equal_time``, by default the method of longest step."""
    if len(results.done) < 2 or results.recipe.axes:
        return None
    slowest = max(results.done, key=lambda each: each.time("milliseconds_per_step") or 0.0)
    reference = results.find(results.recipe.equal_time or slowest.method.name)
    seconds = reference.time()
    if not seconds:
        return None
    alike = [each for each in scales if {**each.scale, "epochs": 0} == {**results.scale, "epochs": 0}]
    reached, longer = {reference.method.name: (reference, results.epochs)}, {}
    for each in (each for each in results.methods if each is not reference):
        name, times = each.method.name, []
        for other, epochs in ((scale.find(name), scale.epochs) for scale in alike):
            time, comparable = other.time(), not each.runs or each.values_used == other.values_used
            if time and comparable and other.machines == reference.machines:
                times.append((time / seconds, other, epochs))
        times.sort(key=lambda timed: timed[0])
        within = [timed for timed in times if _SHORTEST <= timed[0] <= _LONGEST]
        missed = [timed for timed in times if _LONGEST < timed[0] <= _MISSED and timed[2] != results.epochs]
        if within:
            reached[name] = within[-1][1:]
        elif times and times[0][0] > _LONGEST:
            longer[name] = times[0][1]
        elif missed:
            longer[name] = missed[0][1]
    return EqualTime(reference.method, seconds, reached, longer)


def list_others(
    recipe: Recipe, runs: Sequence[Run], changes: Mapping[str, Any] | None = None
) -> list[tuple[dict[str, Any], list[Run]]]:
    """List the finished runs of a recipe that are not in its results, grouped by the changes that would show them.

    If there are results with the settings in ``changes``, only runs with these settings are listed.
    """
    selection, points = Selection(recipe, runs, changes), recipe.points()

    def list_files(list_runs: Callable[[Method], list[Run]]) -> set[Path]:
        return {run.file for method in recipe.methods for run in list_runs(method)}

    shown, methods = list_files(selection.list_runs), {each.name: each for each in recipe.methods}
    asked = recipe.settings.change(selection.changes).to_dict()
    needed = {name: asked[name] for name in selection.changes} if shown else {}
    known = shown | list_files(selection.list_tuning_runs) | list_files(Selection(recipe, runs).list_tuning_runs)
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run in selection.runs:
        method = methods.get(run.method)
        if run.recipe != recipe.name or not run.finished or run.file in known or method is None:
            continue
        if run.read(needed) != needed:
            continue
        usual, point = recipe.resolve(method).to_dict(), run.read(recipe.axes)
        free = {"seed", *recipe.settings.scale_names()} - method.changes.keys() | method.tune.keys()
        differs = {name for name, value in run.settings.items() if value != usual[name]} - {*free, *point}
        changed = needed | {name: run.settings[name] for name in run.settings if name in differs}
        changed |= {} if point in points else point
        groups.setdefault(json.dumps(changed), (changed, []))[1].append(run)
    return sorted(groups.values(), key=lambda group: -len(group[1]))
