"""Table 9 of the paper: ED on principal components of the outputs, for ViT-Tiny on CIFAR-10."""

from effdeg_lab.recipe import Method, Reported
from effdeg_lab.recipes.cifar10_methods import DEPARTS, ED, make_recipe

RECIPE = make_recipe(
    name="cifar10-components",
    title="ED on principal components of the outputs",
    paper="Table 9, appendix C.5",
    expects="Two or three components do as well as all outputs; a single one loses a point.",
    cost="8 min per run on one H200",
    methods=(
        Method("none", "No PCA", ED, Reported(89.99)),
        Method("3", "3 components", {**ED, "components": 3}, Reported(89.84)),
        Method("2", "2 components", {**ED, "components": 2}, Reported(89.90)),
        Method("1", "1 component", {**ED, "components": 1}, Reported(88.75)),
    ),
    departs=(
        f"{DEPARTS} The paper gives no spread. The mean over few components is larger than that over 10 outputs, so "
        "the same weight has more effect; the paper does not say whether it changed the weight, and here it is kept."
    ),
)
