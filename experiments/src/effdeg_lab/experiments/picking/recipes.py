"""Pools to pick from: what every network is observed with, and random searches over its training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.search import Draws
from effdeg_lab.engine import Training, check_training, train
from effdeg_lab.experiments.glue.recipes import RDROP_WEIGHT
from effdeg_lab.experiments.glue.training import FineTuning, check_texts
from effdeg_lab.experiments.glue.training import train as train_text
from effdeg_lab.experiments.picking.foreign import Foreign, check_foreign, run_foreign
from effdeg_lab.experiments.picking.study import Picking

OBSERVED: dict[str, Any] = {"observe": 2000, "measure_paths": 200, "measure_nodes": 64}
# A run takes seconds: compiling, tuning kernels and looking at it on the way would take longer.
SETTINGS = Training(augment="none", compile=False, evaluate_every=1000, **OBSERVED)

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


CIFAR10 = Recipe(
    name="picking-cifar10",
    title="Picking the best of several networks without labels, on CIFAR-10 and with corruptions",
    paper="not in the paper",
    expects=(
        "In a trial of 206 networks, changed predictions and disagreement found the best of five with 78 to 99% of the "
        "possible gain, for ConvNets and transformers alike."
    ),
    cost="about 2 s per run on an H200 that 14 runs share by MPS (estimated)",
    settings=replace(SETTINGS, data="cifar10", limit=6000),
    run=train,
    check_data=check_training,
    study=Picking(),
    methods=(Method("random", "Random search"),),
    departs=(
        "210 networks, with two seeds each, on 6,000 images: 80 ResNet-9s of four widths, 80 small vision transformers "
        "of three depths and two sizes of patches, 30 MLPs, 20 ResNet-18s of three widths. Observed on 2,000 test "
        "images and, if there are any, on 2,000 with corruptions."
    ),
    seeds=(0, 1),
    search=search({RESNETS: 80, VITS: 80, ("mlp",): 30, LARGE_RESNETS: 20}),
)


FOREIGN = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "resnet50_keras", "deit-tiny")


def draw_digits(draws: Draws, model: str) -> dict[str, Any]:
    """Draw how a network is trained: in small batches, and never on mirrored digits."""
    return draw(draws, model) | {"batch": draws.choice(16, 32, 64), "augment": "none"}


def draw_finetuning(draws: Draws, model: str) -> dict[str, Any]:
    """Draw a fine-tuning."""
    alpha = draws.zero_or_uniform(0.1, 1.0)
    return {
        "regularizer": "mixup" if alpha else "plain",
        "alpha": alpha,
        "model": model,
        "start_from": draws.choice("probe", "pretrained"),
        "lr": draws.log_uniform(1e-5, 1e-3),
        "weight_decay": draws.log_uniform(1e-4, 0.6),
        "batch": draws.choice(32, 64),
        "epochs": draws.choice(4, 8, 16),
        "augment": draws.choice("none", "resized-crop-flip"),
        "crop_scale": draws.choice(0.3, 0.9),
        "smoothing": draws.choice(0.0, 0.1),
    }


def draw_text(draws: Draws, model: str) -> dict[str, Any]:
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


MRPC = Recipe(
    name="picking-mrpc",
    title="Picking the best of several fine-tuned text encoders without labels, on MRPC",
    paper="not in the paper",
    expects="The measure that was chosen on CIFAR-10 picks as well here.",
    cost="about 3 s per run on an H200 that 14 runs share by MPS (estimated)",
    settings=FineTuning(data="mrpc", compile=False, observe=2000),
    run=train_text,
    check_data=check_texts,
    study=Picking(),
    methods=(Method("random", "Random search"),),
    departs="40 fine-tunings of all-MiniLM-L6-v2 with one seed, observed on all dev examples.",
    seeds=(0,),
    search=search({("all-MiniLM-L6-v2",): 40}, draw_text),
)


RECIPES = (
    CIFAR10,
    Recipe(
        name="picking-foreign",
        title="Picking the best of five ImageNet classifiers of others without labels",
        paper="not in the paper",
        expects=(
            "Little: four of the five are within a point of each other on these images; DeiT-Tiny is 4 points below."
        ),
        cost="about 10 s per run on an H200 (estimated); 2 to 10 min on one core of a CPU with 500 images",
        settings=Foreign(),
        run=run_foreign,
        check_data=check_foreign,
        study=Picking(),
        methods=(Method("given", "As published"),),
        departs=(
            "EfficientNet-Lite 0 to 2, Keras's ResNet-50 and DeiT-Tiny; images whose short side has 256 pixels, 5 of "
            "each class."
        ),
        seeds=(0,),
        grid={"model": FOREIGN},
    ),
    replace(
        CIFAR10,
        name="picking-mnist",
        title="Picking the best of several networks without labels, on MNIST",
        expects="The measure that was chosen on CIFAR-10 picks as well here.",
        cost="15 min on 2 cores",
        settings=replace(SETTINGS, data="mnist", limit=500, measure_paths=50, precision="float32"),
        departs=(
            "16 ResNet-9s of width 8, 24 small vision transformers and 24 MLPs with one seed, on 500 digits, and "
            "otherwise as on CIFAR-10. The change is a shift: a mirrored digit is another one."
        ),
        seeds=(0,),
        search=search({("resnet9-8",): 16, ("vit-64x2-7",): 24, ("mlp",): 24}, draw_digits),
    ),
    replace(
        CIFAR10,
        name="picking-pacs",
        title="Picking the best of several fine-tuned DeiT-Tinys without labels, for paintings, cartoons and sketches",
        expects="The measure that was chosen on CIFAR-10 picks as well here.",
        cost="about 5 s per run on an H200 that 14 runs share by MPS (estimated)",
        settings=replace(
            SETTINGS, data="pacs", model="deit-tiny", start_from="probe", pixels=128, observe=1000, measure_paths=60
        ),
        departs="48 fine-tunings of DeiT-Tiny with one seed on 1,336 photos at 128 pixels, observed on 1,000 images of "
        "each other domain and on 334 photos.",
        seeds=(0,),
        search=search({("deit-tiny",): 48}, draw_finetuning),
    ),
    replace(
        CIFAR10,
        name="picking-tiny-imagenet",
        title="Picking the best of several networks without labels, on Tiny-ImageNet",
        expects="The measure that was chosen on CIFAR-10 picks as well here.",
        cost="about 3 s per run on an H200 that 14 runs share by MPS (estimated)",
        settings=replace(SETTINGS, data="tiny-imagenet", limit=10_000, pixels=32),
        departs=(
            "32 ResNet-9s and 16 small vision transformers with one seed, on 10,000 images of 200 classes that are "
            "reduced to 32 pixels, and otherwise as on CIFAR-10."
        ),
        seeds=(0,),
        search=search({RESNETS[1:]: 32, VITS: 16}),
    ),
    MRPC,
    replace(
        MRPC,
        name="picking-rte",
        title="Picking the best of several fine-tuned text encoders without labels, on RTE",
        settings=FineTuning(data="rte", compile=False, observe=2000),
    ),
)
