"""Appendix F.1 of the paper trains ViT-Tiny with a learning rate of 0.005: does it train here, clipped or not?"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from effdeg_lab.engine import train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes.cifar10_methods import ED, PLAIN, SETTINGS
from effdeg_lab.studies.methods import Methods


def _make_method(title: str, regularizer: Mapping[str, Any], rate: float, clip: float | None) -> Method:
    name, words = ("", "clipped") if clip else ("-no-clip", "not clipped")
    changes = {**regularizer, "lr": rate, "clip": clip}
    return Method(f"{regularizer['regularizer']}-{rate}{name}", f"{title}, lr {rate}, {words}", changes)


RECIPE = Recipe(
    name="cifar10-learning-rate",
    title="Learning rates of ViT-Tiny, with and without gradient clipping",
    paper="Appendix F.1 (its setting)",
    expects="The paper trains at 0.005, reports no other rate, and does not mention clipping.",
    cost="1 min per plain run on one H200, 1.5 with ED",
    settings=replace(SETTINGS, epochs=60, warm_up_epochs=10, held_out=5000, measure_every=0),
    run=train,
    study=Methods(),
    methods=tuple(
        _make_method(title, regularizer, rate, clip)
        for title, regularizer in (("Baseline", PLAIN), ("ED", ED))
        for rate, clip in product((0.001, 0.005), (1.0, None))
    ),
    departs=(
        "Accuracies are on 5,000 held-out training images, and runs are shorter than those that the rate is for; but "
        "the rate rises for the paper's 10 epochs, whatever the length of a run. Clipped gradients have a norm of at "
        "most 1."
    ),
    seeds=(0,),
)
