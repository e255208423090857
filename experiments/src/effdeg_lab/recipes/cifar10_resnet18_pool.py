"""Figures 2 and 9 of the paper: which measure follows the generalization gap of 27 ResNet-18s on CIFAR-10?"""

from effdeg_lab.engine import Training, train
from effdeg_lab.recipe import Method, Recipe
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
    settings=Training(
        data="cifar10",
        model="resnet18",
        epochs=100,
        optimizer="sgd",
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-5,
        decay="steps",
        warm_up=0.0,
        clip=None,
        augment="none",
        proxies=("all",),
    ),
    run=train,
    study=Pool(),
    methods=(Method("plain", "ResNet-18", {"regularizer": "plain"}),),
    departs=(
        "The paper names neither the epochs nor the milestones of the rate, nor the momentum, nor whether images are "
        "augmented: the recipe has 100 epochs, a tenth of the rate from half of them and again from three quarters, "
        "momentum 0.9, bf16, and no augmentation, so that every network can open its gap. ED is measured "
        "on the same 2,048 training images as the other measures and, in the columns that end with _test, on 2,000 "
        "test images; the paper does not say on which. Sharpness is taken on these training images instead of all."
    ),
    grid={"batch": (256, 512, 1024), "lr": (0.1, 0.01, 0.001), "weight_decay": (1e-5, 1e-6, 1e-7)},
)
