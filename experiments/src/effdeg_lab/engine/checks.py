"""Checks of runs before any of them starts: do they find their data, and do their settings fit?"""

from collections.abc import Iterable
from pathlib import Path

import torch

from effdeg.io import find_code
from effdeg_lab.data import CIFAR10N, Size, check_all, get_size
from effdeg_lab.engine.classify import Schedules, check_layer, check_suspect
from effdeg_lab.engine.examples import check_images, check_labeled, count_examples
from effdeg_lab.engine.regularizers import make_regularizer
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.streaming import check_stored
from effdeg_lab.models import PRETRAINED, check_model, make_model
from effdeg_lab.models.pretrained import find_pretrained


def check_training(several: Iterable[Training], folder: Path | None) -> None:
    """Raise unless runs with these settings find their data, and their settings fit together.

    Whether settings fit the data is checked only for published data sets, whose sizes are known without reading them.
    """
    several = list(dict.fromkeys(each.change({"seed": 0}) for each in several))
    check_all(several, folder)
    for name in dict.fromkeys(each.model for each in several):
        if name in PRETRAINED:
            find_pretrained(name, folder)
        elif ":" in name:
            find_code(name)
    for settings in several:
        check_model(settings.model, dropout=settings.dropout)
        regularizer = make_regularizer(settings)
        if size := get_size(settings.data):
            _check_size(settings, size, regularizer.weight)
        elif settings.data == "imagenet":
            check_stored(settings)
            if settings.limit is not None:
                settings.check_steps(settings.epochs * (settings.limit // settings.batch))
    # Many runs of a sweep have the same network.
    for settings in {(each.model, each.dropout, each.at, each.data, each.pixels): each for each in several}.values():
        # Images in files get their size from the settings; a network fits any number of classes.
        size = Size(0, 0, (3,), 2) if settings.data == "imagenet" else get_size(settings.data)
        if size and settings.model not in PRETRAINED and ":" not in settings.model:
            _check_network(settings, size)


def _check_size(settings: Training, size: Size, weight: float) -> None:
    """Raise unless the settings fit the number and the shape of the examples."""
    _, count = count_examples(size.train, settings)
    if settings.labeled is not None and settings.labeled > count:
        raise ValueError(f"labeled={settings.labeled} is more than the {count} training examples.")
    if settings.labeled is not None:
        check_labeled(settings.labeled, size.classes)
    check_images(settings, size.shape)
    check_suspect(settings, known=settings.data in CIFAR10N)
    Schedules(settings, steps=settings.epochs * (count // settings.batch), weight=weight)


def _check_network(settings: Training, size: Size) -> None:
    """Raise unless the network fits the shape of the examples, and has the layer that paths lie at."""
    side = settings.pixels
    shape = size.shape if side is None else (size.shape[0], side, side)
    with torch.random.fork_rng(devices=[]):
        network = make_model(settings.model, shape=shape, classes=size.classes, dropout=settings.dropout)
    check_layer(network, settings)
