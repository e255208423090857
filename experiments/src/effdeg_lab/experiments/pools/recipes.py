"""Pools of networks: the grids of the paper's figures, and random searches."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.search import Draws, draw_points
from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.experiments.cifar10.contest import UNSTATED
from effdeg_lab.experiments.pools.study import FITS, PoolStudy, RandomPool
from effdeg_lab.experiments.pools.tracking import ALSO, TrackingStudy

make_recipe = partial(Recipe, run=train, check_data=check_training)
RADII = (0.01, 0.05, 0.1)
PROXIES = (
    *(f"sharpness@{rho:g}" for rho in RADII),
    *(f"adaptive_sharpness@{rho:g}" for rho in (*RADII, 0.5, 1.0)),
    *("parameter_norm", "distance", "margin@10", "margin@50", "mixup_margin"),
    *("confidence", "entropy", "nuclear_norm", "total_variation", "decision_regions", "jacobian_norm"),
)
"""The proxies measured on training images; those of the last line are also measured on test images."""
MEASURES: dict[str, Any] = {"proxies": PROXIES, "test_proxies": PROXIES[-6:], "measure_components": (1, 3, 10)}
# With the paper's 200 nodes, measuring would take longer than training; 64 suffice for the same degree.
MEASURES |= {"measure_nodes": 64}
# Wide ranges, in which most networks should still fit their training images.
RATES = {"sgd": (0.01, 0.5), "adamw": (3e-4, 1e-2)}


def draw(draws: Draws, models: Sequence[str], rates: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    alpha, optimizer = draws.zero_or_uniform(0.1, 1.0), draws.choice("sgd", "adamw")
    return {
        "regularizer": "mixup" if alpha else "plain",
        "alpha": alpha,
        "model": draws.choice(*models),
        "optimizer": optimizer,
        "lr": draws.log_uniform(*rates[optimizer]),
        "weight_decay": draws.log_uniform(*((1e-5, 3e-3) if optimizer == "sgd" else (1e-3, 1.0))),
        "batch": draws.choice(64, 128, 256),
    }


RESNETS = make_recipe(
    name="cifar10-random-pool",
    title="Measures of ResNet-9s from a random search, on training images and on unlabeled test images",
    paper="not in the paper, whose pools are grids; strata as in Figures 3 and 8",
    expects="In a trial that was not recorded, ED on test images ranked small CNNs best, both with and without mixup.",
    cost="10 to 310 s per run on an H200 that several runs shared; not timed alone",
    # Compiling networks of many shapes would take longer than training them.
    settings=Training(data="cifar10", limit=5000, epochs=60, augment="none", compile=False, **MEASURES),
    study=RandomPool(fit=FITS, finer=("network", "recipe")),
    methods=(Method("random", "Random search"),),
    departs="64 ResNet-9s of four widths, on 5,000 images without augmentation, which most networks fit.",
    seeds=(0,),
    search=draw_points(lambda draws: draw(draws, [f"resnet9-{width}" for width in (8, 16, 32, 64)], RATES), 64, seed=0),
)


MLP_RATES = {"sgd": (0.01, 0.1), "adamw": (1e-4, 3e-3)}


POOL = Training(data="cifar10", epochs=100, augment="none", proxies=("all",))
MEASURED_ON = (
    "The paper does not say on which images it measures ED: here on the same 2,048 training images as the other "
    "measures and, in columns that end with _test, on 2,000 test images. Sharpness, too, is that on 2,048 training "
    "images, not on all."
)


VITS = make_recipe(
    name="cifar10-vit-pool",
    title="Measures of 27 ViT-Tinys against their generalization gap",
    paper="Figure 7, appendices B.1 and D.1",
    expects=(
        "ED has a strong positive correlation with the gap; sharpness and adaptive sharpness predict it less, and the "
        "parameter norm correlates negatively."
    ),
    cost="2 min per run on one H200",
    settings=replace(
        POOL, model="vit-tiny", optimizer="adamw", lr=0.001, weight_decay=1e-4, decay="cosine", warm_up_epochs=10
    ),
    study=PoolStudy(),
    methods=(Method("plain", "ViT-Tiny", {"regularizer": "plain"}),),
    departs=(
        f"{UNSTATED}; there are 100 epochs, 10 of them warm-up as in its table of methods, and no augmentation, so "
        f"that every network can overfit. {MEASURED_ON}"
    ),
    grid={"batch": (256, 512, 1024), "lr": (0.005, 0.001, 0.0005), "weight_decay": (1e-3, 1e-4, 1e-5)},
)


def draw_finetuning(draws: Draws) -> dict[str, Any]:
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


RECIPES = (
    RESNETS,
    replace(
        RESNETS,
        name="cifar10-random-mlps",
        title="Measures of MLPs from a random search, on training images and on unlabeled test images",
        expects="Unknown: in the trial behind cifar10-random-pool there were CNNs only.",
        cost="about 80 s per run on one core of a CPU",
        study=RandomPool(fit=FITS),
        departs="32 MLPs, on 5,000 images without augmentation, which most networks fit.",
        search=draw_points(lambda draws: draw(draws, ["mlp"], MLP_RATES), 32, seed=1),
    ),
    VITS,
    make_recipe(
        name="cifar10-resnet18-pool",
        title="Measures of 27 ResNet-18s against their generalization gap",
        paper="Figures 2 and 9, appendices C.1 and D.1",
        expects=(
            "ED has the strongest Pearson correlation with the gap, ahead of sharpness and adaptive sharpness; the "
            "parameter norm correlates negatively. Along paths between random pixels ED's correlation is slightly "
            "weaker."
        ),
        cost="2 min per run on one H200",
        settings=replace(
            POOL, model="resnet18", optimizer="sgd", lr=0.1, weight_decay=1e-5, decay="steps", warm_up=0.0, clip=None
        ),
        study=PoolStudy(),
        methods=(Method("plain", "ResNet-18", {"regularizer": "plain"}),),
        departs=(
            "The paper does not state the following: there are 100 epochs; the learning rate falls to a tenth after "
            "half of them and again after three quarters; momentum is 0.9; training runs in bf16, without "
            f"augmentation, so that every network can overfit. {MEASURED_ON}"
        ),
        grid={"batch": (256, 512, 1024), "lr": (0.1, 0.01, 0.001), "weight_decay": (1e-5, 1e-6, 1e-7)},
    ),
    replace(
        VITS,
        name="cifar10-estimators",
        title="Coarse and precise effective degrees of 27 ViT-Tinys",
        paper="none; settings of Table 10 and appendix D.1",
        expects="No such experiment; the paper trains with 4 nodes and degree 3, and measures with 200 and 40.",
        settings=VITS.settings.change({"measure_also": ALSO}),
        study=TrackingStudy(),
    ),
    make_recipe(
        name="finetune-pool",
        title="Measures of 72 fine-tuned DeiT-Tinys against their generalization gap, with and without mixup",
        paper="Figures 3 and 8 at small scale, appendices B.2 and D.1",
        expects=(
            "Of CLIPs fine-tuned on ImageNet, with or without mixup, ED correlates positively with the gap, sharpness "
            "and adaptive sharpness negatively, and the parameter norm weakly."
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
        study=RandomPool(),
        methods=(Method("random", "Random search"),),
        departs=(
            "DeiT-Tiny, pretrained on ImageNet, on 10,000 images of CIFAR-10 at 96 pixels instead of CLIP ViT-B/32 on "
            "ImageNet. The head starts as a logistic regression on its features, as in model soups. Ranges are those "
            "of model soups, except that learning rates are ten times as high, as there are far fewer steps. Images "
            "are not augmented. `effdeg-lab clip-pool` measures the paper's own pool."
        ),
        seeds=(0,),
        search=draw_points(draw_finetuning, 72, seed=0),
    ),
)
