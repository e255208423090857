"""Which of my networks? ResNets, vision transformers and MLPs by random search on 6,000 images of CIFAR-10."""

from dataclasses import replace

from effdeg_lab.engine import check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes._picking import LARGE_RESNETS, RESNETS, SETTINGS, VITS, search
from effdeg_lab.studies.picking import Picking

RECIPE = Recipe(
    name="picking-cifar10",
    title="Picking the best of several networks without labels, on CIFAR-10 and with corruptions",
    paper="not in the paper",
    expects=(
        "In a trial of 206 networks, changed predictions and disagreement found the best of five with 78 to 99% of the "
        "possible gain, for ConvNets and transformers alike."
    ),
    cost="about 2 s per run on an H200 that 14 runs share by MPS (estimated)",
    settings=replace(SETTINGS, data="cifar10", limit=6000),
    run=train,
    check_data=check_training,
    study=Picking(),
    methods=(Method("random", "Random search"),),
    departs=(
        "210 networks, with two seeds each, on 6,000 images: 80 ResNet-9s of four widths, 80 small vision transformers "
        "of three depths and two sizes of patches, 30 MLPs, 20 ResNet-18s of three widths. Observed on 2,000 test "
        "images and, if there are any, on 2,000 with corruptions."
    ),
    seeds=(0, 1),
    search=search({RESNETS: 80, VITS: 80, ("mlp",): 30, LARGE_RESNETS: 20}),
)
