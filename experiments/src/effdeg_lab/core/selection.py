"""Find the runs of a method among all runs, and group runs by their settings."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
