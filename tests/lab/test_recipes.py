"""The recipes: every run that they ask for is possible, and equal runs are one run."""

import importlib
from dataclasses import replace
from itertools import product

import pytest
import torch

import effdeg
from effdeg.lab.registry import all_recipes, find_recipe
from effdeg.lab.settings import differences, digest
from effdeg.lab.training import Training, train
from effdeg.lab.training.methods import made_method

RECIPES = list(all_recipes().values())
CLASSIFIERS = [each for each in RECIPES if isinstance(each.settings, Training)]
# The paper's tables of ViT-Tiny on CIFAR-10, in percent: means, and standard deviations where it gives them.
PAPER = {
    "cifar10-methods": {  # Table 1, but ED of Table 10
        "plain": (87.80, 1.17),
        "mixup": (88.83, 1.48),
        "sam": (87.85, 1.27),
        "asam": (87.85, 1.24),
        "jacobian": (87.81, 0.17),
        "ed-without-anchors": (90.00, 0.60),
        "ed": (90.18, 0.14),
    },
    "cifar10-random-pixels": {  # Table 5, but ED of Table 10
        "plain": (87.80, 1.17),
        "ed": (90.18, 0.14),
        "random-pixels": (87.31, 0.80),
    },
    "cifar10-basis": {"chebyshev": (90.18, 0.14), "legendre": (89.89, 1.29)},  # Table 6
    "cifar10-layers": {  # Table 7
        "plain": (86.49, None),
        "input": (89.99, None),
        "embedding": (88.92, None),
        "block-1": (88.18, None),
    },
    "cifar10-sampling": {  # Table 8
        "cosine-4": (89.99, None),
        "chebyshev-4": (89.47, None),
        "uniform-4": (89.23, None),
        "cosine-15": (89.90, None),
        "chebyshev-15": (90.40, None),
        "uniform-15": (78.42, None),
    },
    "cifar10-components": {
        "none": (89.99, None),
        "3": (89.84, None),
        "2": (89.90, None),
        "1": (88.75, None),
    },  # Table 9
    "cifar10-configurations": {"efficient": (90.18, 0.14), "precise": (90.82, 0.11)},  # Table 10
}
ABLATIONS = ["configurations", "random-pixels", "basis", "layers", "sampling", "components", "cost"]


def runs(each):
    """All runs of a recipe, those that tune included."""
    for row, point in product(each.rows, each.points()):
        yield row, each.resolved(row, point)
        for candidate in each.candidates(row):
            yield row, each.resolved(row, {**point, **candidate, **each.tuning})


def settings_of(name, row):
    found = find_recipe(name)
    return found.resolved(found.row(row), {})


def penalty_of(settings):
    return made_method(settings).penalty.settings


# Uniform nodes that cannot carry their degree are what cifar10-sampling is about.
@pytest.mark.filterwarnings("ignore::effdeg.functional._conditioning.IllConditionedFit")
@pytest.mark.parametrize("each", CLASSIFIERS, ids=lambda each: each.name)
def test_every_run_is_possible(each):
    for row, settings in runs(each):
        made = made_method(settings)
        assert made.name == row.changes["method"]
        expected = {"plain": 0.0, "mixup": 0.0, "sam": 0.0, "asam": 0.0}.get(made.name, settings.weight)
        assert made.weight == expected
    assert each.train is train


@pytest.mark.parametrize("each", RECIPES, ids=lambda each: each.name)
def test_every_file_states_what_it_is(each):
    module = importlib.import_module(f"effdeg.lab.recipes.{each.name.replace('-', '_')}")
    assert module.RECIPE is each
    assert "Expected:" in module.__doc__
    assert "Cost" in module.__doc__
    for text in (each.title, each.paper, each.expects, each.cost):
        assert text
    reported = {row.name: (row.paper.mean, row.paper.std) for row in each.rows if row.paper is not None}
    assert reported == PAPER.get(each.name, {})
    for row in each.rows:
        if row.paper is not None:
            spread = "" if row.paper.std is None else f" ± {row.paper.std:.2f}"
            assert f"{row.paper.mean:.2f}{spread}" in module.__doc__


@pytest.mark.parametrize("each", RECIPES, ids=lambda each: each.name)
def test_lines_are_different_and_their_own_strength_is_among_those_tried(each):
    assert len({row.name for row in each.rows}) == len(each.rows)
    assert len({row.title for row in each.rows}) == len(each.rows)
    assert len({digest(each.resolved(row, {})) for row in each.rows}) == len(each.rows)
    for row in each.rows:
        if row.strengths:
            assert each.tuning["held_out"] > 0
        for name, values in row.strengths.items():
            assert row.changes[name] in values
            assert len(set(values)) == len(values) > 1


def test_the_ablations_share_their_runs_with_the_methods():
    plain, ed = digest(settings_of("cifar10-methods", "plain")), digest(settings_of("cifar10-methods", "ed"))
    shared = {"configurations": "efficient", "random-pixels": "ed", "basis": "chebyshev", "layers": "input"}
    shared |= {"sampling": "cosine-4", "components": "none", "cost": "ed"}
    assert set(shared) == set(ABLATIONS)
    for name, row in shared.items():
        assert digest(settings_of(f"cifar10-{name}", row)) == ed
    for name in ("random-pixels", "layers", "cost"):
        assert digest(settings_of(f"cifar10-{name}", "plain")) == plain
    tuned = [
        {digest(settings) for row, settings in runs(find_recipe(name)) if row.name == "ed"}
        for name in ("cifar10-methods", "cifar10-cost")
    ]
    assert tuned[0] == tuned[1]


def test_methods_are_those_of_the_paper():
    found = find_recipe("cifar10-methods")
    settings = found.settings
    assert (settings.epochs, settings.batch, settings.optimizer, settings.weight_decay) == (300, 256, "adamw", 0.1)
    assert (settings.decay, settings.augment) == ("cosine", "crop-flip")
    assert settings.warm_up * settings.epochs == pytest.approx(10)
    assert settings.ramp * settings.epochs == pytest.approx(100)
    assert found.seeds == (0, 1, 2)
    assert penalty_of(settings_of("cifar10-methods", "ed")) == effdeg.Penalty.efficient().settings
    without = effdeg.Penalty.efficient(anchor_labels=False).settings
    assert penalty_of(settings_of("cifar10-methods", "ed-without-anchors")) == without
    assert penalty_of(settings_of("cifar10-configurations", "precise")) == effdeg.Penalty.precise().settings
    assert settings_of("cifar10-configurations", "precise").weight == 2.0


def test_rivals_are_given_the_papers_grids_and_no_ramp():
    rows = {row.name: row for row in find_recipe("cifar10-methods").rows}
    assert rows["sam"].strengths == {"rho": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}
    radii = rows["asam"].strengths["rho"]
    assert (radii[0], radii[-1], len(radii)) == (5e-5, 2.0, 15)
    assert all(str(f"{radius:e}")[0] in "125" for radius in radii)
    assert rows["jacobian"].strengths == {"weight": (0.01, 0.05, 0.1, 0.5, 1.0)}
    assert settings_of("cifar10-methods", "jacobian").ramp == 0.0
    assert (rows["mixup"].strengths, settings_of("cifar10-methods", "mixup").alpha) == ({}, 1.0)
    assert settings_of("cifar10-methods", "mixup-0.2").alpha == 0.2


@pytest.mark.parametrize("name", ["cifar10-learning-rate", "cifar10-vit-pool"])
def test_the_rate_rises_for_the_papers_ten_epochs(name):
    settings = find_recipe(name).settings
    assert (settings.warm_up, settings.warm_up_epochs) == (0.0, 10.0)


@pytest.mark.parametrize("each", RECIPES, ids=lambda each: each.name)
def test_nothing_rests_on_trials_without_a_record(each):
    module = importlib.import_module(f"effdeg.lab.recipes.{each.name.replace('-', '_')}")
    assert "no record" not in each.departs + module.__doc__


def test_a_line_of_an_ablation_differs_in_what_it_is_about_alone():
    expected = {
        ("random-pixels", "random-pixels"): {"ends", "anchor_labels"},
        ("basis", "legendre"): {"basis"},
        ("layers", "embedding"): {"at"},
        ("layers", "block-1"): {"at"},
        ("sampling", "chebyshev-4"): {"sampling"},
        ("sampling", "uniform-4"): {"sampling"},
        ("sampling", "cosine-15"): {"nodes", "degree", "weight"},
        ("sampling", "chebyshev-15"): {"nodes", "degree", "weight", "sampling"},
        ("sampling", "uniform-15"): {"nodes", "degree", "weight", "sampling"},
        ("components", "3"): {"components"},
        ("components", "2"): {"components"},
        ("components", "1"): {"components"},
    }
    ed = settings_of("cifar10-methods", "ed")
    for (name, row), names in expected.items():
        assert set(differences(settings_of(f"cifar10-{name}", row), ed)) == names


def test_the_price_list_covers_nodes_pairs_steps_and_late_starts():
    found = find_recipe("cifar10-cost")
    settings = [found.resolved(row, {}) for row in found.rows if row.name != "plain"]
    assert {each.nodes for each in settings} == {3, 4, 5, 6, 7, 8}
    assert all(each.degree == each.nodes - 1 for each in settings)
    assert {each.pairs for each in settings} == {0.125, 0.25, 0.5, 1.0}
    assert {each.every for each in settings} == {1, 2, 4}
    assert {each.start for each in settings} == {0.0, 0.5}
    # The points that are run, in batches and averaged over the steps: what a step costs beyond a plain one.
    points = [each.pairs * (each.nodes - 2) / each.every * (1 - each.start) for each in settings]
    assert points[0] == 1.0
    assert sum(each <= 0.25 for each in points) >= 4


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_pools_have_the_paper_s_grid(name):
    found = find_recipe(f"cifar10-{name}-pool")
    settings = [found.resolved(found.rows[0], point) for point in found.points()]
    assert len({digest(each) for each in settings}) == 27
    assert {each.batch for each in settings} == {256, 512, 1024}
    rates = {"resnet18": {0.1, 0.01, 0.001}, "vit": {0.005, 0.001, 0.0005}}
    decays = {"resnet18": {1e-5, 1e-6, 1e-7}, "vit": {1e-3, 1e-4, 1e-5}}
    assert {each.lr for each in settings} == rates[name]
    assert {each.weight_decay for each in settings} == decays[name]
    assert {(each.optimizer, each.decay) for each in settings} == {
        ("sgd", "steps") if name == "resnet18" else ("adamw", "cosine")
    }
    assert (settings[0].measure_paths, settings[0].measure_nodes, settings[0].measure_degree) == (400, 200, 40)
    assert settings[0].proxies == ("all",)


def test_digits_have_the_methods_of_the_table():
    found, methods = find_recipe("digits-methods"), find_recipe("cifar10-methods")
    assert [replace(row, paper=None) for row in methods.rows] == list(found.rows)
    assert all(row.paper is None for row in found.rows)
    assert found.settings.limit + found.tuning["held_out"] <= 797


@pytest.mark.parametrize("row", ["embedding", "block-1"])
def test_the_layers_of_the_paths_are_there(row):
    from effdeg.lab.models import make

    settings = settings_of("cifar10-layers", row)
    model = make(settings.model, shape=(3, 32, 32), classes=10)
    logits, degree = made_method(settings).penalty(model, torch.rand(4, 3, 32, 32), torch.arange(4))
    assert logits.shape == (4, 10)
    assert degree > 0
