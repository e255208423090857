"""All recipes by name: every file of ``effdeg.lab.recipes``, and a user's own by ``package.module:RECIPE``."""

import importlib
import pkgutil
import re
from dataclasses import replace
from functools import cache
from typing import Any

from effdeg._utils.checks import suggest
from effdeg.io import find_code
from effdeg.lab.recipe import Recipe


@cache
def _all() -> dict[str, Recipe[Any]]:
    package = importlib.import_module("effdeg.lab.recipes")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    found: list[Recipe[Any]] = [module.RECIPE for module in modules]
    return {recipe.name: recipe for recipe in sorted(found, key=_place)}


def _place(recipe: Recipe[Any]) -> tuple[int, int, str]:
    """Sort by the paper's tables, then by its figures; what belongs to neither follows by name."""
    for kind, word in enumerate(("Table", "Figure")):
        if number := re.match(rf"{word}s? (\d+)", recipe.paper):
            return kind, int(number[1]), recipe.name
    return 2, 0, recipe.name


def all_recipes() -> dict[str, Recipe[Any]]:
    """Return the recipes by name, in the order of the paper's tables and figures."""
    return dict(_all())


def find_recipe(name: str) -> Recipe[Any]:
    """Find a recipe.

    Args:
        name: Its name, or ``package.module:RECIPE`` for one of your own, which is looked for where you stand as well as
            among what is installed.

    Returns:
        The recipe. One of your own goes by what was given here, so that other processes find it too.
    """
    if ":" in name:
        return replace(_own(name), name=name)
    if name not in _all():
        raise ValueError(
            f"{name!r} is not a recipe. {suggest(name, _all())} One of your own is given as package.module:RECIPE."
        )
    return _all()[name]


def _own(source: str) -> Recipe[Any]:
    found = find_code(source)
    if not isinstance(found, Recipe):
        raise ValueError(f"{source!r} is a {type(found).__name__}; expected an effdeg.lab.Recipe.")
    return found
