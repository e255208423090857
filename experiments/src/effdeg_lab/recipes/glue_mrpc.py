"""MRPC: do two sentences mean the same? With the paper's hyperparameters."""

from effdeg_lab.recipe import Reported
from effdeg_lab.recipes._glue import make_recipe
from effdeg_lab.text.finetune import FineTuning

RECIPE = make_recipe(
    FineTuning(data="mrpc", lr=5e-5, batch=16, epochs=10, weight=0.5),
    task="MRPC",
    metric="accuracy",
    paper={"plain": Reported(86.74, 1.06), "mixup": Reported(86.30, 1.22), "ed": Reported(87.66, 0.90)},
    expects="ED is ahead by 0.92 points; mixup at the embeddings loses 0.44.",
    cost="3 s per plain run on one H200, 4.5 with ED, 6 with mixup in two stages, six stacked",
    seeds=tuple(range(25)),
)
