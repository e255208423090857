"""The study of MNIST–CIFAR: its claim, its tables and its figures, on runs whose accuracies are known."""

import math

import pytest
from toy_results import invent_run

from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import MethodRuns, Results

RECIPE = find_recipe("mnist-cifar")


def make_run(name, test, simple, complex_, seed=0, step=10.0):
    summary = {
        "test_accuracy": test,
        "further_tests": {"MNIST randomized": simple, "CIFAR randomized": complex_},
        "milliseconds_per_step": step,
        "effective_degree": {"value": 0.5, "stderr": 0.02},
    }
    return invent_run(RECIPE, name, summary, seed=seed)


def make_runs(name, test, simple, complex_, *, spread=(-0.002, 0.0, 0.002), step=10.0):
    return [make_run(name, test, simple + shift, complex_, seed, step) for seed, shift in enumerate(spread)]


def make_results(*groups):
    found = {runs[0].method: tuple(runs) for runs in groups}
    methods = [(each, found.get(each.name, ()), "run" if each.name in found else "not run") for each in RECIPE.methods]
    return Results(RECIPE, {"epochs": 30}, tuple(MethodRuns(*each) for each in methods))


PLAIN = make_runs("plain", 0.9985, 0.4950, 0.9980)


@pytest.mark.parametrize(
    ("ed", "word"),
    [
        (make_runs("ed", 0.999, 0.547, 0.990, spread=(-0.0005, 0.0, 0.0005)), "holds"),
        (make_runs("ed", 0.999, 0.560, 0.998), "does not hold"),  # right in more cases than chance
        (make_runs("ed", 0.999, 0.495, 0.985), "does not hold"),  # loses without CIFAR
        (make_runs("ed", 0.900, 0.495, 0.900), "not decided"),  # has not learned
        (make_runs("ed", 0.999, 0.500, 0.998, spread=(0.0, 0.01, 0.1)), "not decided"),  # seeds disagree
        ([make_run("ed", 0.999, 0.495, 0.998)], "not decided"),  # a single seed
        (None, "not decided"),
    ],
)
def test_every_part_of_the_rule_can_decide_the_claim(ed, word):
    verdict = RECIPE.study.claim(make_results(PLAIN, ed) if ed else make_results(PLAIN))
    assert verdict.word == word
    if word == "holds":
        assert str(verdict).startswith("holds: accuracy of Baseline with MNIST randomized, %: 49.5 (95% interval 49 to")


@pytest.fixture
def results():
    swapped = make_runs("swapped", 0.9000, 0.7000, 0.7200, spread=(0.002, -0.002, 0.0), step=11.0)
    return make_results(PLAIN, swapped, [make_run("ed", 0.9990, 0.4950, 0.9985, step=16.0)])


def test_the_tables(results):
    accuracies, gains = RECIPE.study.tables(results)
    assert accuracies.columns == ("", "test, %", "MNIST randomized, %", "CIFAR randomized, %", "paper, %")
    rows = {row[0]: row[1:] for row in accuracies.rows}
    assert rows["Baseline"] == ("99.85 ± 0.00", "49.50 ± 0.20", "99.80 ± 0.00", "99.85 / 48.05 / 99.85")
    assert rows["ED"] == ("99.90", "49.50", "99.85", "99.90 / 47.95 / 99.90")
    assert rows["CutMix"] == ("not run", "–", "–", "–")
    costs = {row[0]: row[1:] for row in gains.rows}
    assert costs["Baseline"] == ("–", "–", "0.50 ± 0.01", "1.00×")
    assert costs["ED"][2:] == ("0.50 ± 0.02", "1.60×")
    assert costs["Simple half swapped"][0].startswith("+20.50 (")
    assert costs["Simple half swapped"][0].endswith("*")
    assert costs["Simple half swapped"][1] == "-9.85"
    assert costs["CutMix"] == ("–",) * 4


def test_the_figure_shows_every_method_that_was_run(results):
    (figure,) = RECIPE.study.figures(results)
    (axes,) = figure.draw("dark").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [method.title for method in RECIPE.methods]
    assert [text.get_text() for text in axes.texts] == ["not run"] * (len(RECIPE.methods) - 3)
    dots = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o"]
    paper, ours = [99.85, 99.85, 48.05, 99.90, 99.90, 47.95], [99.85, 49.5, 99.8, 99.9, 49.5, 99.85, 90, 70, 72]
    assert sorted(dot for dot in dots if not math.isnan(dot)) == pytest.approx(sorted([*paper, *ours]))
