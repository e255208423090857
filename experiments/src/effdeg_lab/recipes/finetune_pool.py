"""Figures 3 and 8 of the paper at small scale: 72 fine-tunings of DeiT-Tiny by random search, with mixup or not."""

from typing import Any

from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.recipes.cifar10_random_pool import MEASURES
from effdeg_lab.search import Draws, draw_points
from effdeg_lab.studies.random_pool import RandomPool


def draw(draws: Draws) -> dict[str, Any]:
    """Draw a fine-tuning from the ranges of model soups, with ten times their learning rates."""
    alpha = draws.zero_or_uniform(0.01, 0.9)
    return {
        "regularizer": "mixup" if alpha else "plain",
        "alpha": alpha,
        "lr": draws.log_uniform(1e-5, 1e-3),
        "weight_decay": draws.log_uniform(1e-4, 0.6),
        "epochs": draws.choice(*range(4, 17)),
        "smoothing": draws.zero_or_uniform(0.0, 0.25),
    }


RECIPE = Recipe(
    name="finetune-pool",
    title="Measures of 72 fine-tuned DeiT-Tinys against their generalization gap, with and without mixup",
    paper="Figures 3 and 8 at small scale, appendices B.2 and D.1",
    expects=(
        "Of CLIPs fine-tuned on ImageNet, with or without mixup, ED correlates positively with the gap, sharpness and "
        "adaptive sharpness negatively, and the parameter norm weakly."
    ),
    cost="8 to 220 s per run on an H200 that several runs shared; not timed alone",
    settings=Training(
        data="cifar10",
        limit=10_000,
        model="deit-tiny",
        start_from="probe",
        pixels=96,
        batch=128,
        epochs=10,
        augment="none",
        compile=False,  # takes longer than training, and every label smoothing would compile again
        measure_paths=200,
        **MEASURES,
    ),
    run=train,
    check_data=check_training,
    study=RandomPool(),
    methods=(Method("random", "Random search"),),
    departs=(
        "DeiT-Tiny, pretrained on ImageNet, on 10,000 images of CIFAR-10 at 96 pixels instead of CLIP ViT-B/32 on "
        "ImageNet. The head starts as a logistic regression on its features, as in model soups. Ranges are those of "
        "model soups, except that learning rates are ten times as high, as there are far fewer steps. Images are not "
        "augmented. `effdeg-lab clip-pool` measures the paper's own pool."
    ),
    seeds=(0,),
    search=draw_points(draw, 72, seed=0),
)
