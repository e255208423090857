"""The penalty and its relatives on CIFAR-10 in equal time, each with one setting tuned over three values."""

from functools import partial
from typing import Any

from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.studies.relatives import Relatives

SETTINGS = Training(
    data="cifar10",
    model="resnet9",
    epochs=30,
    batch=512,
    optimizer="sgd",
    lr=0.2,
    momentum=0.9,
    weight_decay=5e-4,
    warm_up=0.15,
    clip=None,
    augment="crop-flip",
    evaluate_every=10,
    measure_paths=200,
    measure_nodes=64,
)
make_recipe = partial(Recipe, settings=SETTINGS, run=train, check_data=check_training)

# Epochs are such that all methods take equally long: a step runs 512 images plain, and 1,024 with ED and 4 nodes.
ED: dict[str, Any] = {"regularizer": "ed", "weight": 7.0, "epochs": 17}
THREE: dict[str, Any] = {**ED, "nodes": 3, "degree": 2}
ON_POINTS: dict[str, Any] = {**THREE, "weight": 2.0, "pairs": 1.0, "epochs": 30}
ALPHAS = {"alpha": (0.2, 0.5, 1.0)}
WEIGHTS, SMALLER_WEIGHTS = {"weight": (2.0, 7.0, 20.0)}, {"weight": (0.7, 2.0, 7.0)}

RECIPE = make_recipe(
    name="cifar10-relatives",
    title="ED and its relatives in equal time",
    paper="not in the paper, which compares with mixup alone",
    expects=(
        "In small trials, mixup and CutMix are ahead of ED in accuracy; ED may be ahead in likelihood or calibration, "
        "before temperature scaling."
    ),
    cost="10 s per run on one H200, 3 min to tune",
    study=Relatives(with_ed=("ed", "ed-3", "ed-self", "ed-free", "ed-swapped", "mixup-ed", "cutmix-ed")),
    methods=(
        Method(
            "plain",
            "Plain",
            {"regularizer": "plain", "weight_decay": 5e-4},
            tune={"weight_decay": (2.5e-4, 5e-4, 1e-3)},
        ),
        Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}, tune=ALPHAS),
        Method("cutmix", "CutMix", {"regularizer": "cutmix", "alpha": 1.0}, tune=ALPHAS),
        Method(
            "regmixup",
            "RegMixup",
            {"regularizer": "regmixup", "alpha": 10.0, "ramp": 0.0, "epochs": 17},
            tune={"alpha": (1.0, 10.0, 20.0)},
        ),
        Method(
            "brier-mixup",
            "Brier mixup",
            {"regularizer": "regmixup", "mixed_loss": "brier", "weight": 1.0, "ramp": 0.0, "epochs": 17},
            tune={"weight": (0.3, 1.0, 3.0)},
        ),
        Method(
            "ict",
            "ICT",
            {"regularizer": "ict", "teacher": 0.99, "weight": 10.0, "epochs": 14},
            tune={"weight": (3.0, 10.0, 30.0)},
        ),
        Method("ed", "ED", ED, tune=WEIGHTS),
        Method("ed-3", "ED, 3 nodes", {**THREE, "epochs": 21}, tune=WEIGHTS),
        Method("ed-self", "ED, own ends", {**ED, "anchor": "self", "weight": 2.0}, tune=SMALLER_WEIGHTS),
        Method(
            "ed-free", "ED without ends", {**ED, "anchor": "none", "weight": 2.0, "epochs": 12}, tune=SMALLER_WEIGHTS
        ),
        # Half of the batch is replaced by points on as many paths: 2,925 steps of 256 examples and 256 points.
        Method(
            "ed-swapped", "ED for half the batch", {**THREE, "pairs": 1.0, "batch": 256, "epochs": 15}, tune=WEIGHTS
        ),
        Method("mixup-ed", "Mixup, ED on its points", {**ON_POINTS, "loss_on": "points"}, tune=SMALLER_WEIGHTS),
        Method("cutmix-ed", "CutMix, ED on its points", {**ON_POINTS, "loss_on": "boxes"}, tune=SMALLER_WEIGHTS),
    ),
    departs=(
        "ResNet-9 instead of ViT-Tiny, since it learns CIFAR-10 in seconds. Epochs are such that all methods train for "
        "as long as 30 epochs of a plain network take: a step with ED or RegMixup takes 1.8 times as long, with ICT "
        "2.1 times. Every method has one setting tuned on 5,000 held-out training images, with three runs of 6 epochs: "
        "the weight decay of the plain network, which is 0.0005 for all others, or a setting of the method. ICT uses "
        "the labeled images as unlabeled ones."
    ),
    tuning={"held_out": 5000, "epochs": 6},
)
