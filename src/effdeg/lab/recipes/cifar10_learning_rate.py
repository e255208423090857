"""Appendix F.1 of the paper trains ViT-Tiny with a learning rate of 0.005: does it train here, clipped or not?

Expected: the paper trains at 0.005, after 10 epochs in which the rate rises, and reports no other rate; it does not
mention gradient clipping.
Cost on one H200: about one minute per run of 60 epochs, a minute and a half with ED. On held-out training images, since
it decides the settings of all other experiments.
"""

from dataclasses import replace
from itertools import product

from effdeg.lab.recipe import Recipe, Row
from effdeg.lab.recipes.cifar10_methods import ED, PLAIN, SETTINGS
from effdeg.lab.training import train

_METHODS = {"plain": ("Baseline", PLAIN), "ed": ("ED", ED)}


def _row(method: str, rate: float, clip: float | None) -> Row:
    title, changes = _METHODS[method]
    name, words = ("", "clipped") if clip else ("-no-clip", "not clipped")
    return Row(f"{method}-{rate}{name}", f"{title}, lr {rate}, {words}", {**changes, "lr": rate, "clip": clip})


RECIPE = Recipe(
    name="cifar10-learning-rate",
    title="Learning rates of ViT-Tiny, with and without gradient clipping",
    paper="Appendix F.1 (its setting)",
    expects="The paper trains at 0.005, reports no other rate, and does not mention clipping.",
    cost="1 min per plain run on one H200, 1.5 with ED",
    settings=replace(SETTINGS, epochs=60, warm_up_epochs=10, held_out=5000, measure_every=0),
    train=train,
    rows=tuple(_row(*each) for each in product(_METHODS, (0.001, 0.005), (1.0, None))),
    departs=(
        "Accuracies are on 5,000 held-out training images, and runs are shorter than those that the rate is for; but "
        "the rate rises for the paper's 10 epochs, whatever the length of a run. Clipped gradients have a norm of at "
        "most 1."
    ),
    seeds=(0,),
)
