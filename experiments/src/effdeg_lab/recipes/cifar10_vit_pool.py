"""Figure 7 of the paper: which measure follows the generalization gap of 27 ViT-Tinys on CIFAR-10?"""

from effdeg_lab.engine import Training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.pool import Pool

RECIPE = Recipe(
    name="cifar10-vit-pool",
    title="Measures of 27 ViT-Tinys against their generalization gap",
    paper="Figure 7, appendices B.1 and D.1",
    expects=(
        "ED has a strong positive correlation with the gap; sharpness and adaptive sharpness predict it less, and the "
        "parameter norm correlates negatively."
    ),
    cost="2 min per run on one H200",
    settings=Training(
        data="cifar10",
        model="vit-tiny",
        epochs=100,
        optimizer="adamw",
        lr=0.001,
        weight_decay=1e-4,
        decay="cosine",
        warm_up_epochs=10,
        clip=1.0,
        augment="none",
        proxies=("all",),
    ),
    run=train,
    study=Pool(),
    methods=(Method("plain", "ViT-Tiny", {"regularizer": "plain"}),),
    departs=(
        "The paper names neither the epochs nor a warm-up, nor whether images are augmented: the recipe has 100 "
        "epochs, the 10 epochs of warm-up of its table of methods, and no augmentation, so that every network can "
        "open its gap. Nor does it say any of the following: gradients are clipped at norm 1; training runs in bf16; "
        "weight decay acts on all parameters; ViT-Tiny has a class token, patches of 4 pixels, width 192, depth 12 and "
        "3 heads. ED is measured on the same 2,048 training images as the other measures and, in the columns that end "
        "with _test, on 2,000 test images; the paper does not say on which. Sharpness is taken on these training "
        "images instead of all."
    ),
    grid={"batch": (256, 512, 1024), "lr": (0.005, 0.001, 0.0005), "weight_decay": (1e-3, 1e-4, 1e-5)},
)
