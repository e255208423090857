import math
from dataclasses import replace

from scipy.stats import kstest
from toy_results import POOL, make_run

from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.core.search import draw_points
from effdeg_lab.experiments.pools.study import read_models


def draw(count, name, *values):
    return [point["x"] for point in draw_points(lambda draws: {"x": getattr(draws, name)(*values)}, count, seed=0)]


def test_numbers_are_spread_as_they_should_be():
    drawn = draw(2000, "uniform", 2.0, 4.0)
    assert kstest(drawn, "uniform", (2.0, 2.0)).pvalue > 1e-3
    drawn = draw(2000, "log_uniform", 1e-6, 1e-2)
    assert kstest([math.log10(each) for each in drawn], "uniform", (-6, 4)).pvalue > 1e-3
    drawn = draw(2000, "choice", "a", "b", "c", "d")
    assert {*drawn} == {*"abcd"}
    assert all(abs(drawn.count(each) - 500) < 100 for each in "abcd")
    drawn = draw(2000, "zero_or_uniform", 0.1, 0.9)
    kept = [each for each in drawn if each]
    assert abs(len(kept) - 1000) < 120
    assert kstest(kept, "uniform", (0.1, 0.8)).pvalue > 1e-3


def test_points_are_the_same_for_everybody():
    """Python's first number for the seed 0 is 0.8444218515250481, in all of its versions."""
    assert draw(1, "uniform", 0.0, 1.0) == [0.844]
    assert draw(1, "log_uniform", 1e-4, 1.0) == [float(f"{1e-4 ** (1 - 0.8444218515250481):.3g}")]
    assert draw(3, "uniform", 0.0, 1.0) == draw(5, "uniform", 0.0, 1.0)[:3]
    first, *_, last = find_recipe("cifar10-random-pool").points()
    expected = {"regularizer": "plain", "alpha": 0.0, "model": "resnet9-16", "optimizer": "sgd", "lr": 0.0739}
    assert first == {**expected, "weight_decay": 0.000101, "batch": 256}
    assert last["model"].startswith("resnet9-")
    first = find_recipe("cifar10-random-mlps").points()[0]
    assert (first["model"], first["optimizer"], first["lr"], first["batch"]) == ("mlp", "adamw", 0.000539, 128)


def test_runs_of_a_search_are_one_pool_whatever_their_length():
    search = ({"epochs": 5, "lr": 0.3}, {"epochs": 10, "lr": 0.2}, {"epochs": 15, "lr": 0.1})
    recipe = replace(POOL, grid={}, search=search, seeds=(0,))
    runs = [make_run(recipe, "plain", 0.8, **point) for point in search]
    stray = make_run(recipe, "plain", 0.8, epochs=5, lr=0.1)
    (results,) = collect(recipe, [*runs, stray])
    assert results.size == 3
    assert (results.varies_epochs, results.heading) == (True, "seed 0, Thinking Machine")
    assert {(model["epochs"], model["lr"]) for model in read_models(results)} == {(5, 0.3), (10, 0.2), (15, 0.1)}
    (shorter,) = collect(recipe, [stray], {"epochs": 5})
    assert shorter.size == 1
