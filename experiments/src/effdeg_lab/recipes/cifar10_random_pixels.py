"""Table 5 of the paper: ED along paths between images of noise, for ViT-Tiny on CIFAR-10."""

from effdeg_lab.recipe import Method, Reported
from effdeg_lab.recipes.cifar10_methods import DEPARTS, ED, PLAIN, make_recipe
from effdeg_lab.studies.methods import Methods

RANDOM_PIXELS = {**ED, "ends": "random-pixels", "anchor": "none"}

RECIPE = make_recipe(
    name="cifar10-random-pixels",
    title="ED along paths between images of noise",
    paper="Tables 5 and 10, appendix C.1",
    expects="Between images of noise instead of examples, ED gains nothing over the baseline.",
    cost="5 min per plain run on one H200, 8.5 with ED, 12 with ED on random pixels",
    study=Methods(candidate="ed"),
    methods=(
        Method("plain", "Baseline", PLAIN, Reported(87.80, 1.17)),
        Method("ed", "ED", ED, Reported(90.18, 0.14)),
        Method("random-pixels", "ED (random pixels)", RANDOM_PIXELS, Reported(87.31, 0.80)),
    ),
    departs=(
        f"{DEPARTS} Table 5 has ED's precise configuration (90.82 ± 0.11), and so probably random pixels; here both "
        "are the efficient one, ED with its number of Table 10. Noise has no labels, and the paper does not say what "
        "anchors its paths: here the network's own outputs."
    ),
    equal_time="ed",
)
