"""Table 7 of the paper: ED along paths at a layer instead of the inputs, for ViT-Tiny on CIFAR-10.

Expected: the baseline 86.49, at the inputs 89.99, after the embedding 88.92, after the first block 88.18.
Cost on one H200: about five minutes per plain run of 300 epochs, eight with ED at the inputs. Paths at a
layer cannot be compiled: about a quarter of an hour.
"""

from effdeg_lab.recipe import Recipe, Reported, Method
from effdeg_lab.recipes.cifar10_methods import ED, PLAIN, SETTINGS, TRAINING_DEPARTS
from effdeg_lab.engine import train

RECIPE = Recipe(
    name="cifar10-layers",
    title="ED along paths at a layer",
    paper="Table 7, appendix C.3",
    expects="ED helps at every layer, most at the inputs, less the later the paths begin.",
    cost="5 min per plain run on one H200, 8.5 with ED at the inputs, 15 at a layer",
    settings=SETTINGS,
    run=train,
    methods=(
        Method("plain", "Baseline", PLAIN, Reported(86.49)),
        Method("input", "Input", ED, Reported(89.99)),
        Method("embedding", "Embedding", {**ED, "at": "embed"}, Reported(88.92)),
        Method("block-1", "After block 1", {**ED, "at": "blocks.0"}, Reported(88.18)),
    ),
    departs=(
        f"{TRAINING_DEPARTS} The paper gives one number per line, without a spread, and does not name the "
        "configuration: here it is the efficient one, with the same weight at every layer."
    ),
)
