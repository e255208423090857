"""Figures 2 and 9 of the paper: which measure follows the generalization gap of 27 ResNet-18s on CIFAR-10?"""

from dataclasses import replace

from effdeg_lab.engine import check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes.cifar10_vit_pool import MEASURED_ON, POOL
from effdeg_lab.studies.pool import Pool

RECIPE = Recipe(
    name="cifar10-resnet18-pool",
    title="Measures of 27 ResNet-18s against their generalization gap",
    paper="Figures 2 and 9, appendices C.1 and D.1",
    expects=(
        "ED has the strongest Pearson correlation with the gap, ahead of sharpness and adaptive sharpness; the "
        "parameter norm correlates negatively. Along paths between random pixels ED's correlation is slightly weaker."
    ),
    cost="2 min per run on one H200",
    settings=replace(
        POOL, model="resnet18", optimizer="sgd", lr=0.1, weight_decay=1e-5, decay="steps", warm_up=0.0, clip=None
    ),
    run=train,
    check_data=check_training,
    study=Pool(),
    methods=(Method("plain", "ResNet-18", {"regularizer": "plain"}),),
    departs=(
        "The paper does not state the following: there are 100 epochs; the learning rate falls to a tenth after half "
        "of them and again after three quarters; momentum is 0.9; training runs in bf16, without augmentation, so that "
        f"every network can overfit. {MEASURED_ON}"
    ),
    grid={"batch": (256, 512, 1024), "lr": (0.1, 0.01, 0.001), "weight_decay": (1e-5, 1e-6, 1e-7)},
)
