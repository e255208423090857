"""What follows from outcomes, on outcomes that are made up."""

import inspect
import math
from dataclasses import replace

import pytest

import effdeg
from effdeg.lab.studies.estimator.choices import (
    Warned,
    best_split,
    cheapest,
    count_warnings,
    fewest_nodes,
    upper_half_warns,
    warns,
)
from effdeg.lab.studies.estimator.outcomes import DEFAULT, EstimatorOutcome

BASE = EstimatorOutcome("cosine", 8, 5, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0)


def outcome(nodes=8, degree=5, **changes):
    return replace(BASE, nodes=nodes, degree=degree, **changes)


def test_the_defaults_are_those_of_measure():
    defaults = {name: each.default for name, each in inspect.signature(effdeg.measure).parameters.items()}
    assert (defaults["sampling"], defaults["nodes"], defaults["degree"]) == DEFAULT


def test_paths_and_passes_for_the_tolerance():
    found = outcome(nodes=8, spread=0.5)
    assert found.paths == 625  # (0.5 / 0.02)²
    assert found.passes == 5000
    assert found.spread / math.sqrt(found.paths) == pytest.approx(0.02)


def test_the_error_has_a_part_that_more_passes_do_not_help():
    found = outcome(nodes=8, spread=0.5, whole_bias=-0.1, bias=0.02)
    assert found.error(1e12) == pytest.approx(0.1, rel=1e-6)
    assert found.error(800) == pytest.approx(math.hypot(0.1, 0.9 * 0.5 / 10))
    # Errors of two kinds that cancel do not count as none.
    assert outcome(bias=0.8, whole_bias=0.001).error(1e12) == pytest.approx(0.8, rel=1e-6)


def test_the_cheapest_is_unbiased_in_both_ways():
    cancelling = outcome(nodes=3, degree=2, whole_bias=0.001, bias=0.5)
    low = outcome(nodes=4, degree=3, whole_bias=-0.3)
    good, better_but_dear = outcome(nodes=15, whole_bias=-0.009), outcome(nodes=32)
    elsewhere = outcome(nodes=6, sampling="uniform")
    found = [cancelling, low, better_but_dear, good, elsewhere]
    assert cheapest(found, "cosine") is good
    assert cheapest(found, "uniform") is elsewhere
    assert cheapest(found, "chebyshev") is None


def test_nodes_are_enough_from_where_all_more_are():
    biases = {6: 0.001, 8: 0.5, 15: -0.009, 16: 0.002, 100: 0.0}
    found = [outcome(nodes=nodes, bias=bias) for nodes, bias in biases.items()]
    assert fewest_nodes(found, "cosine", 5) == 15
    assert fewest_nodes([*found, outcome(nodes=200, bias=0.02)], "cosine", 5) is None
    assert fewest_nodes(found, "cosine", 7) is None


def test_few_passes_are_better_spent_on_paths():
    coarse, precise = outcome(nodes=4, whole_bias=0.05), outcome(nodes=64)
    assert best_split([coarse, precise], 1000) is coarse
    assert best_split([coarse, precise], 1_000_000) is precise
    # Two paths at least.
    assert best_split([outcome(nodes=4, whole_bias=10.0), precise], 100).nodes == 4


def test_warnings_are_counted():
    found = [
        outcome(whole_bias=0.2, warned=1.0, upper_half=0.3),
        outcome(whole_bias=-0.2, upper_half=0.05),
        outcome(nodes=6, degree=5, whole_bias=0.2, upper_half=0.3),
        outcome(whole_bias=0.04, warned=1.0),
        outcome(upper_half=0.2),
    ]
    ours, other = count_warnings(found, warns, untold=True), count_warnings(found, upper_half_warns, untold=False)
    assert ours == Warned(caught=1, untold=1, missed=1, needless=1, quiet=1)
    assert other == Warned(caught=2, untold=0, missed=1, needless=1, quiet=1)
    assert (ours.wrong, ours.right) == (3, 2)
