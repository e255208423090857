"""Appendix I of the paper: polynomial networks learn six polynomial maps; is their effective degree right?"""

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.polynomial_networks import DEGREES, PolynomialFit, PolynomialNetworks, run_fit

RECIPE = Recipe(
    name="pnn",
    title="Polynomial networks",
    paper="Table 12, appendix I",
    expects="In every column, ED rises with the map's degree and doubles with its outputs, unless it is normalized.",
    cost="35 s per run on one CPU core, 10 min in all",
    settings=PolynomialFit(),
    run=run_fit,
    methods=tuple(Method(f"task-{task}", f"Task {task}", {"task": task}) for task in DEGREES),
    departs=(
        "The paper does not state the width, the inputs, or how it trains and measures: here the width is 16, inputs "
        "are uniform on [-2, 2]³, from which its numbers follow, training uses the Levenberg–Marquardt method in "
        "float64, and 20,000 paths have 16 Chebyshev nodes and fits of degree 10, above the networks' 8."
    ),
    study=PolynomialNetworks(),
)
