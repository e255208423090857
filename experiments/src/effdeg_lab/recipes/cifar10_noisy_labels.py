"""CIFAR-10 with human labels: which method does not learn the wrong ones, and which score finds them?"""

from effdeg_lab.recipe import Method
from effdeg_lab.recipes.cifar10_relatives import ED, SETTINGS, make_recipe
from effdeg_lab.studies.noisy_labels import NoisyLabels

RECIPE = make_recipe(
    name="cifar10-noisy-labels",
    title="CIFAR-10 with people's labels, up to 40% of them wrong",
    paper="not in the paper",
    expects="In small trials with 36% wrong labels, mixup is most accurate, and ED has the best likelihood.",
    cost="10 s per run on one H200",
    settings=SETTINGS.change({"data": "cifar10n-worst", "evaluate_every": 3, "suspect": 5000}),
    study=NoisyLabels(),
    methods=(
        Method("plain", "Plain", {"regularizer": "plain"}),
        Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}),
        Method("cutmix", "CutMix", {"regularizer": "cutmix", "alpha": 1.0}),
        Method("regmixup", "RegMixup", {"regularizer": "regmixup", "alpha": 10.0, "ramp": 0.0, "epochs": 17}),
        Method("ed", "ED", ED),
        Method("ed-self", "ED, own ends", {**ED, "anchor": "self", "weight": 2.0}),
    ),
    departs=(
        "ResNet-9 in equal time: that of 30 plain epochs. Nothing is tuned, as there are no clean images to tune on: "
        "mixup and CutMix have α = 1, RegMixup 10, and ED the paper's weight of 7, or 2 with own ends."
    ),
    grid={"data": ("cifar10n-aggregate", "cifar10n-random1", "cifar10n-worst")},
)
