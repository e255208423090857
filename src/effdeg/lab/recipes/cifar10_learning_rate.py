"""Appendix F.1 of the paper trains ViT-Tiny with a learning rate of 0.005: which one trains here?

Expected: the paper trains at 0.005, after 10 epochs in which the rate rises, and reports no other rate.
Cost on one H200: about half a minute per run of 30 epochs. On held-out training images, since it decides the settings
of all other experiments.
"""

from dataclasses import replace

from effdeg.lab.recipe import Recipe, Row
from effdeg.lab.recipes.cifar10_methods import PLAIN, SETTINGS
from effdeg.lab.training import train

RECIPE = Recipe(
    name="cifar10-learning-rate",
    title="Learning rates of a plain ViT-Tiny",
    paper="Appendix F.1 (its setting)",
    expects="The paper trains at 0.005 and reports no other rate.",
    cost="30 s per run on one H200",
    settings=replace(SETTINGS, epochs=30, warm_up_epochs=10, held_out=5000, measure_every=0),
    train=train,
    rows=tuple(Row(f"lr-{rate}", f"{rate}", {**PLAIN, "lr": rate}) for rate in (0.001, 0.0005, 0.002, 0.005)),
    departs=(
        "Accuracies are on 5,000 held-out training images, and runs are shorter than those that the rate is for; but "
        "the rate rises for the paper's 10 epochs, whatever the length of a run."
    ),
    seeds=(0,),
)
