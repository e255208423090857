"""Which of all runs belong to a recipe's methods, and what tuning chose.

Equal settings are one run, whichever recipe it was made for: it is the settings that decide, not a run's header.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.runs import Run


def group_runs(runs: Iterable[Run], names: Iterable[str]) -> list[tuple[dict[str, Any], list[Run]]]:
    """Group runs by some of their settings, in order of appearance."""
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
