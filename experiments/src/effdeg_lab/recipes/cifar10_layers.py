"""Table 7 of the paper: ED along paths at a layer instead of the inputs, for ViT-Tiny on CIFAR-10."""

from effdeg_lab.recipe import Method, Reported
from effdeg_lab.recipes.cifar10_methods import DEPARTS, ED, PLAIN, make_recipe
from effdeg_lab.studies.methods import Methods

RECIPE = make_recipe(
    name="cifar10-layers",
    title="ED along paths at a layer",
    paper="Table 7, appendix C.3",
    expects="ED helps at every layer, most at the inputs and less at later layers.",
    cost="5 min per plain run on one H200, 8.5 with ED at the inputs, 15 at a layer",
    study=Methods(candidate="input"),
    methods=(
        Method("plain", "Baseline", PLAIN, Reported(86.49)),
        Method("input", "Input", ED, Reported(89.99)),
        Method("embedding", "Embedding", {**ED, "at": "embed"}, Reported(88.92)),
        Method("block-1", "After block 1", {**ED, "at": "blocks.0"}, Reported(88.18)),
    ),
    departs=(
        f"{DEPARTS} The paper gives no spread and does not name the configuration: here it is the efficient one, with "
        "the same weight at every layer."
    ),
)
