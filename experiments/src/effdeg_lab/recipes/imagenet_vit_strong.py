"""Table 3 of the paper, second half: ViT-S/16 from scratch on ImageNet with a stronger recipe, plain and with ED."""

from effdeg_lab.recipe import Method, Reported
from effdeg_lab.recipes._imagenet import DEPARTS, ED, PLAIN, STRONG, make_recipe

RECIPE = make_recipe(
    name="imagenet-vit-strong",
    title="ViT-S/16 from scratch on ImageNet, the strong recipe",
    paper="Table 3, appendix F.2",
    expects="ED is 0.59 points ahead of plain training.",
    cost="3.2 h per run on an H200, 6.3 with ED, if decoding keeps up; with 16 cores 8.6. Estimated, not run so far",
    settings=STRONG,
    methods=(
        Method("plain", "Strong recipe", PLAIN, Reported(74.42, 0.13)),
        Method("ed", "ED", ED, Reported(75.01, 0.11)),
    ),
    departs=(
        f"{DEPARTS} The recipe is big_vision's for ViT-S/16 (Beyer et al., 2022) without mixup, as in the paper: the "
        "mean of the patches instead of a class token, fixed positions, RandAugment(2, 10). Its weight decay of 0.0001 "
        "is not multiplied by the peak learning rate, which corresponds to 0.1 for AdamW. Its config has one more "
        "layer before the head and trains on 99% of the training images; here there is no such layer, and all are "
        "used. RandAugment has Pillow's Contrast and Solarize, and in a batch every operation gets as many images."
    ),
)
