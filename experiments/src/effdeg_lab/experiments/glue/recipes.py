"""GLUE's tasks with the paper's hyperparameters: the methods, and all settings that do not depend on the task."""

from collections.abc import Mapping
from typing import Any

from effdeg_lab.core.recipe import Method, Recipe, Reported
from effdeg_lab.experiments.glue.study import FineTuned
from effdeg_lab.experiments.glue.training import FineTuning, check_texts, train, train_stacked

# The authors' 0.5 is for a divergence summed over batches of 16; for the mean that RDrop returns, it is 0.5 · 16 / 2.
RDROP_WEIGHT = 4.0
R3F_WEIGHT = 0.7  # from the authors' example for RTE


def make_recipe(
    settings: FineTuning,
    *,
    task: str,
    metric: str,
    paper: Mapping[str, Reported],
    expects: str,
    cost: str,
    seeds: tuple[int, ...],
) -> Recipe:
    """Make the recipe of a task from the paper's settings and numbers."""
    return Recipe(
        name=f"glue-{settings.data}",
        title=f"Fine-tuning a text encoder on {task}",
        paper="Table 4, appendix F.4",
        expects=expects,
        cost=f"{cost}, after compiling",
        settings=settings,
        run=train,
        run_stacked=train_stacked,
        check_data=check_texts,
        study=FineTuned(task=task, metric=metric),
        methods=make_methods(paper),
        departs=(
            "The encoder is all-MiniLM-L6-v2 (22.7 million parameters, trained further to embed sentences), not "
            "BERT-base, so only differences can be compared with the paper's. Where the paper is silent: AdamW "
            "without weight decay, a learning rate that falls linearly to 0 without warm-up, clipping at 1, texts cut "
            "off at 128 tokens, bfloat16 on a GPU, and the score after the last epoch. The weight of R-Drop is its "
            "authors' 0.5 at a batch of 16, which is 4 for the mean over examples, at every batch size. The weight of "
            "R3F is its authors' 0.7 for RTE, and its noise of 1e-5 is smaller than the rounding of bfloat16. ED with "
            "self anchors and ED with weights for curvature have the paper's λ for ED with labels."
        ),
        seeds=seeds,
    )


def make_methods(paper: Mapping[str, Reported]) -> tuple[Method, ...]:
    """List the methods: the paper's three, relatives of ED, and variants of ED that the paper leaves open."""
    ed: dict[str, Any] = {"regularizer": "ed"}
    return (
        Method("plain", "Plain", {"regularizer": "plain"}, paper["plain"]),
        Method("mixup", "Mixup", {"regularizer": "mixup"}, paper["mixup"]),
        Method("mixup-later", "Mixup in a second stage", {"regularizer": "mixup", "two_stages": True}),
        Method("rdrop", "R-Drop", {"regularizer": "rdrop", "weight": RDROP_WEIGHT}),
        Method("r3f", "R3F", {"regularizer": "r3f", "weight": R3F_WEIGHT}),
        Method("ed", "ED", ed, paper["ed"]),
        Method("ed-self", "ED, self anchors", {**ed, "anchor": "self"}),
        Method("ed-curvature", "ED, curvature", {**ed, "degree_weights": "curvature"}),
        Method("ed-sum", "ED at the sum", {**ed, "place": "sum"}),
        Method("ed-no-dropout", "ED, no dropout at points", {**ed, "point_dropout": False}),
        Method("ed-both-masks", "ED, tokens of both ends", {**ed, "masks": "both"}),
        Method("ed-all-pairs", "ED, twice the pairs", {**ed, "pairs": 1.0}),
        Method("ed-similar", "ED, similar lengths", {**ed, "similar_lengths": True}),
    )


RECIPES = (
    make_recipe(
        FineTuning(data="cola", lr=2e-5, batch=64, epochs=20, weight=0.3),
        task="CoLA",
        metric="Matthews correlation",
        paper={"plain": Reported(62.31, 1.01), "mixup": Reported(61.04, 0.91), "ed": Reported(62.45, 1.01)},
        expects="ED is ahead by 0.14 points; mixup at the embeddings loses 1.27.",
        cost="3.5 s per plain run on one H200, 5.5 with ED, 7 with mixup in two stages, eight stacked",
        seeds=tuple(range(9)),
    ),
    make_recipe(
        FineTuning(data="mrpc", lr=5e-5, batch=16, epochs=10, weight=0.5),
        task="MRPC",
        metric="accuracy",
        paper={"plain": Reported(86.74, 1.06), "mixup": Reported(86.30, 1.22), "ed": Reported(87.66, 0.90)},
        expects="ED is ahead by 0.92 points; mixup at the embeddings loses 0.44.",
        cost="3 s per plain run on one H200, 4.5 with ED, 6 with mixup in two stages, six stacked",
        seeds=tuple(range(25)),
    ),
    make_recipe(
        FineTuning(data="rte", lr=5e-5, batch=32, epochs=10, weight=0.5),
        task="RTE",
        metric="accuracy",
        paper={"plain": Reported(70.28, 1.73), "mixup": Reported(70.28, 3.07), "ed": Reported(71.12, 1.96)},
        expects="ED is ahead by 0.84 points; mixup at the embeddings gains nothing.",
        cost=(
            "2 s per plain run on one H200, 3 with ED, 3.5 with mixup in two stages; with mpnet 8 and 13, three stacked"
        ),
        seeds=tuple(range(25)),
    ),
)
