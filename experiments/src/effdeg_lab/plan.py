"""What a sweep has to do: the runs that tune, the runs that results come from, and those of equal training time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.results import choose
from effdeg_lab.runs import Run, RunFolder
from effdeg_lab.settings import Settings

_SAME_TIME = 0.05
"""Training times that differ by less than this share are equal."""


@dataclass(frozen=True)
class Planned:
    """One run of a sweep.

    Attributes:
        method: The name of its method.
        settings: Its settings.
        purpose: Whether it tunes, gives the result, or gives the result after as long as another method trained.
    """

    method: str
    settings: Settings
    purpose: Literal["tuning", "final", "equal time"]


@dataclass(frozen=True)
class Plan:
    """What a user asks of a sweep.

    Attributes:
        recipe: The recipe.
        methods: The names of its methods; all if empty.
        seeds: The seeds; the recipe's if empty.
        changes: Changes to all runs, which win over the recipe and over tuning.
        tune: Whether to tune what has not been tuned yet. Values that were tuned before are used in any case.
        tuning_changes: Changes to the runs that tune alone.
        equal_time: The method whose training time all others get as well; None for no such comparison.
    """

    recipe: Recipe
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    tune: bool = True
    tuning_changes: Mapping[str, Any] = field(default_factory=dict)
    equal_time: str | None = None

    def check(self, data: Path | None) -> None:
        """Raise if anything is wrong with the plan: methods, settings, tuning, or the data in a folder."""
        planned = [*self.plan_tuning(), *self.plan_final([])]
        if self.equal_time is not None:
            self.recipe.method(self.equal_time)
            if not hasattr(self.recipe.settings, "epochs"):
                raise ValueError(
                    f"--equal-time {self.equal_time}: the runs of {self.recipe.name} have no setting epochs, by which "
                    "they could train for longer."
                )
            if self.equal_time not in {each.method for each in planned}:
                raise ValueError(
                    f"--equal-time {self.equal_time}: {self.equal_time} is not among the methods of this sweep; add "
                    f"--method {self.equal_time}."
                )
        check_data([each.settings for each in planned], data)

    def plan_tuning(self) -> list[Planned]:
        """List the runs that tune, each with one seed; methods of which a user sets a tuned value are not tuned."""
        changes = self._get_tuning()
        if not self.tune:
            return []
        return _unique(
            Planned(method.name, self.recipe.resolve(method, {**changes, **candidate}), "tuning")
            for method in self._get_methods()
            if not method.tune.keys() & self.changes.keys()
            for candidate in self.recipe.candidates(method)
        )

    def plan_final(self, runs: Sequence[Run]) -> list[Planned]:
        """List the runs that results come from: methods × grid × seeds, with the values that did best in tuning."""

        def list_all() -> Iterator[Planned]:
            for method in self._get_methods():
                tuned = self._get_tuned_values(method, runs)
                for point in self.recipe.points():
                    for seed in self.seeds or self.recipe.seeds:
                        changes = {**point, "seed": seed, **tuned, **self.changes}
                        yield Planned(method.name, self.recipe.resolve(method, changes), "final")

        return _unique(list_all())

    def plan_equal_time(self, finals: Sequence[Planned], folder: RunFolder) -> tuple[list[Planned], list[str]]:
        """List the runs that give every method the training time of one, at the pace that the method was seen to have.

        Times are those of the runs with the smallest seed at each point of the grid, so that all seeds train equally
        long.

        Returns:
            The runs, except for those whose time is right already; and the methods whose time is not known.
        """
        first: dict[tuple[str, tuple[Any, ...]], Settings] = {}
        for each in sorted(finals, key=lambda each: each.settings.seed):
            first.setdefault((each.method, self._get_point(each)), each.settings)
        seconds = dict(zip(first, map(_get_seconds, folder.find_all(list(first.values()))), strict=True))
        planned, unknown = [], []
        for each in finals:
            point = self._get_point(each)
            own, given = seconds[each.method, point], seconds.get((str(self.equal_time), point))
            if own and given:
                before = each.settings.to_dict()["epochs"]
                epochs = max(1, round(before * given / own))
                if abs(given / own - 1) > _SAME_TIME and epochs != before:
                    settings = each.settings.change({"epochs": epochs})
                    planned.append(replace(each, settings=settings, purpose="equal time"))
            elif each.method != self.equal_time:
                unknown.append(each.method)
        return _unique(planned), list(dict.fromkeys(unknown))

    def _get_methods(self) -> list[Method]:
        return [self.recipe.method(name) for name in self.methods] or list(self.recipe.methods)

    def _get_tuning(self) -> dict[str, Any]:
        """Return how the runs that tune differ from the recipe's settings."""
        tuning = {**self.recipe.tuning, **self.tuning_changes}
        if self.recipe.tuning:
            replace(self.recipe, methods=tuple(self._get_methods()), equal_time=None).check_tuning(tuning)
        return {**self.changes, **tuning}

    def _get_tuned_values(self, method: Method, runs: Sequence[Run]) -> Mapping[str, Any]:
        if not (runs and method.tune and self.recipe.tuning) or method.tune.keys() & self.changes.keys():
            return {}
        choice = choose(self.recipe, method, runs, self._get_tuning())
        return choice.changes if choice else {}

    def _get_point(self, planned: Planned) -> tuple[Any, ...]:
        return tuple(getattr(planned.settings, key) for key in self.recipe.grid)


def check_data(settings: Iterable[Settings], folder: Path | None) -> None:
    """Raise unless the data sets that settings name in a field ``data`` are in a folder."""
    names = dict.fromkeys(str(each.to_dict()["data"]) for each in settings if hasattr(each, "data"))
    if names:
        from effdeg_lab.data import check

        for name in names:
            check(name, folder)


def _unique(planned: Iterable[Planned]) -> list[Planned]:
    """Keep the first of runs with equal settings."""
    found: dict[str, Planned] = {}
    for each in planned:
        found.setdefault(each.settings.hash, each)
    return list(found.values())


def _get_seconds(run: Run | None) -> float | None:
    """Return how long a run trained, if it is finished, says so, and had its GPU to itself."""
    if run is None or run.summary is None or run.environment.get("shared"):
        return None
    return run.summary.get("seconds")
