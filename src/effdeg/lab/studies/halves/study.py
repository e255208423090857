"""How networks are told that can look at either half."""

from collections.abc import Mapping
from dataclasses import dataclass

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.verdicts import Finding
from effdeg.lab.report.wording import percent
from effdeg.lab.store import Record
from effdeg.lab.studies.halves.claim import found
from effdeg.lab.studies.halves.reliance import TEST, Papers, accuracies
from effdeg.lab.studies.halves.table import accuracies_table, gains_table


@dataclass(frozen=True)
class Halves:
    """Accuracies with either half of the images randomized; the first line is the one without a regularizer.

    Attributes:
        paper: What the paper reports, by the names of the lines.
    """

    paper: Mapping[str, Papers]

    def finding(self, block: Block) -> Finding:
        """State whether networks rely on the simple half, and which lines do less, by the rule of :mod:`.claim`."""
        return found(block, self.paper)

    def sheets(self, block: Block) -> list[Sheet]:
        """Return the tables."""
        return [accuracies_table(block, self.paper), gains_table(block)]

    def drawings(self, block: Block) -> list[Drawing]:
        """Return the accuracies with either half randomized, and what less reliance on the simple half costs."""
        from effdeg.lab.studies.halves.figures import plot_cost, plot_halves

        return [
            Drawing(
                "halves",
                "Accuracy with both halves as they are, and with either randomized; bars are standard deviations over "
                "seeds, hollow dots the paper's.",
                lambda theme: plot_halves(block, self.paper, theme=theme),
            ),
            Drawing(
                "cost",
                "Accuracy with MNIST randomized against accuracy without: who is at the lower right relies on MNIST "
                "alone, who is on the diagonal on CIFAR alone. Bars are standard deviations over seeds.",
                lambda theme: plot_cost(block, theme=theme),
            ),
        ]

    def score(self, run: Record) -> str:
        """Describe how right a run was, and how right with either half randomized."""
        reached = accuracies(run)
        further = ", ".join(f"{name} {percent(value)}" for name, value in reached.items() if name != TEST)
        return percent(reached[TEST]) + (f" ({further})" if further else "")
