"""Find the runs of a method among all runs, group runs by their settings, and read what tuning chose."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.runs import Run
from effdeg_lab.core.settings import Settings


def matching(
    runs: Iterable[Run],
    recipe: Recipe,
    method: Method,
    *,
    tuning: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> list[Run]:
    """Find the runs of a method, finished or not: at any scale, any tuned value, and every point of the recipe's grid.

    Settings of scale that the method itself sets must be equal. With ``tuning``, find the runs that tune the method, on
    held-out examples. The settings in ``changes`` must be equal, except for those of scale in tuning runs.
    """
    changes = changes or {}
    together = {**(recipe.tuning if tuning else {}), **changes}
    if tuning and together.get("held_out", 0) < 1:
        return []
    kind, settings = type(recipe.settings), recipe.resolve(method, together).to_dict()
    scale = {"seed", *kind.scale_names()}
    free = (scale - method.changes.keys() | method.tune.keys()) - changes.keys() | (scale if tuning else set())
    required = {key: value for key, value in settings.items() if key not in free and key not in recipe.axes}
    fixed = {axis: settings[axis] for axis in recipe.axes if axis in changes}
    points = [point | fixed for point in recipe.points()]
    name, defaults = kind.kind_name(), kind.complete({})

    def agrees(run: Run) -> bool:
        return all(run.settings.get(key, defaults.get(key)) == value for key, value in required.items())

    # Completing settings is slow, and most runs are ruled out without it.
    complete = [(run, kind.complete(run.settings)) for run in runs if run.kind == name and agrees(run)]
    # An unknown setting may have changed anything.
    known = [(run, own) for run, own in complete if own.keys() == settings.keys()]
    return [run for run, own in known if {axis: own[axis] for axis in recipe.axes} in points]


def read_settings(run: Run, kind: type[Settings], names: Iterable[str]) -> dict[str, Any]:
    """Return some settings of a run, with defaults for those that are newer than the run."""
    complete = kind.complete(run.settings)
    return {name: complete[name] for name in names}


def group_runs(
    runs: Iterable[Run], kind: type[Settings], names: Iterable[str]
) -> list[tuple[dict[str, Any], list[Run]]]:
    """Group runs by some of their settings, in order of appearance."""
    groups: dict[str, tuple[dict[str, Any], list[Run]]] = {}
    for run in runs:
        values = read_settings(run, kind, names)
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


def find_tuning_runs(
    runs: Iterable[Run],
    recipe: Recipe,
    method: Method,
    changes: Mapping[str, Any] | None = None,
    held_out: int | None = None,
) -> list[Run]:
    """Find the runs that tune a method, finished or not, with any number of held-out examples or a given one.

    If only one value was run with a number of held-out examples other than the recipe's or the given one, that is not
    tuning, and the runs are left out.
    """
    if not recipe.tuning:
        return []
    sizes: dict[int, list[Run]] = {}
    for run in runs:
        sizes.setdefault(run.settings.get("held_out", 0), []).append(run)
    found, usual = list[Run](), held_out or recipe.tuning["held_out"]
    for size in sizes if held_out is None else [held_out]:
        own = matching(sizes.get(size, ()), recipe, method, tuning=True, changes={**(changes or {}), "held_out": size})
        if size == usual or len(group_runs(own, type(recipe.settings), method.tune)) > 1:
            found += own
    return found


def list_choices(
    recipe: Recipe,
    method: Method,
    runs: Iterable[Run],
    changes: Mapping[str, Any] | None = None,
    held_out: int | None = None,
) -> list[Choice]:
    """List the values that tuning chose for a method, by its finished runs, the most relevant choice first.

    There is one choice for each scale and number of held-out examples. Those with a single value are used only if there
    are no others: that value was not tuned and may come from another recipe's run on held-out examples. The recipe's
    number of held-out examples comes first, then more epochs.
    """
    kind, choices = type(recipe.settings), []
    tuned = find_tuning_runs(runs, recipe, method, changes, held_out) if method.tune else []
    for scale, found in group_runs((run for run in tuned if run.finished), kind, ("held_out", *kind.scale_names())):
        groups = group_runs(found, kind, method.tune)
        groups.sort(key=lambda group: [*map(get_position, method.tune.values(), group[0].values())])
        # A run without an accuracy went wrong and must not be chosen, so it scores 0.
        scores = [np.nan_to_num([run.value("test_accuracy") for run in found]) for _, found in groups]
        tried = [(values, statistics.fmean(score)) for (values, _), score in zip(groups, scores, strict=True)]
        choice = Choice(*max(tried, key=lambda pair: pair[1]), tried, scale["held_out"], int(scale.get("epochs", 0)))
        choices.append((choice, len(found)))
    several = [each for each in choices if len(each[0].tried) > 1] or choices
    usual = recipe.tuning.get("held_out")
    several.sort(key=lambda each: (each[0].held_out == usual, each[0].epochs, each[1]), reverse=True)
    return [choice for choice, _ in several]
