"""Table 3 of the paper, first half: ViT-S/16 from scratch on ImageNet as in the ViT paper, plain and with ED."""

from effdeg_lab.recipe import Method, Reported
from effdeg_lab.recipes._imagenet import DEPARTS, ED, ORIGINAL, PLAIN, make_recipe

RECIPE = make_recipe(
    name="imagenet-vit-original",
    title="ViT-S/16 from scratch on ImageNet, the original recipe",
    paper="Table 3, appendix F.2",
    expects="ED is 1.39 points ahead of plain training.",
    cost="4.3 h per run on an H200, 8.4 with ED, if decoding keeps up; with 16 cores 8.6. Estimated, not run so far",
    settings=ORIGINAL,
    methods=(
        Method("plain", "Original recipe", PLAIN, Reported(71.37, 0.17)),
        Method("ed", "ED", ED, Reported(72.76, 0.16)),
    ),
    departs=(
        f"{DEPARTS} The learning rate (0.003), weight decay (0.3), 10,000 steps of warm-up and dropout of 0.1, which "
        "also acts at the points of paths, are those of the ViT paper, which used batches of 4,096."
    ),
)
