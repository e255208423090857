"""How an experiment is told that is not about accuracies, line by line."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from effdeg.lab.records import Record
    from effdeg.lab.report.blocks import Block
    from effdeg.lab.report.drawing import Drawing
    from effdeg.lab.report.sheet import Sheet
    from effdeg.lab.report.verdicts import Finding


class StudyReport(Protocol):
    """What a recipe of its own kind shows (``Recipe.shows``).

    A block holds the lines that were run at one scale, each with its finished runs by seed. It is asked only about
    blocks in which something was run.
    """

    def finding(self, block: "Block") -> "Finding":
        """Describe what was found, and whether the paper's claim holds."""

    def sheets(self, block: "Block") -> "list[Sheet]":
        """Return the tables."""

    def drawings(self, block: "Block") -> "list[Drawing]":
        """Return the figures, the most telling first; only this may import matplotlib."""

    def score(self, run: "Record") -> str:
        """Summarize in a few words what came out of a finished run."""
