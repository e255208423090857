"""ViT-S on Tiny-ImageNet with the paper's original ImageNet recipe: plain, ED, mixup and CutMix."""

from functools import partial

from effdeg_lab.engine import check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes._imagenet import DEPARTS, ED, ORIGINAL, PLAIN, shrink
from effdeg_lab.studies.methods import Methods

make_recipe = partial(
    Recipe,
    paper="not in the paper, whose Table 3 is on ImageNet",
    cost="not known yet: no run on a GPU so far",
    run=train,
    check_data=check_training,
    study=Methods(candidate="ed"),
    methods=(
        Method("plain", "Plain", PLAIN),
        Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}),
        Method("cutmix", "CutMix", {"regularizer": "cutmix", "alpha": 1.0}),
        Method("ed", "ED", ED),
        # Of twice as many images per step, so in the time of plain training.
        Method("ed-30", "ED, 30 epochs", {**ED, "epochs": 30}),
    ),
    departs=(
        f"Tiny-ImageNet (100,000 images of 64 pixels, 200 classes) instead of ImageNet, with patches of 8 pixels, for "
        f"60 epochs; the shares of warm-up and of ED's ramp are the same. {DEPARTS} Nothing is tuned: ED has the "
        "paper's settings for ImageNet, mixup and CutMix have α = 1. A step with ED computes twice as many images, so "
        "30 epochs of it take about as long as plain training."
    ),
    equal_time="ed",
)

RECIPE = make_recipe(
    name="tiny-imagenet-vit",
    title="ViT-S on Tiny-ImageNet, the original recipe",
    expects="By the paper's ImageNet results, ED is about a point ahead of plain training.",
    settings=shrink(ORIGINAL),
)
