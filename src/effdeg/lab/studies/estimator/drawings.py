"""Which figures there are of the estimator's errors; matplotlib is needed only once one is drawn."""

from functools import partial
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
            partial(_draw, "bias", block),
        ),
        Drawing(
            "degrees",
            f"The exact effective degree up to degree K, as a share of that up to {REFERENCE}, and the estimates on "
            f"{NODES[-1]} cosine nodes (dots). A smooth function has a value; that of a piecewise linear one grows "
            "with log K.",
            partial(_draw, "degrees", block),
        ),
        Drawing(
            "cost",
            f"Forward passes for a standard error of {TOLERANCE:.0%} with the cheapest setting whose bias is at most "
            f"{UNBIASED:.0%}, labelled nodes/degree, and with the defaults of effdeg.measure (hollow).",
            partial(_draw, "cost", block),
        ),
        Drawing(
            "split",
            "Many paths or many nodes? The error (root of bias² + variance) that a fixed number of forward passes "
            "leaves, against the cosine nodes that each path is given, at the best degree for so many; dots at the "
            "least error.",
            partial(_draw, "split", block),
        ),
        Drawing(
            "warnings",
            "What a measurement can see of its own error. Left the residual, right the share of the estimate in the "
            f"upper half of the degrees; it warns above {RESIDUAL_LIMIT:g} and {UPPER_HALF_LIMIT:g}. Above "
            f"the horizontal line estimates are more than {WRONG:.0%} from {WHOLE}; hollow: nodes = degree + 1. What "
            "is smaller than the axes reach stands at their ends.",
            partial(_draw, "warnings", block),
        ),
    ]


def _draw(name: str, block: Block, theme: str) -> "Figure":
    # Only what is drawn needs matplotlib.
    from effdeg.lab.studies.estimator import choice_figures, figures

    plots = {
        "bias": figures.plot_bias,
        "degrees": figures.plot_degrees,
        "cost": choice_figures.plot_cost,
        "split": choice_figures.plot_split,
        "warnings": choice_figures.plot_warnings,
    }
    return plots[name](block, theme=theme)
