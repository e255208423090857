"""The figures of the estimator's errors, with their captions."""

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.studies.estimator.choice_figures import plot_cost, plot_split, plot_warnings
from effdeg.lab.studies.estimator.choices import UNBIASED, WRONG
from effdeg.lab.studies.estimator.figures import plot_bias, plot_degrees
from effdeg.lab.studies.estimator.grid import NODES
from effdeg.lab.studies.estimator.outcomes import REFERENCE, TOLERANCE, WHOLE
from effdeg.measure._measurement import RESIDUAL_LIMIT, UPPER_HALF_LIMIT


def drawings(block: Block) -> list[Drawing]:
    """Return the figures, the most telling first."""
    return [
        Drawing(
            "bias",
            "How far the estimate lies from the exact value at the same degree, against the number of nodes: a line "
            f"for each degree of the fit, labelled with it at its beginning. Grey: within {UNBIASED:.0%}.",
            lambda theme: plot_bias(block, theme=theme),
        ),
        Drawing(
            "degrees",
            f"The exact effective degree up to degree K, as a share of that up to {REFERENCE}, and the estimates on "
            f"{NODES[-1]} cosine nodes (dots). A smooth function has a value; that of a piecewise linear one grows "
            "with log K.",
            lambda theme: plot_degrees(block, theme=theme),
        ),
        Drawing(
            "cost",
            f"Forward passes for a standard error of {TOLERANCE:.0%} with the cheapest setting whose bias is at most "
            f"{UNBIASED:.0%}, labelled nodes/degree, and with the defaults of effdeg.measure (hollow).",
            lambda theme: plot_cost(block, theme=theme),
        ),
        Drawing(
            "split",
            "Many paths or many nodes? The error (root of bias² + variance) that a fixed number of forward passes "
            "leaves, against the cosine nodes that each path is given, at the best degree for so many; dots at the "
            "least error.",
            lambda theme: plot_split(block, theme=theme),
        ),
        Drawing(
            "warnings",
            "What a measurement can see of its own error. Left the residual, right the share of the estimate in the "
            f"upper half of the degrees; it warns above {RESIDUAL_LIMIT:g} and {UPPER_HALF_LIMIT:g}. Above "
            f"the horizontal line estimates are more than {WRONG:.0%} from {WHOLE}; hollow: nodes = degree + 1. What "
            "is smaller than the axes reach stands at their ends.",
            lambda theme: plot_warnings(block, theme=theme),
        ),
    ]
