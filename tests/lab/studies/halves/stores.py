"""Stores of runs that nobody ran, with accuracies that are known."""

from effdeg.lab.registry import find_recipe
from effdeg.lab.report import result_of
from effdeg.lab.store import Store

RECIPE = find_recipe("mnist-cifar")


def add(folder, row, test, simple, complex_, *, step=10.0, degree=0.5, **changes):
    """Write a finished run of a line; ``step`` is in milliseconds."""
    run = Store(folder).run(RECIPE.resolved(RECIPE.row(row), changes))
    run.begin({"device": "Thinking Machine"})
    run.finish({
        "test_accuracy": test,
        "further_tests": {"MNIST randomized": simple, "CIFAR randomized": complex_},
        "seconds": 156 * step / 1000,
        "milliseconds_per_step": step,
        "effective_degree": {"value": degree, "stderr": 0.02},
    })
    return run


def add_seeds(folder, row, test, simple, complex_, *, spread=0.002, **others):
    """Write three runs around these accuracies, in which the lines do not move together."""
    place = [each.name for each in RECIPE.rows].index(row)
    for seed in (0, 1, 2):
        off = spread * ((seed + place) % 3 - 1) * (1 + place / 10)
        add(folder, row, test, simple + off, complex_, seed=seed, **others)


def block_of(folder):
    return result_of(RECIPE, Store(folder).records()).blocks[0]
