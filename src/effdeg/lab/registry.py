"""All recipes by name: every file of ``effdeg.lab.recipes``, and a user's own by ``package.module:RECIPE``."""

import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from typing import Any

from effdeg._checks import suggest
from effdeg.io import find_code
from effdeg.lab.recipe import Recipe

# The table of methods first, then what varies it, then pools, then studies of a known truth; recipes that are not named
# here follow by their names.
_FIRST = (
    "cifar10-methods",
    "cifar10-learning-rate",
    "cifar10-configurations",
    "cifar10-random-pixels",
    "cifar10-basis",
    "cifar10-layers",
    "cifar10-sampling",
    "cifar10-components",
    "cifar10-cost",
    "cifar10-resnet18-pool",
    "cifar10-vit-pool",
    "digits-methods",
    "pnn",
    "path-degrees",
    "grokking",
    "mnist-cifar",
    "estimator",
    "digits-estimators",
    "cifar10-estimators",
)


@cache
def _all() -> dict[str, Recipe[Any]]:
    package = importlib.import_module("effdeg.lab.recipes")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    found = {module.RECIPE.name: module.RECIPE for module in modules}
    places = {name: place for place, name in enumerate(_FIRST)}
    return {name: found[name] for name in sorted(found, key=lambda name: (places.get(name, len(places)), name))}


def all_recipes() -> dict[str, Recipe[Any]]:
    """Give the recipes by their names, in the order of the paper's argument."""
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
