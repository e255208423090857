"""Which of my networks? ResNet-9s, vision transformers and MLPs by random search on 500 digits, on a CPU."""

from dataclasses import replace
from typing import Any

from effdeg_lab.recipes import _picking
from effdeg_lab.recipes.picking_cifar10 import RECIPE as CIFAR10
from effdeg_lab.search import Draws


def draw(draws: Draws, model: str) -> dict[str, Any]:
    """Draw how a network is trained: in small batches, and never on mirrored digits."""
    return _picking.draw(draws, model) | {"batch": draws.choice(16, 32, 64), "augment": "none"}


RECIPE = replace(
    CIFAR10,
    name="picking-mnist",
    title="Picking the best of several networks without labels, on MNIST",
    expects="The measure that was chosen on CIFAR-10 picks as well here.",
    cost="15 min on 2 cores",
    settings=replace(_picking.SETTINGS, data="mnist", limit=500, measure_paths=50, precision="float32"),
    departs=(
        "16 ResNet-9s of width 8, 24 small vision transformers and 24 MLPs with one seed, on 500 digits, and otherwise "
        "as on CIFAR-10. The change is a shift: a mirrored digit is another one."
    ),
    seeds=(0,),
    search=_picking.search({("resnet9-8",): 16, ("vit-64x2-7",): 24, ("mlp",): 24}, draw),
)
