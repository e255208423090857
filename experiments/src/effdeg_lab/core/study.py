"""A study turns the runs of a recipe into a verdict on its claim, tables and figures.

There is one file per study. A study states its claim as a small function from numbers to a verdict with an interval.
People interpret it, in the docs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from effdeg_lab.core.runs import Run
from effdeg_lab.show.tables import Table
from effdeg_lab.show.verdicts import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class StudyFigure:
    """A figure that can be drawn in either theme, and its caption."""

    name: str
    caption: str
    draw: "Callable[[str], Figure]"


class Study:
    """What a recipe shows. Its methods are called only with ``Results`` in which something was run."""

    needs: ClassVar[str | None] = None  # a number that every good run has; runs without it are left out
    needs_all: ClassVar[bool] = True  # whether the claim is not decided if some runs failed; a pool can do without them

    def judge(self, results: Any) -> Verdict:
        """Judge the claim, which is not decided as long as some runs of a method have failed."""
        verdict = self.claim(results) if results.done else Verdict("not run")
        failed = "; ".join(filter(None, (each.describe_failed() for each in results.methods)))
        if not failed:
            return verdict
        decides = self.needs_all and verdict.word in {"holds", "does not hold"}
        return replace(verdict, word="not decided" if decides else verdict.word, reason=verdict.reason or failed)

    def claim(self, results: Any) -> Verdict:
        """Judge the claim."""
        return Verdict("no claim")

    def tables(self, results: Any) -> list[Table]:
        """Return the tables, the most important first."""
        return []

    def figures(self, results: Any) -> list[StudyFigure]:
        """Return the figures, the most important first; only their ``draw`` may import matplotlib."""
        return []

    def headline(self, run: Run) -> str:
        """Summarize a finished run in a few words."""
        return "finished"
