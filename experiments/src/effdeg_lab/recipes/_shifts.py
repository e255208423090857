"""Shared by the recipes of fine-tuning under distribution shifts: the paper's ED for CLIP, and the methods."""

from collections.abc import Mapping
from typing import Any

from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.recipe import Method, Recipe, Reported
from effdeg_lab.studies.shifts import Shifts

# From the paper's appendix F.3: half of the batch as pairs, principal components of the probabilities, and no ramp.
ED: dict[str, Any] = {"regularizer": "ed", "weight": 2.0, "nodes": 4, "degree": 3, "pairs": 0.5, "components": 3}
ED |= {"ramp": 0.0}
RATES = {"lr": (1e-4, 3e-5, 3e-4)}  # the first wins a tie
# The columns of the paper's Table 2: the shifts, and their mean. The paper has no numbers for curves.
COLUMNS = ("imagenet-v2", "imagenet-r", "imagenet-a", "imagenet-sketch", "objectnet", "mean")


def make_small_methods() -> tuple[Method, ...]:
    """List the methods for small data; all but the one with a random head start from the same probe."""
    lr = {"lr": 1e-4}
    tuned = {**RATES, "weight": (2.0, 0.5, 8.0)}
    return (
        Method("plain", "Plain (LP-FT)", lr, tune=RATES),
        Method("random-head", "Plain, random head", {**lr, "start_from": "pretrained"}, tune=RATES),
        Method("mixup", "Mixup", {**lr, "regularizer": "mixup", "alpha": 1.0}, tune=RATES),
        Method("ed", "ED", {**lr, **ED}, tune=tuned),
        Method("ed-self", "ED, own ends", {**lr, **ED, "anchor": "self"}, tune=tuned),
    )


def make_clip_recipe(
    settings: Training, *, network: str, expects: str, paper: Mapping[str, tuple[Reported, ...]]
) -> Recipe:
    """Make the recipe of a CLIP encoder; ``paper`` has ImageNet first, then the columns above."""
    shifts = {name: dict(zip(COLUMNS, row[1:], strict=True)) for name, row in paper.items()}
    return Recipe(
        name=f"clip-finetune-{settings.model.removeprefix('clip-')}",
        title=f"Fine-tuning CLIP {network} on ImageNet, and five shifts of it",
        paper="Table 2, Figure 5, section 6.2, appendix F.3",
        expects=expects,
        cost="not known yet: no run so far",
        settings=settings,
        run=train,
        check_data=check_training,
        study=Shifts(paper=shifts),
        methods=(
            Method("plain", "Plain", {"regularizer": "plain"}, paper["plain"][0]),
            Method("ed", "ED", ED, paper["ed"][0]),
        ),
        departs=(
            "Where the paper is silent, settings are those of WiSE-FT, which it follows: zero-shot head, features of "
            "norm 1, random resized crops of 0.9 to 1 of the area without flips, AdamW with weight decay 0.1, 500 "
            "steps of warm-up, clipping at 1. The paper calls its learning rate fixed; here it falls along a cosine, "
            "as in WiSE-FT. For a constant rate, set decay=constant and warm_up_steps=0. ImageNetV2 is the "
            "matched-frequency set. ImageNet's own images are resized by bilinear interpolation, those of its shifts "
            "by bicubic. Weights between start and end are tested on 2,000 images of each set."
        ),
    )
