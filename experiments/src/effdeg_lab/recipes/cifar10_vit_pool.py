"""Figure 7 of the paper: which measure follows the generalization gap of 27 ViT-Tinys on CIFAR-10?"""

from dataclasses import replace

from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes.cifar10_methods import UNSTATED
from effdeg_lab.studies.pool import Pool

POOL = Training(data="cifar10", epochs=100, augment="none", proxies=("all",))
MEASURED_ON = (
    "The paper does not say on which images it measures ED: here on the same 2,048 training images as the other "
    "measures and, in columns that end with _test, on 2,000 test images. Sharpness, too, is that on 2,048 training "
    "images, not on all."
)

RECIPE = Recipe(
    name="cifar10-vit-pool",
    title="Measures of 27 ViT-Tinys against their generalization gap",
    paper="Figure 7, appendices B.1 and D.1",
    expects=(
        "ED has a strong positive correlation with the gap; sharpness and adaptive sharpness predict it less, and the "
        "parameter norm correlates negatively."
    ),
    cost="2 min per run on one H200",
    settings=replace(
        POOL, model="vit-tiny", optimizer="adamw", lr=0.001, weight_decay=1e-4, decay="cosine", warm_up_epochs=10
    ),
    run=train,
    check_data=check_training,
    study=Pool(),
    methods=(Method("plain", "ViT-Tiny", {"regularizer": "plain"}),),
    departs=(
        f"{UNSTATED}; there are 100 epochs, 10 of them warm-up as in its table of methods, and no augmentation, so "
        f"that every network can overfit. {MEASURED_ON}"
    ),
    grid={"batch": (256, 512, 1024), "lr": (0.005, 0.001, 0.0005), "weight_decay": (1e-3, 1e-4, 1e-5)},
)
