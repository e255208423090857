"""Stores of networks that nobody trained, with values that are known."""

from effdeg.lab.recipes.pnn import RECIPE
from effdeg.lab.report import result_of
from effdeg.lab.store import Store
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS

# About what the maps measure.
EXACT = {
    1: (0.667, 0.278, 0.667, 1.323, 0.662),
    2: (1.185, 0.797, 1.333, 2.038, 1.324),
    3: (2.958, 1.154, 3.673, 5.432, 3.430),
}


def exact(task):
    """A map's values by column."""
    values = EXACT[(task - 1) % 3 + 1]
    double = 2 if task > 3 else 1
    return {each.name: value * (1 if each.normalized else double) for each, value in zip(COLUMNS, values, strict=True)}


def add(folder, task, *, seed=0, factor=1.0, error=1e-5, stderr=0.01, **changes):
    """Keep a network whose every value is a factor times its map's."""
    settings = RECIPE.resolved(RECIPE.row(f"task-{task}"), {"seed": seed, **changes})
    run = Store(folder).run(settings)
    run.begin({"device": "Thinking Machine"})
    run.log({"step": 10, "seconds": 1.0, "train_error": 0.1, "test_error": 0.1, "damping": 1.0})
    run.log({"step": 100, "seconds": 2.0, "train_error": error, "test_error": error, "damping": 1.0})
    map_values = {name: {"value": value, "stderr": stderr * value} for name, value in exact(task).items()}
    network = {name: {"value": factor * each["value"], "stderr": each["stderr"]} for name, each in map_values.items()}
    integrated = {name: {"value": each["value"], "stderr": 1e-4} for name, each in map_values.items()}
    run.finish({
        "test_error": error,
        "seconds": 2.0,
        "network": network,
        "same_paths": map_values,
        "exact": integrated,
    })


def result(folder):
    """What a store says."""
    return result_of(RECIPE, Store(folder).records())
