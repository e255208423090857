"""The paper's experiments as recipes, an engine that trains them, a store of their runs, and sweeps over them.

::

    from effdeg import lab

    recipe, store = lab.find_recipe("digits-methods"), lab.Store("effdeg-runs")
    lab.sweep(recipe, store=store, data=None, device=torch.device("cpu"), processes=2)
    for record in lab.matching(store.records(), recipe, recipe.row("ed")):
        print(record.settings["seed"], record.summary["test_accuracy"])

A new experiment is a file in ``effdeg/lab/recipes``, or anywhere: ``lab.find_recipe("package.module:RECIPE")``.
"""

from effdeg.lab.matches import matching
from effdeg.lab.recipe import Recipe, Reported, Row
from effdeg.lab.registry import all_recipes, find_recipe
from effdeg.lab.store import Record, Run, Store
from effdeg.lab.sweeping import Failure, Outcome, sweep
from effdeg.lab.task import Task
from effdeg.lab.training import Training, train
from effdeg.lab.tuning import Choice, chosen

__all__ = [
    "Choice",
    "Failure",
    "Outcome",
    "Recipe",
    "Record",
    "Reported",
    "Row",
    "Run",
    "Store",
    "Task",
    "Training",
    "all_recipes",
    "chosen",
    "find_recipe",
    "matching",
    "sweep",
    "train",
]
