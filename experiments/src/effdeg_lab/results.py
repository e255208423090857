"""From runs on disk to what a recipe's study looks at: the finished runs of each method, at one scale."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.runs import Run


@dataclass(frozen=True)
class Choice:
    """How the tuning of a method went: the values that did best on held-out examples, and all that were tried."""

    changes: dict[str, Any]
    score: float
    tried: list[tuple[dict[str, Any], float]]
    epochs: int


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and their standard deviation, which a single seed does not have."""

    mean: float
    std: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """How far one method is above another: a 95% interval by Student's t, paired by seed where they share seeds."""

    value: float
    interval: tuple[float, float] | None
    paired: bool


@dataclass(frozen=True, eq=False)
class MethodRuns:
    """The runs of one method at one scale.

    Attributes:
        method: The method.
        runs: Its finished runs, by seed; of a pool, those of all points of the grid.
        state: Whether it was run; if not, whether it was tried.
        failure: The last line of the error that ended it, if it failed.
        values_used: The tuned settings, with the values of these runs.
        choice: How tuning went, if the method was tuned.
        also: Other values that it was run with at the same scale, and their accuracies.
    """

    method: Method
    runs: tuple[Run, ...]
    state: Literal["run", "not run", "not finished", "failed"]
    failure: str | None = None
    values_used: Mapping[str, Any] | None = None
    choice: Choice | None = None
    also: tuple[tuple[Mapping[str, Any], Spread], ...] = ()

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The summaries as a data frame, indexed by seed, with dotted columns such as ``effective_degree.value``."""
        raise NotImplementedError

    def values(self, key: str) -> "pd.Series[float]":
        """Return a number of the summaries by seed."""
        raise NotImplementedError

    def spread(self, key: str = "test_accuracy") -> Spread | None:
        """Return a number's mean over seeds and standard deviation; None if the method was not run."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Results:
    """What was run of a recipe at one scale: equal epochs, examples and precision, so that methods can be compared.

    Attributes:
        recipe: The recipe.
        scale: The settings of scale that all these runs share.
        methods: Every method of the recipe, run or not.
    """

    recipe: Recipe
    scale: Mapping[str, Any]
    methods: tuple[MethodRuns, ...]

    @property
    def done(self) -> list[MethodRuns]:
        """The methods that were run."""
        return [each for each in self.methods if each.runs]

    @property
    def seeds(self) -> list[int]:
        """All seeds that were run."""
        return sorted({run.seed for each in self.methods for run in each.runs})

    @property
    def machines(self) -> list[str]:
        """All machines that the runs were done on."""
        return list(dict.fromkeys(run.machine for each in self.methods for run in each.runs))

    @property
    def heading(self) -> str:
        """Epochs, seeds and machines, in one line."""
        raise NotImplementedError

    @property
    def departures(self) -> list[str]:
        """How the scale differs from the recipe's, as ``epochs 36 (recipe: 300)`` each."""
        raise NotImplementedError

    def find(self, name: str) -> MethodRuns:
        """Find a method by its name."""
        return next(each for each in self.methods if each.method.name == name)

    def difference(
        self, one: MethodRuns, other: MethodRuns | None = None, key: str = "test_accuracy"
    ) -> Difference | None:
        """Compare a method with another, by default the first; None if they are the same or either was not run."""
        raise NotImplementedError


def collect(recipe: Recipe, runs: Sequence[Run], changes: Mapping[str, Any] | None = None) -> list[Results]:
    """Sort the runs of a recipe by scale and method, the scale that says most first.

    Args:
        recipe: The recipe.
        runs: All runs of a folder, whichever recipes they were made for.
        changes: Keep runs with these settings only.

    Returns:
        One entry for each scale; a single one in which nothing was run if there is nothing.
    """
    raise NotImplementedError


def matching(
    runs: Iterable[Run],
    recipe: Recipe,
    method: Method,
    *,
    tuning: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> list[Run]:
    """Find the runs of a method, finished or not: of any scale, any tuned value, and every point of the grid."""
    raise NotImplementedError


def choose(
    recipe: Recipe, method: Method, runs: Iterable[Run], changes: Mapping[str, Any] | None = None
) -> Choice | None:
    """Choose the tuned values of a method by the finished runs that tune it; None if there are none."""
    raise NotImplementedError
