"""Appendix I of the paper: networks that are polynomials learn six polynomial maps; is the effective degree right?"""

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.polynomial_networks import DEGREES, PolynomialFit, PolynomialNetworks, run_fit

RECIPE = Recipe(
    name="pnn",
    title="Polynomial networks",
    paper="Table 12, appendix I",
    expects="ED rises with the degree of the map in every column and doubles with its outputs; normalized it stays.",
    cost="35 s per run on one CPU core, 10 min in all",
    settings=PolynomialFit(),
    run=run_fit,
    methods=tuple(Method(f"task-{task}", f"Task {task}", {"task": task}) for task in DEGREES),
    departs=(
        "The paper names neither width nor inputs, nor how it trains and measures: here the width is 16, inputs are "
        "uniform on [-2, 2]³, from which its numbers follow, training is by Levenberg and Marquardt's method in "
        "float64, and 20,000 paths have 16 Chebyshev nodes and fits of degree 10, more than the networks have."
    ),
    study=PolynomialNetworks(),
)
