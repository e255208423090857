"""The recipes: found by name, every run that they ask for is possible, and equal runs are one run."""

import re
import sys
from dataclasses import replace
from itertools import product

import pytest
import toys

from effdeg_lab.core.recipe import Method, all_recipes, find_recipe
from effdeg_lab.engine import Training, check_training

RECIPES = list(all_recipes().values())
# The paper's tables in percent, of ViT-Tiny on CIFAR-10 if not said otherwise: means, and standard deviations where it
# gives them.
PAPER = {
    "methods": "plain 87.80 ± 1.17, mixup 88.83 ± 1.48, sam 87.85 ± 1.27, asam 87.85 ± 1.24, jacobian 87.81 ± 0.17, "
    "ed-without-anchors 90.00 ± 0.60, ed 90.18 ± 0.14",  # Table 1, but ED of Table 10
    "random-pixels": "plain 87.80 ± 1.17, ed 90.18 ± 0.14, random-pixels 87.31 ± 0.80",  # Table 5, but ED of Table 10
    "basis": "chebyshev 90.18 ± 0.14, legendre 89.89 ± 1.29",  # Table 6
    "layers": "plain 86.49, input 89.99, embedding 88.92, block-1 88.18",  # Table 7
    "sampling": "cosine-4 89.99, chebyshev-4 89.47, uniform-4 89.23, "
    "cosine-15 89.90, chebyshev-15 90.40, uniform-15 78.42",  # Table 8
    "components": "none 89.99, 3 89.84, 2 89.90, 1 88.75",  # Table 9
    "imagenet-vit-original": "plain 71.37 ± 0.17, ed 72.76 ± 0.16",  # Table 3, ViT-S/16 on ImageNet
    "imagenet-vit-strong": "plain 74.42 ± 0.13, ed 75.01 ± 0.11",
    "contest": "plain 87.80 ± 1.17, mixup 88.83 ± 1.48, ed 90.18 ± 0.14",  # Table 1, but ED of Table 10
    "glue-rte": "plain 70.28 ± 1.73, mixup 70.28 ± 3.07, ed 71.12 ± 1.96",  # Table 4, BERT-base
    "glue-mrpc": "plain 86.74 ± 1.06, mixup 86.30 ± 1.22, ed 87.66 ± 0.90",
    "glue-cola": "plain 62.31 ± 1.01, mixup 61.04 ± 0.91, ed 62.45 ± 1.01",
    "clip-finetune-b32": "plain 76.20 ± 0.02, ed 77.14 ± 0.05",  # Table 2, ImageNet
    "clip-finetune-b16": "plain 81.35 ± 0.11, ed 82.19 ± 0.03",
    "configurations": "efficient 90.18 ± 0.14, precise 90.82 ± 0.11",  # Table 10
}
# Settings of the paper's runs; of what it leaves open, those of the code that it names.
ED = {"nodes": 4, "degree": 3, "pairs": 0.5, "anchor": "labels"}
IMAGENET = ED | {"epochs": 90, "batch": 1024, "optimizer": "adamw"}
IMAGENET |= {"weight": 3.0, "components": 3, "sampling": "cosine"}
CLIP = ED | {"epochs": 10, "batch": 512, "lr": 3e-5, "weight": 2.0, "components": 3, "ramp": 0.0, "smoothing": 0.0}
CLEANRL = {"lr": 5e-4, "discount": 0.999, "trace": 0.95, "rollout": 256, "epochs": 3, "minibatches": 8, "clip": 0.2}
CLEANRL |= {"entropy": 0.01, "value": 0.5, "max_norm": 0.5, "pooling": "flatten"}
PROCGEN = CLEANRL | {"weight": 0.01, "nodes": 4, "degree": 3, "components": 3, "anchor": "none", "pairs": 2048}
PROCGEN |= {"steps": 50_000_000, "ramp": 1 / 6}
POOL = {"measure_paths": 400, "measure_nodes": 200, "measure_degree": 40, "proxies": ["all"]}
SETTINGS = {
    "cifar10-methods": {"epochs": 300, "batch": 256, "weight_decay": 0.1, "decay": "cosine", "augment": "crop-flip"},
    "cifar10-resnet18-pool": POOL,
    "cifar10-vit-pool": POOL,
    "imagenet-vit-original": IMAGENET,
    "imagenet-vit-strong": IMAGENET,
    "glue-rte": ED | {"lr": 5e-5, "batch": 32, "epochs": 10, "weight": 0.5, "degree_weights": "degree"},
    "glue-mrpc": ED | {"lr": 5e-5, "batch": 16, "epochs": 10, "weight": 0.5},
    "glue-cola": ED | {"lr": 2e-5, "batch": 64, "epochs": 20, "weight": 0.3},
    "clip-finetune-b32": CLIP | {"model": "clip-b32", "start_from": "pretrained", "pixels": 224},
    "clip-finetune-b16": CLIP | {"model": "clip-b16"},
    "procgen-starpilot": PROCGEN,
    "procgen-dodgeball": PROCGEN | {"ramp": 0.0},
    "procgen-fruitbot": PROCGEN | {"steps": 100_000_000},
}
SEEDS = {"cifar10-methods": 3, "imagenet-vit-strong": 3, "glue-rte": 25, "glue-cola": 9, "procgen-jumper": 3}
RATES = {"cifar10-resnet18-pool": (0.1, 0.01, 0.001), "cifar10-vit-pool": (0.005, 0.001, 0.0005)}
OWN = "from dataclasses import replace\nfrom toys import RECIPE\nRECIPE = replace(RECIPE, name='mine')\nLIST = []\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_recipes.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "own_recipes:RECIPE"
    sys.modules.pop("own_recipes", None)


def list_runs(recipe):
    """List all runs of a recipe, those that tune included."""
    for method, point in product(recipe.methods, recipe.points()):
        yield method, recipe.resolve(method, point)
        for candidate in recipe.candidates(method):
            yield method, recipe.resolve(method, {**point, **recipe.tuning, **candidate})


def settings_of(name, method):
    recipe = find_recipe(name)
    return recipe.resolve(recipe.method(method))


@pytest.mark.filterwarnings("ignore:sampling='uniform' with nodes=15 does not support degree=14")  # as in the paper
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_says_what_it_is_its_methods_differ_and_every_run_is_possible(recipe, monkeypatch):
    assert all((recipe.title, recipe.paper, recipe.expects, recipe.cost))
    reported = sorted(f"{each.name} {each.paper}" for each in recipe.methods if each.paper is not None)
    assert reported == sorted(filter(None, PAPER.get(recipe.name.removeprefix("cifar10-"), "").split(", ")))
    for method, settings in list_runs(recipe):
        assert type(settings) is type(recipe.settings), method
    if isinstance(recipe.settings, Training):
        for name in ("check_all", "find_pretrained"):  # as if all files were there
            monkeypatch.setattr(f"effdeg_lab.engine.classify.{name}", lambda *_: None)
        assert recipe.check_data is check_training
        check_training([settings for _, settings in list_runs(recipe)], None)
    count = len(recipe.methods)
    assert len({method.title for method in recipe.methods}) == count
    assert len({recipe.resolve(method).hash for method in recipe.methods}) == count
    for method in recipe.methods:
        if method.tune:
            assert recipe.tuning["held_out"] > 0
        for key, values in method.tune.items():
            assert getattr(recipe.resolve(method), key) in values
            assert len(set(values)) == len(values) > 1


def test_ablations_share_their_runs_with_the_methods():
    short = [settings_of("cifar10-contest", name).change({"epochs": 100}) for name in ("plain", "ed")]
    shared = {"configurations": "efficient", "basis": "chebyshev", "layers": "input", "sampling": "cosine-4"}
    for name, method in (shared | {"random-pixels": "ed", "components": "none"}).items():
        assert settings_of(f"cifar10-{name}", method).hash == short[1].hash
    for name in ("random-pixels", "layers"):
        assert settings_of(f"cifar10-{name}", "plain").hash == short[0].hash


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_the_papers(name):
    recipe = find_recipe(name)
    found = recipe.resolve(next((each for each in recipe.methods if each.name == "ed"), recipe.methods[0])).to_dict()
    assert {key: found[key] for key in SETTINGS[name]} == SETTINGS[name]


def test_seeds_and_grids_are_the_papers():
    assert {name: len(find_recipe(name).seeds) for name in SEEDS} == SEEDS
    for name, rates in RATES.items():
        grid = find_recipe(name).grid
        assert (grid["batch"], grid["lr"], len(grid["weight_decay"])) == ((256, 512, 1024), rates, 3)
    recipe = find_recipe("cifar10-methods")
    settings = recipe.settings
    assert settings.warm_up * settings.epochs == pytest.approx(10)
    assert settings.ramp * settings.epochs == pytest.approx(100)
    assert recipe.method("sam").tune == {"rho": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}
    radii = recipe.method("asam").tune["rho"]
    assert (radii[0], radii[-1], len(radii)) == (5e-5, 2.0, 15)
    assert recipe.method("jacobian").tune == {"weight": (0.01, 0.05, 0.1, 0.5, 1.0)}
    assert settings_of("cifar10-methods", "jacobian").ramp == 0.0
    digits = find_recipe("digits-methods")
    assert [replace(method, paper=None) for method in recipe.methods] == list(digits.methods)
    assert digits.settings.limit + digits.tuning["held_out"] <= 797


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar10-method", "'cifar10-method' is not a recipe. Did you mean 'cifar10-methods'"),
        ("xyz", "'xyz' is not a recipe. See effdeg-lab list. One of your own"),
        ("own_recipes:RECIPES", "'own_recipes:RECIPES': own_recipes has no 'RECIPES'. Did you mean 'RECIPE'"),
        ("own_recipe:RECIPE", "'own_recipe:RECIPE': there is no Python module 'own_recipe' here"),
        ("own_recipes:LIST", "'own_recipes:LIST' is a list; expected an effdeg_lab.Recipe."),
    ],
)
def test_names_that_lead_nowhere(own, name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find_recipe(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning": {"epochs": 2}}, "held_out=0 would tune on the test set"),
        ({"tuning": {"held_out": 10, "weight": 3.0}}, "weight=3.0 cannot be fixed in the runs that tune 'ed'"),
        ({"tuning": {"held_out": 10, "epoch": 3}}, "'epoch' is not a setting. Did you mean 'epochs'"),
        ({"grid": {"ler": (1,)}}, "'ler' is not a setting"),
        ({"search": ({"lr": 1.0}, {"weight": 1.0})}, "the points of a search set the same settings, not lr and weight"),
        ({"search": ({"lr": 1.0}, {"lr": 1})}, "a point of the search is listed twice"),
        ({"search": ({"lr": 1.0},), "grid": {"lr": (0.5,)}}, "lr cannot be in the grid and in the search"),
        ({"methods": (Method("a", "A", {"wieght": 1.0}),)}, "'wieght' is not a setting. Did you mean 'weight'"),
        ({"methods": (Method("a", "A", tune={"wieght": (1.0,)}),)}, "'wieght' is not a setting"),
        ({"methods": (Method("a", "A"), Method("a", "B", {"lr": 1.0}))}, "needs at least one, each with its own name"),
        ({"equal_time": "edd"}, "'edd' is not a method of toy. Did you mean 'ed'"),
    ],
)
def test_recipes_that_cannot_work(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(toys.RECIPE, **changes)
