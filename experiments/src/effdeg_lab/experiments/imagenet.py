"""ViT-S from scratch on ImageNet, Table 3 of the paper, and on Tiny-ImageNet: two training recipes."""

from dataclasses import replace
from functools import partial
from typing import Any

from effdeg_lab.core.recipe import Method, Recipe, Reported
from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.show.methods import Methods

PLAIN = {"regularizer": "plain"}
ED: dict[str, Any] = {"regularizer": "ed", "weight": 3.0, "nodes": 4, "degree": 3, "pairs": 0.5, "sampling": "cosine"}
ED |= {"anchor": "labels", "components": 3}
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


def make_imagenet_recipe(
    name: str, settings: Training, paper: tuple[float, ...], expects: str, hours: str, departs: str
) -> Recipe:
    """Make a recipe of Table 3 from the paper's means and deviations, first without ED and then with it."""
    return make_recipe(
        name=f"imagenet-vit-{name}",
        title=f"ViT-S/16 from scratch on ImageNet, the {name} recipe",
        paper="Table 3, appendix F.2",
        expects=expects,
        cost=f"{hours} with ED, if decoding keeps up; with 16 cores 8.6. Estimated, not run so far",
        settings=settings,
        methods=(
            Method("plain", f"{name.capitalize()} recipe", PLAIN, Reported(*paper[:2])),
            Method("ed", "ED", ED, Reported(*paper[2:])),
        ),
        departs=f"{DEPARTS} {departs}",
    )


RECIPES = (
    make_imagenet_recipe(
        "original",
        ORIGINAL,
        (71.37, 0.17, 72.76, 0.16),
        "ED is 1.39 points ahead of plain training.",
        "4.3 h per run on an H200, 8.4",
        "The learning rate (0.003), weight decay (0.3), 10,000 steps of warm-up and dropout of 0.1, which also acts at "
        "the points of paths, are those of the ViT paper, which used batches of 4,096.",
    ),
    make_imagenet_recipe(
        "strong",
        STRONG,
        (74.42, 0.13, 75.01, 0.11),
        "ED is 0.59 points ahead of plain training.",
        "3.2 h per run on an H200, 6.3",
        "The recipe is big_vision's for ViT-S/16 (Beyer et al., 2022) without mixup, as in the paper: the mean of the "
        "patches instead of a class token, fixed positions, RandAugment(2, 10). Its weight decay of 0.0001 is not "
        "multiplied by the peak learning rate, which corresponds to 0.1 for AdamW. Its config has one more layer "
        "before the head and trains on 99% of the training images; here there is no such layer, and all are used. "
        "RandAugment has Pillow's Contrast and Solarize, and in a batch every operation gets as many images.",
    ),
    make_tiny_recipe(
        name="tiny-imagenet-vit",
        title="ViT-S on Tiny-ImageNet, the original recipe",
        expects="By the paper's ImageNet results, ED is about a point ahead of plain training.",
        cost="4.6 min per run on an H200, 8.8 with ED",
        settings=replace(shrink(ORIGINAL), lr=1e-3),
        departs=(
            f"{TINY_DEPARTS} The learning rate is the best of 0.002, 0.001 and 0.0005 on held-out images; with the "
            "0.003 of the paper on ViT (for batches of 4,096) and a tenth of training as warm-up, networks hardly "
            "learned."
        ),
    ),
    make_tiny_recipe(
        name="tiny-imagenet-vit-strong",
        title="ViT-S on Tiny-ImageNet, the strong recipe",
        expects="By the paper's ImageNet results, ED is about half a point ahead of plain training.",
        cost="2.9 min per run on an H200, 5.5 with ED",
        settings=shrink(STRONG),
    ),
)
