"""Appendix F.1 of the paper trains ViT-Tiny with a learning rate of 0.005: does it train here, clipped or not?"""

from dataclasses import replace

from effdeg_lab.recipe import Method
from effdeg_lab.recipes.cifar10_methods import ED, PLAIN, SETTINGS, make_recipe

RECIPE = make_recipe(
    name="cifar10-learning-rate",
    title="Learning rates of ViT-Tiny, with and without gradient clipping",
    paper="Appendix F.1 (its setting)",
    expects="The paper trains at 0.005, reports no other rate, and does not mention clipping.",
    cost="1 min per plain run on one H200, 1.5 with ED",
    settings=replace(SETTINGS, epochs=60, warm_up_epochs=10, held_out=5000, measure_every=0),
    methods=tuple(
        Method(f"{name}-{rate}{suffix}", f"{title}, lr {rate}, {words}", {**changes, "lr": rate, "clip": clip})
        for name, title, changes in (("plain", "Baseline", PLAIN), ("ed", "ED", ED))
        for rate in (0.001, 0.005)
        for clip, suffix, words in ((1.0, "", "clipped"), (None, "-no-clip", "not clipped"))
    ),
    departs=(
        "Accuracies are on 5,000 held-out training images. Runs are shorter than those that the learning rate is used "
        "for, but warm-up takes the paper's 10 epochs. Clipped gradients have a norm of at most 1."
    ),
    seeds=(0,),
)
