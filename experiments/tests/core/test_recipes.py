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
OWN = "from dataclasses import replace\nfrom toys import RECIPE\nRECIPE = replace(RECIPE, name='mine')\nLIST = []\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module, in the folder where the user stands."""
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


def test_all_recipes_are_found_in_the_order_of_the_paper():
    tables = "methods random-pixels basis layers sampling components configurations"
    in_paper = [f"cifar10-{name}" for name in tables.split()] + ["mnist-cifar", "pnn", "cifar10-resnet18-pool"]
    in_paper[1:1] = ["clip-finetune-b16", "clip-finetune-b32", "imagenet-vit-original", "imagenet-vit-strong"]
    in_paper[5:5] = ["glue-cola", "glue-mrpc", "glue-rte"]
    in_paper.append("finetune-pool")
    others = (
        "cifar10-contest cifar10-cost cifar10-estimators cifar10-few-labels cifar10-fused cifar10-learning-rate "
        "cifar10-noisy-labels cifar10-random-mlps cifar10-random-pool cifar10-relatives cifar10-sensitivity "
        "digits-estimators digits-methods"
    )
    tiny = ["tiny-imagenet-vit", "tiny-imagenet-vit-strong"]
    games = [f"procgen-{name}" for name in ("dodgeball", "fruitbot", "jumper", "starpilot")]
    pools = [f"picking-{name}" for name in ("cifar10", "foreign", "mnist", "mrpc", "pacs", "rte")]
    pools += ["picking-tiny-imagenet", "picking-webnlg"]
    last = ["estimator", "finetune-shifts", "finetune-shifts-cifar10"]
    last += [f"language-{name}" for name in ("scan", "scan-lora", "webnlg", "webnlg-lora")]
    last += ["path-degrees", *pools, *tiny]
    expected = [*in_paper, "grokking", *games, "cifar10-vit-pool", *others.split(), *last]
    assert list(all_recipes()) == expected
    for name, recipe in all_recipes().items():
        assert recipe.name == name
        assert find_recipe(name) is recipe


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
            monkeypatch.setattr(f"effdeg_lab.engine.checks.{name}", lambda *_: None)
        assert recipe.check_data is check_training
        check_training([settings for _, settings in list_runs(recipe)], None)
    count = len(recipe.methods)
    assert len({method.title for method in recipe.methods}) == count
    assert len({recipe.resolve(method).hash for method in recipe.methods}) == count
    for method in recipe.methods:
        if method.tune:
            assert recipe.tuning["held_out"] > 0
        for key, values in method.tune.items():
            assert method.changes[key] in values
            assert len(set(values)) == len(values) > 1


def test_ablations_share_their_runs_with_the_methods_and_differ_in_what_they_are_about_alone():
    plain, ed = settings_of("cifar10-methods", "plain"), settings_of("cifar10-methods", "ed")
    shared = {"configurations": "efficient", "basis": "chebyshev", "layers": "input", "sampling": "cosine-4"}
    for name, method in (shared | {"random-pixels": "ed", "components": "none", "cost": "ed"}).items():
        assert settings_of(f"cifar10-{name}", method).hash == ed.hash
    for name in ("random-pixels", "layers", "cost"):
        assert settings_of(f"cifar10-{name}", "plain").hash == plain.hash
    tuned = [
        {settings.hash for method, settings in list_runs(find_recipe(name)) if method.name == "ed"}
        for name in ("cifar10-methods", "cifar10-cost")
    ]
    assert tuned[0] == tuned[1]
    for (name, method), expected in {
        ("random-pixels", "random-pixels"): {"ends", "anchor"},
        ("basis", "legendre"): {"basis"},
        ("layers", "embedding"): {"at"},
        ("layers", "block-1"): {"at"},
        ("sampling", "uniform-4"): {"sampling"},
        ("sampling", "cosine-15"): {"nodes", "degree", "weight"},
        ("sampling", "uniform-15"): {"nodes", "degree", "weight", "sampling"},
        ("components", "1"): {"components"},
    }.items():
        found = settings_of(f"cifar10-{name}", method).to_dict()
        assert {key for key, value in ed.to_dict().items() if found[key] != value} == expected


def test_the_methods_of_the_paper_have_its_settings_and_its_grids():
    recipe = find_recipe("cifar10-methods")
    settings = recipe.settings
    assert (settings.epochs, settings.batch, settings.optimizer, settings.weight_decay) == (300, 256, "adamw", 0.1)
    assert (settings.decay, settings.augment, recipe.seeds) == ("cosine", "crop-flip", (0, 1, 2))
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


def test_fine_tunings_are_drawn_from_the_ranges_of_model_soups():
    points = find_recipe("finetune-pool").points()
    assert len(points) == 72
    assert {point["epochs"] for point in points} == {*range(4, 17)}
    assert 25 < sum(point["alpha"] == 0 for point in points) < 47
    for point in points:
        assert (point["regularizer"] == "mixup") == (point["alpha"] > 0)
        assert point["alpha"] < 0.9
        assert point["smoothing"] <= 0.25
        assert 1e-4 <= point["weight_decay"] <= 0.6
        assert 1e-5 <= point["lr"] <= 1e-3


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_pools_have_the_grid_of_the_paper(name):
    recipe = find_recipe(f"cifar10-{name}-pool")
    settings = [recipe.resolve(recipe.methods[0], point) for point in recipe.points()]
    assert len({each.hash for each in settings}) == 27
    assert {each.batch for each in settings} == {256, 512, 1024}
    rates = {"resnet18": {0.1, 0.01, 0.001}, "vit": {0.005, 0.001, 0.0005}}
    decays = {"resnet18": {1e-5, 1e-6, 1e-7}, "vit": {1e-3, 1e-4, 1e-5}}
    assert {each.lr for each in settings} == rates[name]
    assert {each.weight_decay for each in settings} == decays[name]
    assert (settings[0].measure_paths, settings[0].measure_nodes, settings[0].measure_degree) == (400, 200, 40)
    assert settings[0].proxies == ("all",)


def test_a_recipe_of_ones_own_goes_by_the_name_that_others_find_it_by(own):
    found = find_recipe(own)
    assert found == replace(toys.RECIPE, name=own)
    assert find_recipe(found.name) == found


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
        ({"tuning": {"held_out": 0}}, "held_out=0 would tune on the test set"),
        ({"tuning": {"held_out": 10, "weight": 3.0}}, "weight=3.0 cannot be fixed in the runs that tune 'ed'"),
        ({"tuning": {"held_out": 10, "epoch": 3}}, "'epoch' is not a setting. Did you mean 'epochs'"),
        ({"grid": {"ler": (1,)}}, "'ler' is not a setting"),
        ({"search": ({"ler": 1},)}, "'ler' is not a setting"),
        ({"search": ({"lr": 1.0}, {"weight": 1.0})}, "the points of a search set the same settings, not lr and weight"),
        ({"search": ({"lr": 1.0}, {"lr": 1})}, "a point of the search is listed twice"),
        ({"search": ({"lr": 1.0},), "grid": {"lr": (0.5,)}}, "lr cannot be in the grid and in the search"),
        ({"methods": (Method("a", "A", {"wieght": 1.0}),)}, "'wieght' is not a setting. Did you mean 'weight'"),
        ({"methods": (Method("a", "A", tune={"wieght": (1.0,)}),)}, "'wieght' is not a setting"),
        (
            {"methods": (Method("a", "A"), Method("a", "B", {"lr": 1.0}))},
            "it needs at least one, each with its own name",
        ),
        ({"methods": ()}, "toy has the methods .*: it needs at least one, each with its own name"),
        ({"equal_time": "edd"}, "'edd' is not a method of toy. Did you mean 'ed'"),
    ],
)
def test_recipes_that_cannot_work(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(toys.RECIPE, **changes)
