"""Variants of ED for ViT-Tiny on CIFAR-10: the paper's Tables 5 to 10, and checks of the setting."""

from dataclasses import replace
from functools import partial
from typing import Any

from effdeg_lab.core.recipe import Method, Recipe, Reported
from effdeg_lab.experiments.cifar10.contest import (
    DEPARTS,
    ED,
    PLAIN,
    POOLED,
    POOLED_DEPARTS,
    SETTINGS,
    make_recipe,
)
from effdeg_lab.show.methods import Methods

FINE = {**ED, "nodes": 15, "degree": 14, "weight": 2.0}
PRECISE = {"regularizer": "ed", "weight": 2.0, "nodes": 15, "degree": 7, "pairs": 1.0, "sampling": "chebyshev"}
THREE: dict[str, Any] = {"nodes": 3, "degree": 2}


def ablate(
    name: str,
    title: str,
    paper: str,
    expects: str,
    cost: str,
    *rows: tuple[Any, ...],
    departs: str = DEPARTS,
    also: str = "",
    **options: Any,
) -> Recipe:
    """Make a recipe from rows: a name, a title, changes, and the paper's mean and standard deviation where it has any.

    ``also`` is added to what differs from the paper in several recipes.
    """
    methods = tuple(
        Method(method, about, changes, Reported(*reported) if reported else None)
        for method, about, changes, *reported in rows
    )
    own = {"methods": methods, "departs": f"{departs} {also}".rstrip(), **options}
    return make_recipe(name=f"cifar10-{name}", title=title, paper=paper, expects=expects, cost=cost, **own)


_DEPARTS = f"{POOLED_DEPARTS} Runs have 100 epochs, not 300; warm-up and ramp take the same shares of them."
# For the tables of the appendix: with kernels of our own, and a third of the epochs.
_SHORT = replace(POOLED, epochs=100)
ablate_short = partial(ablate, settings=_SHORT, departs=_DEPARTS, paper_epochs=SETTINGS.epochs)


RECIPES = (
    ablate_short(
        "random-pixels",
        "ED along paths between images of noise",
        "Tables 5 and 10, appendix C.1",
        "Between images of noise instead of examples, ED gains nothing over the baseline.",
        "1 min per plain run on one H200, 1.6 with ED, 2.5 with ED on random pixels",
        ("plain", "Baseline", PLAIN, 87.80, 1.17),
        ("ed", "ED", ED, 90.18, 0.14),
        ("random-pixels", "ED (random pixels)", {**ED, "ends": "random-pixels", "anchor": "none"}, 87.31, 0.80),
        also="Table 5 has ED's precise configuration (90.82 ± 0.11), and so probably random pixels; here both are the "
        "efficient one, ED with its number of Table 10. Noise has no labels, and the paper does not say what anchors "
        "its paths: here the network's own outputs.",
        study=Methods(candidate="ed"),
        equal_time="ed",
    ),
    ablate_short(
        "basis",
        "ED by other polynomials",
        "Table 6, appendix C.2",
        "Chebyshev and Legendre polynomials do equally well.",
        "1.6 min per run on one H200",
        ("chebyshev", "Chebyshev", ED, 90.18, 0.14),
        ("legendre", "Legendre", {**ED, "basis": "legendre"}, 89.89, 1.29),
    ),
    ablate_short(
        "layers",
        "ED along paths at a layer",
        "Table 7, appendix C.3",
        "ED helps at every layer, most at the inputs and less at later layers.",
        "1 min per plain run on one H200, 1.6 with ED at the inputs, 5 at a layer; estimated",
        ("plain", "Baseline", PLAIN, 86.49),
        ("input", "Input", ED, 89.99),
        ("embedding", "Embedding", {**ED, "at": "embed"}, 88.92),
        ("block-1", "After block 1", {**ED, "at": "blocks.0"}, 88.18),
        also="The paper gives no spread and does not name the configuration: here it is the efficient one, with the "
        "same weight at every layer. At a layer a step is not compiled, and runs without our kernels.",
        study=Methods(candidate="input"),
    ),
    ablate_short(
        "sampling",
        "Where ED samples its paths",
        "Table 8, appendix C.4",
        "At low degree all samplings do well; at high degree uniform nodes are unstable and lose 12 points.",
        "1.6 min per run with 4 nodes on one H200, 7 with 15 nodes; estimated",
        ("cosine-4", "4 nodes, degree 3: cosine", ED, 89.99),
        ("chebyshev-4", "4 nodes, degree 3: Chebyshev", {**ED, "sampling": "chebyshev"}, 89.47),
        ("uniform-4", "4 nodes, degree 3: uniform", {**ED, "sampling": "uniform"}, 89.23),
        ("cosine-15", "15 nodes, degree 14: cosine", FINE, 89.90),
        ("chebyshev-15", "15 nodes, degree 14: Chebyshev", {**FINE, "sampling": "chebyshev"}, 90.40),
        ("uniform-15", "15 nodes, degree 14: uniform", {**FINE, "sampling": "uniform"}, 78.42),
        also="The paper gives no spread and names neither weight nor pairs: here 15 nodes have the weight of its "
        "precise configuration, 2, and there are half as many paths as examples. Its uniform nodes are not defined: "
        "here they are equispaced, both ends included.",
    ),
    ablate_short(
        "components",
        "ED on principal components of the outputs",
        "Table 9, appendix C.5",
        "Two or three components do as well as all outputs; a single one loses a point.",
        "1.6 min per run on one H200; estimated",
        ("none", "No PCA", ED, 89.99),
        ("3", "3 components", {**ED, "components": 3}, 89.84),
        ("2", "2 components", {**ED, "components": 2}, 89.90),
        ("1", "1 component", {**ED, "components": 1}, 88.75),
        also="The paper gives no spread. The mean over few components is larger than that over 10 outputs, so the same "
        "weight has more effect; the paper does not say whether it changed the weight, and here it is kept.",
    ),
    ablate_short(
        "configurations",
        "ED's precise configuration against its efficient one",
        "Table 10, appendix F.1",
        "The precise configuration is 0.64 points better, and costs much more.",
        "1.6 min per efficient run on one H200, 13 per precise run; estimated",
        ("efficient", "Efficient (4 nodes, degree 3)", ED, 90.18, 0.14),
        ("precise", "Precise (15 nodes, degree 7)", PRECISE, 90.82, 0.11),
    ),
    ablate(
        "sensitivity",
        "How much ED's weight and nodes matter",
        "none; the setting of Table 10",
        "No such experiment: the paper has a weight of 7 with 4 nodes, and of 2 with 15.",
        "1 min per plain run on one H200, 1.7 with ED",
        ("plain", "Baseline", PLAIN),
        *(
            (f"{n}-nodes-{weight:g}", f"ED, {n} nodes, λ = {weight:g}", {**ED, **fitted, "weight": weight})
            for n, fitted in ((4, {"nodes": 4, "degree": 3}), (3, THREE))
            for weight in (1.0, 3.0, 7.0, 15.0, 30.0)
        ),
        also="Runs have 60 epochs, not 300. The paper has 4 nodes with λ = 7 only.",
        settings=replace(SETTINGS, epochs=60, measure_every=0),
        study=Methods(candidate="4-nodes-7"),
        seeds=(0,),
    ),
    ablate(
        "learning-rate",
        "Learning rates of ViT-Tiny, with and without gradient clipping",
        "Appendix F.1 (its setting)",
        "The paper trains at 0.005, reports no other rate, and does not mention clipping.",
        "1 min per plain run on one H200, 1.5 with ED",
        *(
            (f"{name}-{rate}{suffix}", f"{title}, lr {rate}, {words}", {**changes, "lr": rate, "clip": clip})
            for name, title, changes in (("plain", "Baseline", PLAIN), ("ed", "ED", ED))
            for rate in (0.001, 0.005)
            for clip, suffix, words in ((1.0, "", "clipped"), (None, "-no-clip", "not clipped"))
        ),
        settings=replace(SETTINGS, epochs=60, warm_up_epochs=10, held_out=5000, measure_every=0),
        departs=(
            "Accuracies are on 5,000 held-out training images. Runs are shorter than those that the learning rate is "
            "used for, but warm-up takes the paper's 10 epochs. Clipped gradients have a norm of at most 1."
        ),
        seeds=(0,),
    ),
)
