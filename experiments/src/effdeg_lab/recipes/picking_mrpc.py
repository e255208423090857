"""Which of my fine-tuned text encoders? MiniLMs fine-tuned on MRPC by random search."""

from typing import Any

from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes._glue import RDROP_WEIGHT
from effdeg_lab.recipes._picking import search
from effdeg_lab.search import Draws
from effdeg_lab.studies.picking import Picking
from effdeg_lab.text.finetune import FineTuning, check_texts, train


def draw(draws: Draws, model: str) -> dict[str, Any]:
    """Draw a fine-tuning."""
    regularizer = draws.choice("plain", "mixup", "rdrop")
    return {
        "regularizer": regularizer,
        "weight": RDROP_WEIGHT if regularizer == "rdrop" else 0.5,
        "model": model,
        "lr": draws.log_uniform(1e-5, 3e-4),
        "weight_decay": draws.choice(0.0, 0.01),
        "warm_up": draws.choice(0.0, 0.1),
        "batch": draws.choice(16, 32),
        "epochs": draws.choice(3, 6, 10),
    }


RECIPE = Recipe(
    name="picking-mrpc",
    title="Picking the best of several fine-tuned text encoders without labels, on MRPC",
    paper="not in the paper",
    expects="The measure that was chosen on CIFAR-10 picks as well here.",
    cost="about 3 s per run on an H200 that 14 runs share by MPS (estimated)",
    settings=FineTuning(data="mrpc", compile=False, observe=2000),
    run=train,
    check_data=check_texts,
    study=Picking(),
    methods=(Method("random", "Random search"),),
    departs="40 fine-tunings of all-MiniLM-L6-v2 with one seed, observed on all dev examples.",
    seeds=(0,),
    search=search({("all-MiniLM-L6-v2",): 40}, draw),
)
