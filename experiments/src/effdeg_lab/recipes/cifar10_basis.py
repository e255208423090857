"""Table 6 of the paper: ED with Legendre instead of Chebyshev polynomials, for ViT-Tiny on CIFAR-10."""

from effdeg_lab.recipe import Method, Reported
from effdeg_lab.recipes.cifar10_methods import ED, make_recipe

RECIPE = make_recipe(
    name="cifar10-basis",
    title="ED by other polynomials",
    paper="Table 6, appendix C.2",
    expects="Chebyshev and Legendre polynomials do equally well.",
    cost="8 min per run on one H200",
    methods=(
        Method("chebyshev", "Chebyshev", ED, Reported(90.18, 0.14)),
        Method("legendre", "Legendre", {**ED, "basis": "legendre"}, Reported(89.89, 1.29)),
    ),
)
