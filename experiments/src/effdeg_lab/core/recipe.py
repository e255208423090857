"""What an experiment is: settings, methods, what the paper found, how it is tuned and repeated, and what it shows."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from effdeg.io import find_code
from effdeg_lab.core.code_hash import hash_code
from effdeg_lab.core.runs import Job, Run
from effdeg_lab.core.settings import Settings, suggest
from effdeg_lab.show.tables import Table
from effdeg_lab.show.verdicts import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from effdeg_lab.data import check_all

SMOKE = "@smoke"
"""What the name of a recipe's smoke test ends with."""
SMOKE_NOTE = "A smoke test, on made-up data: its numbers mean nothing."


@dataclass(frozen=True)
class Reported:
    """A number of the paper, in the units of its table; ``std`` is None where the paper gives no spread."""

    mean: float
    std: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}")


@dataclass(frozen=True)
class Method:
    """One of the things that a recipe compares: one row of its table."""

    name: str  # on the command line (--method) and in the names of runs
    title: str  # in tables
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the recipe's settings
    paper: Reported | None = None
    tune: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # the values to try; until then, see changes


@dataclass(frozen=True)
class StudyFigure:
    """A figure that can be drawn in either theme, and its caption."""

    name: str
    caption: str
    draw: "Callable[[str], Figure]"


class Study:
    """Turns the runs of a recipe into a verdict on its claim, tables and figures, which people interpret.

    It states its claim as a small function from numbers to a verdict with an interval. Its methods are called only with
    ``Results`` in which something was run.
    """

    needs: ClassVar[str | None] = None  # a number that every good run has; runs without it are left out
    needs_all: ClassVar[bool] = True  # whether the claim is not decided if some runs failed; a pool can do without them

    def judge(self, results: Any) -> Verdict:
        """Judge the claim, which is not decided as long as some runs of a method have failed."""
        verdict = self.claim(results) if results.done else Verdict("not run")
        failed = "; ".join(filter(None, (each.describe_failed() for each in results.methods)))
        if not failed:
            return verdict
        decides = self.needs_all and verdict.word in {"holds", "does not hold"}
        return replace(verdict, word="not decided" if decides else verdict.word, reason=verdict.reason or failed)

    def claim(self, results: Any) -> Verdict:
        """Judge the claim."""
        return Verdict("no claim")

    def tables(self, results: Any) -> list[Table]:
        """Return the tables, the most important first."""
        return []

    def figures(self, results: Any) -> list[StudyFigure]:
        """Return the figures, the most important first; only their ``draw`` may import matplotlib."""
        return []

    def headline(self, run: Run) -> str:
        """Summarize a finished run in a few words."""
        return "finished"


@dataclass(frozen=True)
class Recipe:
    """An experiment, as data."""

    name: str
    title: str  # what it is, in one line
    paper: str  # the table or figure of the paper
    expects: str  # what the paper found
    cost: str  # how long one run takes, and on what
    settings: Settings  # those that all methods share
    run: Callable[[Any, Job], None]  # carries out one run
    study: Study  # turns runs into a verdict, tables and figures
    methods: tuple[Method, ...]  # what is compared; the first is the reference
    run_stacked: Callable[[Sequence[Job]], None] | None = None  # carries out runs with the same stack_key
    # Raises, before any run, unless runs with these settings find what they read and can be carried out.
    check_data: Callable[[Iterable[Any], Path | None], None] = check_all
    departs: str = ""  # where the settings are not the paper's, and why; beyond the paper, what to know about them
    seeds: tuple[int, ...] = (0, 1, 2)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # every combination is run, as for a pool
    # Every one of these is run, as for a pool by random search: changes to the settings, all of the same ones.
    search: tuple[Mapping[str, Any], ...] = ()
    tuning: Mapping[str, Any] = field(default_factory=dict)  # changes in runs that tune: held_out, never 0, and epochs
    equal_time: str | None = None  # the method whose training time the others are compared at
    paper_epochs: int | None = None  # of the paper's runs, if they are not the recipe's

    @cached_property
    def code(self) -> str | None:
        """A hash of the code of its runs, unless that is the lab's own, from ``run`` and the settings' class."""
        return hash_code(filter(None, (self.run, self.run_stacked, type(self.settings))))

    @property
    def source(self) -> str:
        """Who expects what the recipe expects."""
        return "The paper" if self._in_paper else "Expected"

    @property
    def departs_heading(self) -> str:
        """What a reader sees before ``departs``."""
        return "Differs from the paper" if self._in_paper else "Setup"

    @property
    def _in_paper(self) -> bool:
        return not self.paper.startswith(("none", "not in the paper"))

    def __post_init__(self) -> None:
        names = [method.name for method in self.methods]
        if not names or len({*names}) < len(names):
            raise ValueError(f"{self.name} has the methods {names}: it needs at least one, each with its own name.")
        self._check_points()
        if self.tuning:
            self._check_tuning()
        for method in self.methods:
            for changes in (*self.points(), *({**self.tuning, **each} for each in self.candidates(method))):
                self.resolve(method, changes)
        if self.equal_time is not None:
            self.method(self.equal_time)

    def _check_tuning(self) -> None:
        """Raise unless methods are tuned on held-out examples, by settings that vary."""
        held_out = self.tuning.get("held_out", 0)
        if held_out < 1:
            raise ValueError(f"held_out={held_out} would tune on the test set: hold out training examples, 1 or more.")
        for method in self.methods:
            for key in method.tune.keys() & self.tuning.keys():
                fixed = f"{key}={self.tuning[key]}"
                raise ValueError(f"{fixed} cannot be fixed in the runs that tune {method.name!r}: they vary it.")

    def method(self, name: str) -> Method:
        """Find a method by its name."""
        methods = {method.name: method for method in self.methods}
        if name not in methods:
            raise ValueError(f"{name!r} is not a method of {self.name}. {suggest(name, methods)}")
        return methods[name]

    def resolve(self, method: Method, changes: Mapping[str, Any] | None = None) -> Settings:
        """Return the settings of one run: the recipe's, changed by the method, changed by a user."""
        return self.settings.change({**method.changes, **(changes or {})})

    @property
    def axes(self) -> list[str]:
        """Names of the settings in which points differ, those of the grid first, then those of the search."""
        return [*self.grid, *(self.search[0] if self.search else ())]

    def points(self) -> list[dict[str, Any]]:
        """List the combinations of the grid, each with every point of the search; a single empty one without both."""
        points = [{**one, **other} for one in _combine(self.grid) for other in self.search or ({},)]
        return [{axis: point[axis] for axis in self.axes} for point in points]

    def candidates(self, method: Method) -> list[dict[str, Any]]:
        """List the settings to try for a method; none if nothing is tuned."""
        return _combine(method.tune) if method.tune and self.tuning else []

    def _check_points(self) -> None:
        for point in self.search:
            if point.keys() != self.search[0].keys():
                given, first = ", ".join(point), ", ".join(self.search[0])
                raise ValueError(f"{self.name}: the points of a search set the same settings, not {first} and {given}.")
            if twice := point.keys() & self.grid.keys():
                raise ValueError(f"{self.name}: {', '.join(sorted(twice))} cannot be in the grid and in the search.")
        if any(point in self.search[:place] for place, point in enumerate(self.search)):
            raise ValueError(f"{self.name}: a point of the search is listed twice.")

    @property
    def smoke(self) -> bool:
        """Whether it is the smoke test of a recipe."""
        return self.name.endswith(SMOKE)

    def shrink(self) -> "Recipe":
        """Return the smoke test: the same methods, with tiny networks and short runs, and few values, points and seeds.

        Methods that differ only in what is shortened, such as epochs, then share their runs.
        """
        shrink = type(self.settings).shrink
        settings = shrink(self.settings.to_dict())

        def choose(values: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
            """Keep up to two values of each setting, the recipe's own among them."""
            small = {key: dict.fromkeys(shrink({key: value})[key] for value in values[key]) for key in values}
            return {
                key: tuple(sorted(tried, key=lambda value: value != settings[key])[:2]) for key, tried in small.items()
            }

        methods = (replace(each, changes=shrink(each.changes), tune=choose(each.tune)) for each in self.methods)
        points = [shrink(point) for point in self.search]
        return replace(
            self,
            name=f"{self.name}{SMOKE}",
            settings=self.settings.change(settings),
            methods=tuple(methods),
            seeds=self.seeds[:2],
            grid=choose(self.grid),
            search=tuple(point for place, point in enumerate(points) if point not in points[:place])[:4],
            tuning=shrink(self.tuning),
        )


def _combine(values: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(values, each, strict=True)) for each in product(*values.values())]


@cache
def all_recipes() -> Mapping[str, Recipe]:
    """Return the recipes by name, in the order of the paper's tables and figures."""
    package = importlib.import_module("effdeg_lab.experiments")
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    recipes = [recipe for name in names for recipe in getattr(importlib.import_module(name), "RECIPES", ())]
    return {recipe.name: recipe for recipe in sorted(recipes, key=_place)}


def _place(recipe: Recipe) -> tuple[str, int, str]:
    """Sort by the paper's tables, then by its figures, then by name."""
    kind, number = (re.findall(r"^(Table|Figure)s? (\d+)", recipe.paper) or [("", 0)])[0]
    return {"Table": "1", "Figure": "2"}.get(kind, "3"), int(number), recipe.name


def find_recipe(name: str) -> Recipe:
    """Find a recipe by its name, or one of your own by ``package.module:RECIPE``, under which others find it too.

    With ``@smoke`` after its name, find its smoke test.
    """
    if name.endswith(SMOKE):
        return find_recipe(name.removesuffix(SMOKE)).shrink()
    if ":" in name:
        recipe = find_code(name)
        if not isinstance(recipe, Recipe):
            raise ValueError(f"{name!r} is a {type(recipe).__name__}; expected an effdeg_lab.Recipe.")
        return replace(recipe, name=name)
    recipes = all_recipes()
    if name not in recipes:
        hint = "One of your own is given as package.module:RECIPE."
        raise ValueError(f"{name!r} is not a recipe. {suggest(name, recipes, command='effdeg-lab list')} {hint}")
    return recipes[name]
