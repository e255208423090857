"""Shared by the pools to pick from: what every network is observed with, and random searches over its training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from effdeg_lab.engine import Training
from effdeg_lab.search import Draws

OBSERVED: dict[str, Any] = {"observe": 2000, "measure_paths": 200, "measure_nodes": 64}
# A run takes seconds: compiling, tuning kernels and looking at it on the way would take longer.
SETTINGS = Training(augment="none", compile=False, fused=False, evaluate_every=1000, **OBSERVED)

RESNETS = ("resnet9-8", "resnet9-16", "resnet9-32", "resnet9-64")
LARGE_RESNETS = ("resnet18-16", "resnet18-32", "resnet18-64")
VITS = tuple(f"vit-128x{depth}-{patch}" for depth in (2, 4, 6) for patch in (4, 8))
# Ranges in which most networks fit their training images; a vision transformer does not with SGD in so few steps.
_RESNET_RATES = {"sgd": (0.01, 0.5), "adamw": (3e-4, 1e-2)}
_RATES = {"resnet9": _RESNET_RATES, "resnet18": _RESNET_RATES}
_RATES |= {"vit": {"adamw": (3e-4, 3e-3)}, "mlp": {"sgd": (0.01, 0.1), "adamw": (1e-4, 3e-3)}}
_EPOCHS = {"resnet9": (20, 30, 40), "resnet18": (20, 30, 40), "vit": (60, 90, 120), "mlp": (40, 60, 80)}
# One in so many is trained with crops and flips, and one in so many with mixup: MLPs do not fit cropped images.
_ONE_IN = {"resnet9": 2, "resnet18": 2, "vit": 3, "mlp": 4}


def draw(draws: Draws, model: str) -> dict[str, Any]:
    """Draw how a network is trained."""
    kind = model.split("-")[0]
    optimizer = draws.choice(*_RATES[kind])
    alpha = draws.choice(draws.uniform(0.1, 1.0), *[0.0] * (_ONE_IN[kind] - 1))
    return {
        "regularizer": "mixup" if alpha else "plain",
        "alpha": alpha,
        "model": model,
        "optimizer": optimizer,
        "lr": draws.log_uniform(*_RATES[kind][optimizer]),
        "weight_decay": draws.log_uniform(*((1e-5, 3e-3) if optimizer == "sgd" else (1e-3, 1.0))),
        "batch": draws.choice(64, 128, 256) if kind == "resnet9" else draws.choice(128, 256),
        "epochs": draws.choice(*_EPOCHS[kind]),
        "dropout": draws.choice(0.0, 0.0, 0.1) if kind == "vit" else 0.0,
        "augment": draws.choice("crop-flip", *["none"] * (_ONE_IN[kind] - 1)),
        "smoothing": draws.choice(0.0, 0.1),
    }


def search(
    counts: Mapping[Sequence[str], int], draw: Callable[[Draws, str], dict[str, Any]] = draw
) -> tuple[Mapping[str, Any], ...]:
    """Draw as many points for each list of networks, which take turns; the first points already have all kinds."""
    points = []
    for place, (models, count) in enumerate(counts.items()):
        draws = Draws(place)
        for number in range(count):
            points.append(((number + 0.5) / count, place, draw(draws, models[number % len(models)])))
    return tuple(point for *_, point in sorted(points, key=lambda each: each[:2]))
