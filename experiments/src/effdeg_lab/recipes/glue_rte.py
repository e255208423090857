"""RTE: does one text follow from another? With the paper's hyperparameters."""

from effdeg_lab.recipe import Reported
from effdeg_lab.recipes._glue import make_recipe
from effdeg_lab.text.finetune import FineTuning

RECIPE = make_recipe(
    FineTuning(data="rte", lr=5e-5, batch=32, epochs=10, weight=0.5),
    task="RTE",
    metric="accuracy",
    paper={"plain": Reported(70.28, 1.73), "mixup": Reported(70.28, 3.07), "ed": Reported(71.12, 1.96)},
    expects="ED is ahead by 0.84 points; mixup at the embeddings gains nothing.",
    cost="2 s per plain run on one H200, 3 with ED, 3.5 with mixup in two stages; with mpnet 8 and 13, three stacked",
    seeds=tuple(range(25)),
)
