"""The paper's experiments: recipes, an engine that trains them, runs that survive a kill, sweeps, tables, a report."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from effdeg_lab.core.recipe import Method, Recipe, Reported, Study, StudyFigure, all_recipes, find_recipe
    from effdeg_lab.core.runs import Job, Run, RunFolder
    from effdeg_lab.core.settings import Settings, setting
    from effdeg_lab.show.tables import Table
    from effdeg_lab.show.verdicts import Verdict, judge, judge_all

__all__ = [
    "Job",
    "Method",
    "Recipe",
    "Reported",
    "Run",
    "RunFolder",
    "Settings",
    "Study",
    "StudyFigure",
    "Table",
    "Verdict",
    "all_recipes",
    "find_recipe",
    "judge",
    "judge_all",
    "setting",
]

_HOMES = ("core.recipe", "core.runs", "core.settings", "show.tables", "show.verdicts")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: importing torch takes seconds, which ``effdeg-lab --help`` need not."""
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"effdeg_lab.{home}")
            if name in vars(module) and vars(module)[name] is not None:
                return vars(module)[name]
    raise AttributeError(f"module 'effdeg_lab' has no attribute {name!r}")
