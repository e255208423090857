"""The paper's experiments: recipes, an engine that trains them, runs that survive a kill, sweeps, tables, a report."""

from effdeg_lab.recipe import Method, Recipe, Reported, all_recipes, find_recipe
from effdeg_lab.runs import Job, Run, RunFolder
from effdeg_lab.settings import SCALE, Settings
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.tables import Table
from effdeg_lab.verdicts import Verdict, judge, judge_all

__all__ = [
    "SCALE",
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
]
