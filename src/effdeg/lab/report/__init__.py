"""What the runs of a store say about the paper's experiments: tables, figures, and one page with all of it."""

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.findings import finding
from effdeg.lab.report.lines import Line
from effdeg.lab.report.result import RecipeResult, result_of
from effdeg.lab.report.verdicts import Finding

__all__ = ["Block", "Finding", "Line", "RecipeResult", "finding", "result_of"]
