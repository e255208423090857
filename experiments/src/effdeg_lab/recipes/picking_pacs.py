"""Which of my fine-tuned networks, for paintings, cartoons and sketches? DeiT-Tinys fine-tuned on photos (PACS)."""

from dataclasses import replace
from typing import Any

from effdeg_lab.recipes._picking import SETTINGS, search
from effdeg_lab.recipes.picking_cifar10 import RECIPE as CIFAR10
from effdeg_lab.search import Draws


def draw(draws: Draws, model: str) -> dict[str, Any]:
    """Draw a fine-tuning."""
    alpha = draws.zero_or_uniform(0.1, 1.0)
    return {
        "regularizer": "mixup" if alpha else "plain",
        "alpha": alpha,
        "model": model,
        "start_from": draws.choice("probe", "pretrained"),
        "lr": draws.log_uniform(1e-5, 1e-3),
        "weight_decay": draws.log_uniform(1e-4, 0.6),
        "batch": draws.choice(32, 64),
        "epochs": draws.choice(4, 8, 16),
        "augment": draws.choice("none", "resized-crop-flip"),
        "crop_scale": draws.choice(0.3, 0.9),
        "smoothing": draws.choice(0.0, 0.1),
    }


RECIPE = replace(
    CIFAR10,
    name="picking-pacs",
    title="Picking the best of several fine-tuned DeiT-Tinys without labels, for paintings, cartoons and sketches",
    expects="The measure that was chosen on CIFAR-10 picks as well here.",
    cost="about 5 s per run on an H200 that 14 runs share by MPS (estimated)",
    settings=replace(
        SETTINGS, data="pacs", model="deit-tiny", start_from="probe", pixels=128, observe=1000, measure_paths=60
    ),
    departs="48 fine-tunings of DeiT-Tiny with one seed on 1,336 photos at 128 pixels, observed on 1,000 images of "
    "each other domain and on 334 photos.",
    seeds=(0,),
    search=search({("deit-tiny",): 48}, draw),
)
