"""Which figures there are of the estimator's errors; matplotlib is needed only once one is drawn."""

from typing import TYPE_CHECKING

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.studies.estimator.choices import UNBIASED, WRONG
from effdeg.lab.studies.estimator.grid import NODES
from effdeg.lab.studies.estimator.outcomes import REFERENCE, TOLERANCE, WHOLE
from effdeg.measurement import RESIDUAL_LIMIT, UPPER_HALF_LIMIT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawings(block: Block) -> list[Drawing]:
    """Give the figures, the most telling first."""
    return [
        Drawing(
            "bias",
            "How far the estimate lies from the exact value at the same degree, against the number of nodes: a line "
            f"for each degree of the fit, labelled with it at its beginning. Grey: within {UNBIASED:.0%}.",
            lambda theme: _bias(block, theme),
        ),
        Drawing(
            "degrees",
            f"The exact effective degree up to degree K, as a share of that up to {REFERENCE}, and the estimates on "
            f"{NODES[-1]} cosine nodes (dots). A smooth function has a value; that of a piecewise linear one grows "
            "with log K.",
            lambda theme: _degrees(block, theme),
        ),
        Drawing(
            "cost",
            f"Forward passes for a standard error of {TOLERANCE:.0%} with the cheapest setting whose bias is at most "
            f"{UNBIASED:.0%}, labelled nodes/degree, and with the defaults of effdeg.measure (hollow).",
            lambda theme: _cost(block, theme),
        ),
        Drawing(
            "split",
            "Many paths or many nodes? The error (root of bias² + variance) that a fixed number of forward passes "
            "leaves, against the cosine nodes that each path is given, at the best degree for so many; dots at the "
            "least error.",
            lambda theme: _split(block, theme),
        ),
        Drawing(
            "warnings",
            "What a measurement can see of its own error. Left the residual, right the share of the estimate in the "
            f"upper half of the degrees; it warns above {RESIDUAL_LIMIT:g} and {UPPER_HALF_LIMIT:g}. Above "
            f"the horizontal line estimates are more than {WRONG:.0%} from {WHOLE}; hollow: nodes = degree + 1. What "
            "is smaller than the axes reach stands at their ends.",
            lambda theme: _warnings(block, theme),
        ),
    ]


def _bias(block: Block, theme: str) -> "Figure":
    from effdeg.lab.studies.estimator.figures import plot_bias

    return plot_bias(block, theme=theme)


def _degrees(block: Block, theme: str) -> "Figure":
    from effdeg.lab.studies.estimator.figures import plot_degrees

    return plot_degrees(block, theme=theme)


def _cost(block: Block, theme: str) -> "Figure":
    from effdeg.lab.studies.estimator.choice_figures import plot_cost

    return plot_cost(block, theme=theme)


def _split(block: Block, theme: str) -> "Figure":
    from effdeg.lab.studies.estimator.choice_figures import plot_split

    return plot_split(block, theme=theme)


def _warnings(block: Block, theme: str) -> "Figure":
    from effdeg.lab.studies.estimator.choice_figures import plot_warnings

    return plot_warnings(block, theme=theme)
