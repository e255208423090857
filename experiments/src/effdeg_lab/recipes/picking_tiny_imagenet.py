"""Which of my networks? ResNet-9s and vision transformers by random search on 10,000 images of Tiny-ImageNet."""

from dataclasses import replace

from effdeg_lab.recipes._picking import RESNETS, SETTINGS, VITS, search
from effdeg_lab.recipes.picking_cifar10 import RECIPE as CIFAR10

RECIPE = replace(
    CIFAR10,
    name="picking-tiny-imagenet",
    title="Picking the best of several networks without labels, on Tiny-ImageNet",
    expects="The measure that was chosen on CIFAR-10 picks as well here.",
    cost="about 3 s per run on an H200 that 14 runs share by MPS (estimated)",
    settings=replace(SETTINGS, data="tiny-imagenet", limit=10_000, pixels=32),
    departs=(
        "32 ResNet-9s and 16 small vision transformers with one seed, on 10,000 images of 200 classes that are reduced "
        "to 32 pixels, and otherwise as on CIFAR-10."
    ),
    seeds=(0,),
    search=search({RESNETS[1:]: 32, VITS: 16}),
)
