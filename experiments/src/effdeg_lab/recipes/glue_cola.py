"""CoLA: is a sentence acceptable English? With the paper's hyperparameters."""

from effdeg_lab.recipe import Reported
from effdeg_lab.recipes._glue import make_recipe
from effdeg_lab.text.finetune import FineTuning

RECIPE = make_recipe(
    FineTuning(data="cola", lr=2e-5, batch=64, epochs=20, weight=0.3),
    task="CoLA",
    metric="Matthews correlation",
    paper={"plain": Reported(62.31, 1.01), "mixup": Reported(61.04, 0.91), "ed": Reported(62.45, 1.01)},
    expects="ED is ahead by 0.14 points; mixup at the embeddings loses 1.27.",
    cost="3.5 s per plain run on one H200, 5.5 with ED, 7 with mixup in two stages, eight stacked",
    seeds=tuple(range(9)),
)
