"""CLIP ViT-B/16 on ImageNet, from its zero-shot head. With the paper's hyperparameters."""

from dataclasses import replace

from effdeg_lab.recipe import Reported
from effdeg_lab.recipes._shifts import make_clip_recipe
from effdeg_lab.recipes.clip_finetune_b32 import SETTINGS

RECIPE = make_clip_recipe(
    replace(SETTINGS, model="clip-b16"),
    network="ViT-B/16",
    expects="ED gains 0.84 points on ImageNet and 1.60 on the mean of five shifts; its curve lies above that of plain.",
    # ImageNet, V2, R, A, Sketch, ObjectNet, and the mean of the five.
    paper={
        "plain": (
            *(Reported(81.35, 0.11), Reported(70.89, 0.13), Reported(65.32, 0.10), Reported(36.63, 0.11)),
            *(Reported(45.45, 0.32), Reported(50.14, 0.14), Reported(53.69, 0.04)),
        ),
        "ed": (
            *(Reported(82.19, 0.03), Reported(72.04, 0.27), Reported(66.30, 0.24), Reported(39.81, 0.66)),
            *(Reported(47.53, 0.17), Reported(50.76, 0.11), Reported(55.29, 0.14)),
        ),
    },
)
