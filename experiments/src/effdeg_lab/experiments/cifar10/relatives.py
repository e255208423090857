"""ED and its relatives: where is a method that is built on ED ahead of the best one that is not?"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.results import Difference, MethodRuns, Results
from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.show.methods import Methods
from effdeg_lab.show.probabilities import MEASURES, Measure, find_best
from effdeg_lab.show.tables import Table
from effdeg_lab.show.verdicts import Verdict, Word, judge


@dataclass(frozen=True)
class Relatives(Methods):
    """Compares methods that are built on ED with all others, in accuracy, probabilities and shifts.

    The claim is that the best method with ED is ahead of the best without in at least one of these, at one or more
    points of the grid, with an interval above zero that is corrected for the number of comparisons.
    """

    with_ed: tuple[str, ...] = field(kw_only=True)  # the methods that are built on ED

    def claim(self, results: Results) -> Verdict:
        pairs = [
            (part, measure, *pair)
            for part in results.split()
            for measure in MEASURES
            if (pair := self._find_best(part, measure))
        ]
        found = [_judge(*pair, comparisons=len(pairs)) for pair in pairs]
        return max(found, key=_rank, default=Verdict("not decided"))

    def tables(self, results: Results) -> list[Table]:
        return [table for part in results.split() for table in super(Relatives, self).tables(part)]

    def _find_best(self, results: Results, measure: Measure) -> tuple[MethodRuns, MethodRuns] | None:
        """Return the best method with ED and the best without; None if either is missing."""
        scored = [each for each in results.done if each.spread(measure.key)]
        ours = [each for each in scored if each.method.name in self.with_ed]
        others = [each for each in scored if each.method.name not in self.with_ed]
        return (find_best(measure, ours), find_best(measure, others)) if ours and others else None


def find_lead(measure: Measure, one: MethodRuns, other: MethodRuns, comparisons: int = 1) -> Difference:
    """Return how much better a method is than another, in the measure's unit."""
    sign = 1 if measure.higher_is_better else -1
    values = (dict(sign * each.values(measure.key) / measure.unit) for each in (one, other))
    return Difference.of(*values, comparisons=comparisons)


def _judge(results: Results, measure: Measure, one: MethodRuns, other: MethodRuns, *, comparisons: int) -> Verdict:
    lead = find_lead(measure, one, other, comparisons)
    where = f" ({results.point})" if results.point else ""
    of_many = f" (interval for {comparisons} comparisons)" if comparisons > 1 else ""
    quantity = f"{measure.title}{where}, lead of {one.method.title} over {other.method.title}{of_many}"
    return judge(quantity, lead.value, lead.interval, above=0.0)


def _rank(verdict: Verdict) -> tuple[int, float]:
    """Sort by the verdict, then by the lower end of the interval, in widths of the interval."""
    low, high = verdict.interval or (-math.inf, math.inf)
    return get_args(Word).index(verdict.word), low / (high - low) if math.isfinite(low) else low


SETTINGS = Training(
    data="cifar10",
    model="resnet9",
    epochs=30,
    batch=512,
    optimizer="sgd",
    lr=0.2,
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
PLAIN: dict[str, Any] = {"regularizer": "plain", "weight_decay": 5e-4}
MIXUP, CUTMIX = ({"regularizer": name, "alpha": 1.0} for name in ("mixup", "cutmix"))
REGMIXUP: dict[str, Any] = {"regularizer": "regmixup", "ramp": 0.0, "epochs": 17}
SLOW_ICT: dict[str, Any] = {"regularizer": "ict", "teacher": 0.99}
ED: dict[str, Any] = {"regularizer": "ed", "weight": 7.0, "epochs": 17}
FREE: dict[str, Any] = {**ED, "weight": 2.0}
THREE: dict[str, Any] = {**ED, "nodes": 3, "degree": 2}
SWAPPED: dict[str, Any] = {**THREE, "pairs": 1.0}
ON_POINTS: dict[str, Any] = {**SWAPPED, "weight": 2.0, "epochs": 30}
ALPHAS = {"alpha": (0.2, 0.5, 1.0)}
WEIGHTS, SMALLER_WEIGHTS, LOSS_WEIGHTS = (
    {"weight": each} for each in ((2.0, 7.0, 20.0), (0.7, 2.0, 7.0), (0.3, 1.0, 3.0))
)


RELATIVES = make_recipe(
    name="cifar10-relatives",
    title="ED and its relatives in equal time",
    paper="not in the paper, which compares with mixup alone",
    expects=(
        "In small trials, mixup and CutMix are ahead of ED in accuracy; ED may be ahead in likelihood or "
        "calibration, before temperature scaling."
    ),
    cost="10 s per run on one H200, 3 min to tune",
    study=Relatives(with_ed=("ed", "ed-3", "ed-self", "ed-free", "ed-swapped", "mixup-ed", "cutmix-ed")),
    methods=(
        Method("plain", "Plain", PLAIN, tune={"weight_decay": (2.5e-4, 5e-4, 1e-3)}),
        Method("mixup", "Mixup", MIXUP, tune=ALPHAS),
        Method("cutmix", "CutMix", CUTMIX, tune=ALPHAS),
        Method("regmixup", "RegMixup", {**REGMIXUP, "alpha": 10.0}, tune={"alpha": (1.0, 10.0, 20.0)}),
        Method("brier-mixup", "Brier mixup", {**REGMIXUP, "mixed_loss": "brier", "weight": 1.0}, tune=LOSS_WEIGHTS),
        Method("ict", "ICT", {**SLOW_ICT, "weight": 10.0, "epochs": 14}, tune={"weight": (3.0, 10.0, 30.0)}),
        Method("ed", "ED", ED, tune=WEIGHTS),
        Method("ed-3", "ED, 3 nodes", {**THREE, "epochs": 21}, tune=WEIGHTS),
        Method("ed-self", "ED, self anchors", {**FREE, "anchor": "self"}, tune=SMALLER_WEIGHTS),
        Method("ed-free", "ED without anchors", {**FREE, "anchor": "none", "epochs": 12}, tune=SMALLER_WEIGHTS),
        # Half of the batch is replaced by points on as many paths: 2,925 steps of 256 examples and 256 points.
        Method("ed-swapped", "ED for half the batch", {**SWAPPED, "batch": 256, "epochs": 15}, tune=WEIGHTS),
        Method("mixup-ed", "Mixup, ED on its points", {**ON_POINTS, "loss_on": "points"}, tune=SMALLER_WEIGHTS),
        Method("cutmix-ed", "CutMix, ED on its points", {**ON_POINTS, "loss_on": "boxes"}, tune=SMALLER_WEIGHTS),
    ),
    departs=(
        "ResNet-9 instead of ViT-Tiny, since it learns CIFAR-10 in seconds. Epochs are such that all methods "
        "train for as long as 30 epochs of a plain network take: a step with ED or RegMixup takes 1.8 times as "
        "long, with ICT 2.1 times. Every method has one setting tuned on 5,000 held-out training images, with "
        "three runs of 6 epochs: the weight decay of the plain network, which is 0.0005 for all others, or a "
        "setting of the method. ICT uses the labeled images as unlabeled ones."
    ),
    tuning={"held_out": 5000, "epochs": 6},
)


# Few labels and many unlabeled images, which ED, ICT and consistency can use but mixup and CutMix cannot.
UNLABELED: dict[str, Any] = {"batch": 128, "unlabeled_batch": 256}
ICT: dict[str, Any] = {**UNLABELED, "regularizer": "ict", "teacher": 0.99, "weight": 30.0, "epochs": 6}
CURVATURE: dict[str, Any] = {"regularizer": "ed", "degree_weights": "curvature", "weight": 7.0}
TEACHER: dict[str, Any] = {**UNLABELED, **CURVATURE, "teacher": 0.99, "epochs": 5}
# A step has a forward pass for each of the two penalties: with half the paths, they cost 2.6 to 2.8 plain steps.
TWO: dict[str, Any] = {**TEACHER, "pairs": 0.25, "epochs": 3}
# 128 + 256 images and 256 copies, without a teacher: about as much as ED with self anchors.
COPIES: dict[str, Any] = {**UNLABELED, "epochs": 4}
MEAN_TEACHER: dict[str, Any] = {**ICT, "regularizer": "consistency"}
MEAN_TEACHER_ED: dict[str, Any] = {**TWO, "regularizer": "ed+consistency", "second_weight": 4.0}
PI_MODEL: dict[str, Any] = {**COPIES, "regularizer": "consistency", "weight": 30.0}
CONFIDENT: dict[str, Any] = {**COPIES, "weight": 1.0, "ramp": 0.0}
CONSISTENCY_WEIGHTS = {"weight": (10.0, 30.0, 100.0)}


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
        with_ed=("ed", "ed-self", "ed-teacher", "mixup+ed-teacher", "ed-copies", "ed-copies+ed", "mean-teacher+ed")
    ),
    methods=(
        Method("plain", "Plain", PLAIN, tune={"weight_decay": (5e-4, 1e-3, 2e-3)}),
        Method("mixup", "Mixup", MIXUP, tune=ALPHAS),
        Method("cutmix", "CutMix", CUTMIX, tune=ALPHAS),
        Method("ict", "ICT", ICT, tune=CONSISTENCY_WEIGHTS),
        Method("ed", "ED, labels only", {"regularizer": "ed", "weight": 7.0, "epochs": 12}, tune=WEIGHTS),
        Method("ed-self", "ED, self anchors", {**UNLABELED, **CURVATURE, "epochs": 4}, tune=WEIGHTS),
        Method("ed-teacher", "ED, teacher anchors", TEACHER, tune=WEIGHTS),
        Method("cutmix+ict", "CutMix and ICT", {**ICT, "regularizer": "cutmix+ict"}),
        Method("mixup+ict", "Mixup and ICT", {**ICT, "regularizer": "mixup+ict"}),
        Method("mixup+ed-teacher", "Mixup and ED, teacher anchors", {**TEACHER, "regularizer": "mixup+ed"}),
        Method("ed-copies", "ED to copies", {**TEACHER, "regularizer": "ed-copies"}, tune=WEIGHTS),
        Method("ed-copies+ed", "ED to copies and between images", {**TWO, "regularizer": "ed-copies+ed"}, tune=WEIGHTS),
        Method("mean-teacher+ed", "Mean Teacher and ED", MEAN_TEACHER_ED, tune=WEIGHTS),
        Method("pi-model", "Π-model", PI_MODEL, tune=CONSISTENCY_WEIGHTS),
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

RECIPES = (RELATIVES, SHORT, LONG)
