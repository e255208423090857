"""Few labels and many unlabeled images, which ED, ICT and consistency can use but mixup and CutMix cannot."""

from dataclasses import replace
from typing import Any

from effdeg_lab.core.recipe import Method
from effdeg_lab.experiments.cifar10.relatives import ALPHAS, SETTINGS, WEIGHTS, Relatives, make_recipe

UNLABELED: dict[str, Any] = {"batch": 128, "unlabeled_batch": 256}
ICT: dict[str, Any] = {**UNLABELED, "regularizer": "ict", "teacher": 0.99, "weight": 30.0, "epochs": 6}
CURVATURE: dict[str, Any] = {"regularizer": "ed", "degree_weights": "curvature", "weight": 7.0}
TEACHER: dict[str, Any] = {**UNLABELED, **CURVATURE, "teacher": 0.99, "epochs": 5}
# A step has a forward pass for each of the two penalties: with half the paths, they cost 2.6 to 2.8 plain steps.
TWO: dict[str, Any] = {**TEACHER, "pairs": 0.25, "epochs": 3}
# 128 + 256 images and 256 copies, without a teacher: about as much as ED with self anchors.
COPIES: dict[str, Any] = {**UNLABELED, "epochs": 4}
MEAN_TEACHER: dict[str, Any] = {**ICT, "regularizer": "consistency"}
CONFIDENT: dict[str, Any] = {**COPIES, "weight": 1.0, "ramp": 0.0}
CONSISTENCY_WEIGHTS, LOSS_WEIGHTS = {"weight": (10.0, 30.0, 100.0)}, {"weight": (0.3, 1.0, 3.0)}


SHORT = make_recipe(
    name="cifar10-few-labels",
    title="250, 1,000 and 4,000 labels, and the other images without",
    paper="not in the paper, which does not use unlabeled images",
    expects=(
        "In small trials, ICT is best and ED with a teacher is close to it; ED with self anchors is a point above the "
        "plain network, and ED with gradients through its ends collapses. On Fashion-MNIST, paths to changed "
        "copies are no better than the consistency of their ends, which is best together with ED between examples."
    ),
    cost="7 s per run on one H200, 1.5 min to tune",
    settings=SETTINGS.change({"labeled": 1000, "batch": 256, "lr": 0.1, "epochs": 18, "evaluate_every": 5}),
    study=Relatives(
        with_ed=(
            *("ed", "ed-self", "ed-teacher", "mixup+ed-teacher"),
            *("ed-copies", "ed-copies+ed", "mean-teacher+ed"),
        )
    ),
    methods=(
        Method(
            "plain",
            "Plain",
            {"regularizer": "plain", "weight_decay": 5e-4},
            tune={"weight_decay": (5e-4, 1e-3, 2e-3)},
        ),
        Method("mixup", "Mixup", {"regularizer": "mixup", "alpha": 1.0}, tune=ALPHAS),
        Method("cutmix", "CutMix", {"regularizer": "cutmix", "alpha": 1.0}, tune=ALPHAS),
        Method("ict", "ICT", ICT, tune={"weight": (10.0, 30.0, 100.0)}),
        Method("ed", "ED, labels only", {"regularizer": "ed", "weight": 7.0, "epochs": 12}, tune=WEIGHTS),
        Method("ed-self", "ED, self anchors", {**UNLABELED, **CURVATURE, "epochs": 4}, tune=WEIGHTS),
        Method("ed-teacher", "ED, teacher anchors", TEACHER, tune=WEIGHTS),
        Method("cutmix+ict", "CutMix and ICT", {**ICT, "regularizer": "cutmix+ict"}),
        Method("mixup+ict", "Mixup and ICT", {**ICT, "regularizer": "mixup+ict"}),
        Method("mixup+ed-teacher", "Mixup and ED, teacher anchors", {**TEACHER, "regularizer": "mixup+ed"}),
        Method("ed-copies", "ED to copies", {**TEACHER, "regularizer": "ed-copies"}, tune=WEIGHTS),
        Method("ed-copies+ed", "ED to copies and between images", {**TWO, "regularizer": "ed-copies+ed"}, tune=WEIGHTS),
        Method(
            "mean-teacher+ed",
            "Mean Teacher and ED",
            {**TWO, "regularizer": "ed+consistency", "second_weight": 4.0},
            tune=WEIGHTS,
        ),
        Method(
            "pi-model",
            "Π-model",
            {**COPIES, "regularizer": "consistency", "weight": 30.0},
            tune=CONSISTENCY_WEIGHTS,
        ),
        Method("mean-teacher", "Mean Teacher", MEAN_TEACHER, tune=CONSISTENCY_WEIGHTS),
        Method("uda", "UDA", {**CONFIDENT, "regularizer": "uda"}, tune=LOSS_WEIGHTS),
        Method("fixmatch", "FixMatch", {**CONFIDENT, "regularizer": "fixmatch"}, tune=LOSS_WEIGHTS),
    ),
    departs=(
        "ResNet-9, trained for the time that a plain network takes for 18 × 195 steps of 256 labeled images. A "
        "step with unlabeled images has 128 labeled and 256 unlabeled ones. ED on these penalizes only curvature "
        "(degrees 2 and 3). Unlabeled images are cropped and flipped; their copies are shifted by up to 4 pixels "
        "and every second one is mirrored, or, for UDA and FixMatch, changed by RandAugment(2, 10). One setting "
        "of each method is tuned with 1,000 labels on 5,000 held-out images, with three runs of 5 epochs, and "
        "used for all numbers of labels; combinations of mixup or CutMix with another use the values of the "
        "recipe. The seed determines which images have labels."
    ),
    grid={"labeled": (250, 1000, 4000)},
    tuning={"held_out": 5000, "epochs": 5},
)
# Nothing is tuned here: the values are those that tuning chose in the shorter runs.
TIMES = 6
LONG_VALUES: dict[str, dict[str, float]] = {
    "plain": {"weight_decay": 2e-3},
    "mixup": {},
    "ict": {},
    "ed": {"weight": 20.0},
    "ed-copies+ed": {"weight": 2.0},
    "mean-teacher+ed": {"weight": 7.0},
    "mean-teacher": {"weight": 100.0},
    "fixmatch": {},
}
LONG = replace(
    SHORT,
    name="cifar10-few-labels-long",
    title=f"250 labels and the other images without, {TIMES} times as long",
    expects="The longer a network trains, the more it gains from unlabeled images.",
    cost="45 s per run on one H200",
    settings=SHORT.settings.change({"labeled": 250, "epochs": TIMES * 18, "evaluate_every": TIMES}),
    methods=tuple(
        Method(
            each.name,
            each.title,
            {**each.changes, **LONG_VALUES[each.name], "epochs": TIMES * each.changes.get("epochs", 18)},
        )
        for each in SHORT.methods
        if each.name in LONG_VALUES
    ),
    departs=f"As cifar10-few-labels, with {TIMES} times its epochs. Nothing is tuned again.",
    grid={},
    tuning={},
)

RECIPES = (SHORT, LONG)
