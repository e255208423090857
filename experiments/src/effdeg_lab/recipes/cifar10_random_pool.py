"""Which of my models will generalize? ResNet-9s by random search on 5,000 images of CIFAR-10."""

from collections.abc import Mapping, Sequence
from typing import Any

from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.recipe import Method, Recipe
from effdeg_lab.search import Draws, draw_points
from effdeg_lab.studies.random_pool import FITS, RandomPool

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
    """Draw a network and how it is trained."""
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


RECIPE = Recipe(
    name="cifar10-random-pool",
    title="Measures of ResNet-9s from a random search, on training images and on unlabeled test images",
    paper="not in the paper, whose pools are grids; strata as in Figures 3 and 8",
    expects="In a trial that was not recorded, ED on test images ranked small CNNs best, both with and without mixup.",
    cost="10 to 310 s per run on an H200 that several runs shared; not timed alone",
    # Compiling networks of many shapes would take longer than training them.
    settings=Training(data="cifar10", limit=5000, epochs=60, augment="none", compile=False, **MEASURES),
    run=train,
    check_data=check_training,
    study=RandomPool(fit=FITS, finer=("network", "recipe")),
    methods=(Method("random", "Random search"),),
    departs="64 ResNet-9s of four widths, on 5,000 images without augmentation, which most networks fit.",
    seeds=(0,),
    search=draw_points(lambda draws: draw(draws, [f"resnet9-{width}" for width in (8, 16, 32, 64)], RATES), 64, seed=0),
)
