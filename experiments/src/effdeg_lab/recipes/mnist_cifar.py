"""Appendix H of the paper: ViT-Tiny on images whose class both a simple half, MNIST, and a complex half, CIFAR, give.

Expected: the baseline 99.85, with MNIST randomized 48.05 and with CIFAR randomized 99.85; ED 99.90, 47.95 and 99.90:
both rely on MNIST almost entirely. Beyond the paper: penalties and, for comparison, plain training on recombined
images, which are to make the network look at CIFAR.
Seen, over three seeds: as in the paper; with the simple half held back or swapped 81% with MNIST randomized, for 19 and
12 points of test accuracy.
Cost on one H200: 10 s per plain run, 17 with ED or with cuts, 25 with the other penalties, whose ends must be run too.
"""

from dataclasses import replace

from effdeg_lab.engine import train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes.cifar10_methods import ED, PLAIN, SETTINGS, TRAINING_DEPARTS
from effdeg_lab.studies.mnist_cifar import Accuracies, MnistCifar

RECIPE = Recipe(
    name="mnist-cifar",
    title="When simplicity misleads: MNIST stacked on CIFAR-10",
    paper="Table 11, appendix H",
    expects=(
        "The baseline and ED rely on MNIST almost entirely: with it randomized both are at chance (48.05 and 47.95), "
        "with CIFAR randomized as good as without (99.85 and 99.90)."
    ),
    cost="10 s per plain run on one H200, 17 with ED, 25 without anchors",
    settings=replace(
        SETTINGS, data="mnist-cifar", epochs=30, augment="none", ramp=1 / 3, evaluate_every=5, measure_every=0
    ),
    run=train,
    methods=(
        Method("plain", "Baseline", PLAIN),
        Method("ed", "ED", ED),
        Method("cutmix", "CutMix", {**PLAIN, "augment": "cutmix"}),
        Method("cuts", "ED, cuts", {**ED, "ends": "cuts"}),
        Method(
            "balanced",
            "ED, balanced",
            {**ED, "weight": 3.0, "pairs": 0.25, "ends": "balanced", "anchor_labels": False},
        ),
        Method("swapped", "Simple half swapped", {**PLAIN, "augment": "swap-simple-half"}),
        Method("simple-half", "ED, simple half", {**ED, "ends": "simple-half", "anchor_labels": False}),
    ),
    departs=(
        f"{TRAINING_DEPARTS} The paper says of this experiment neither how long it trains nor on how many images, nor "
        "with which weight, nor whether images are augmented: the recipe has 30 epochs on 10,000 images, the efficient "
        "configuration of CIFAR-10 (λ = 7), and no augmentation. Only the first two methods are in the paper; "
        "the weights of the others were set by hand and are not tuned: held-out images, of which MNIST tells the "
        "class, would favor none."
    ),
    study=MnistCifar({"plain": Accuracies(99.85, 48.05, 99.85), "ed": Accuracies(99.90, 47.95, 99.90)}),
)
