"""Appendix F.1 of the paper trains ViT-Tiny with a learning rate of 0.005: does it train here, clipped or not?

Expected: the paper trains at 0.005, after 10 epochs in which the rate rises, and reports no other rate; it does not
mention gradient clipping.
Seen: 0.001 is 0.2 to 1.5 points better in every pair that is otherwise alike; clipping decides nothing.
Cost on one H200: about one minute per run of 60 epochs, a minute and a half with ED. On held-out training images, since
it decides the settings of all other experiments.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from effdeg_lab.recipe import Recipe, Method
from effdeg_lab.recipes.cifar10_methods import ED, PLAIN, SETTINGS
from effdeg_lab.engine import train


def _row(title: str, method: Mapping[str, Any], rate: float, clip: float | None) -> Method:
    name, words = ("", "clipped") if clip else ("-no-clip", "not clipped")
    changes = {**method, "lr": rate, "clip": clip}
    return Method(f"{method['method']}-{rate}{name}", f"{title}, lr {rate}, {words}", changes)


RECIPE = Recipe(
    name="cifar10-learning-rate",
    title="Learning rates of ViT-Tiny, with and without gradient clipping",
    paper="Appendix F.1 (its setting)",
    expects="The paper trains at 0.005, reports no other rate, and does not mention clipping.",
    cost="1 min per plain run on one H200, 1.5 with ED",
    settings=replace(SETTINGS, epochs=60, warm_up_epochs=10, held_out=5000, measure_every=0),
    run=train,
    methods=tuple(
        _row(title, method, rate, clip)
        for title, method in (("Baseline", PLAIN), ("ED", ED))
        for rate, clip in product((0.001, 0.005), (1.0, None))
    ),
    departs=(
        "Accuracies are on 5,000 held-out training images, and runs are shorter than those that the rate is for; but "
        "the rate rises for the paper's 10 epochs, whatever the length of a run. Clipped gradients have a norm of at "
        "most 1."
    ),
    seeds=(0,),
)
