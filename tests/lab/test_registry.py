"""Recipes found by their names."""

import importlib
import re
import sys
from dataclasses import replace

import pytest

from effdeg.lab import registry
from effdeg.lab.registry import all_recipes, find_recipe

package = importlib.import_module("effdeg.lab.recipes")
OWN = """
from dataclasses import replace
from effdeg.lab.recipes.digits_methods import RECIPE

RECIPE = replace(RECIPE, name="mine", title="of my own")
LIST = []
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module, in the folder where the user stands."""
    (tmp_path / "own_experiments.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "own_experiments"
    sys.modules.pop("own_experiments", None)


def test_all_recipes_are_found_in_their_order():
    assert list(all_recipes()) == [
        "cifar10-methods",  # Table 1
        "cifar10-random-pixels",  # Table 5
        "cifar10-basis",
        "cifar10-layers",
        "cifar10-sampling",
        "cifar10-components",
        "cifar10-configurations",
        "mnist-cifar",
        "pnn",  # Table 12
        "cifar10-resnet18-pool",  # Figure 2
        "grokking",  # Figure 4
        "cifar10-vit-pool",  # Figure 7
        "cifar10-cost",
        "cifar10-estimators",
        "cifar10-learning-rate",
        "digits-estimators",
        "digits-methods",
        "estimator",
        "path-degrees",
    ]
    for name, found in all_recipes().items():
        assert found.name == name
        assert find_recipe(name) is found


def test_a_new_file_is_a_new_recipe(tmp_path, monkeypatch):
    (tmp_path / "a_later_one.py").write_text(OWN.replace("mine", "a-later-one"))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "_all", registry._all.__wrapped__)
    assert "a-later-one" in all_recipes()
    assert find_recipe("a-later-one").title == "of my own"
    del sys.modules[f"{package.__name__}.a_later_one"], package.a_later_one


def test_what_is_given_out_cannot_spoil_the_registry():
    all_recipes().clear()
    assert "digits-methods" in all_recipes()


def test_a_recipe_of_ones_own(own):
    found = find_recipe(f"{own}:RECIPE")
    assert found == replace(find_recipe("digits-methods"), name=f"{own}:RECIPE", title="of my own")
    assert find_recipe(found.name) == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar10-method", "'cifar10-method' is not a recipe. Did you mean 'cifar10-methods'"),
        ("xyz", "'xyz' is not a recipe. Choose from: 'cifar10-methods', "),
        (
            "own_experiments:RECIPES",
            "'own_experiments:RECIPES': own_experiments has no 'RECIPES'. Did you mean 'RECIPE'",
        ),
        ("own_experiment:RECIPE", "'own_experiment:RECIPE': there is no Python module 'own_experiment' here"),
        ("own_experiments:LIST", "'own_experiments:LIST' is a list; expected an effdeg.lab.Recipe."),
        ("a b:RECIPE", "'a b:RECIPE': 'a b' is not the name of a Python module"),
    ],
)
def test_names_that_lead_nowhere(own, name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find_recipe(name)
