"""Shared by the recipes of ViT-S on ImageNet and on Tiny-ImageNet: the original and the strong training recipe."""

from dataclasses import replace
from functools import partial
from typing import Any

from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.methods import Methods

PLAIN = {"regularizer": "plain"}
ED: dict[str, Any] = {
    "regularizer": "ed",
    "weight": 3.0,
    "nodes": 4,
    "degree": 3,
    "pairs": 0.5,
    "sampling": "cosine",
    "anchor": "labels",
    "components": 3,
}
ORIGINAL = Training(
    data="imagenet",
    pixels=224,
    model="vit-s16",
    dropout=0.1,
    epochs=90,
    batch=1024,
    optimizer="adamw",
    lr=3e-3,
    weight_decay=0.3,
    decay_on="matrices",
    decay="cosine",
    warm_up_steps=10_000,
    clip=1.0,
    augment="resized-crop-flip",
    crop_scale=0.05,
    ramp=30 / 90,
)
STRONG = replace(
    ORIGINAL,
    model="vit-s16-mean-sincos",
    dropout=0.0,
    lr=1e-3,
    weight_decay=0.1,
    augment="resized-crop-flip-randaugment",
)
DEPARTS = (
    "The paper states 90 epochs, AdamW and a batch of 1,024, and refers to its sources for everything else. As "
    "published by ViT's authors, weight decay acts on the weights of layers only, crops cover at least 5% of the area, "
    "pixels are scaled to [-1, 1], and weights are initialized as in big_vision. Unlike theirs, crops that shrink are "
    "antialiased. Not stated in the paper: training runs in bf16; ED pairs different examples, within each process "
    "if there are several, and damps its fits by 1e-3."
)
TINY_DEPARTS = (
    f"Tiny-ImageNet (100,000 images of 64 pixels, 200 classes) instead of ImageNet, with patches of 8 pixels, for "
    f"60 epochs; ED's ramp takes the same share of training, and warm-up a sixth instead of a tenth, since 60 epochs "
    f"have only 5,820 steps. {DEPARTS} ED has the paper's settings for ImageNet, mixup and CutMix have α = 1. A step "
    "with ED computes twice as many images, so 30 epochs of it take about as long as plain training."
)
make_recipe = partial(Recipe, run=train, check_data=check_training, study=Methods(candidate="ed"), equal_time="ed")
make_tiny_recipe = partial(
    make_recipe,
    paper="not in the paper, whose Table 3 is on ImageNet",
    departs=TINY_DEPARTS,
    methods=(
        Method("plain", "Plain", PLAIN),
        Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}),
        Method("cutmix", "CutMix", {"regularizer": "cutmix", "alpha": 1.0}),
        Method("ed", "ED", ED),
        # A step computes twice as many images, so this takes about as long as plain training.
        Method("ed-30", "ED, 30 epochs", {**ED, "epochs": 30}),
    ),
)


def shrink(settings: Training) -> Training:
    """Adapt settings to Tiny-ImageNet: 64 patches of 8 pixels, 60 epochs, and more of them for warm-up."""
    model = settings.model.replace("vit-s16", "vit-s8")
    tiny: dict[str, Any] = {"data": "tiny-imagenet", "pixels": None, "model": model, "epochs": 60}
    return replace(settings, **tiny, warm_up_steps=None, warm_up=1 / 6)
