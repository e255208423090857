"""A small encoder that counts as pretrained, and images with two further test sets."""

from dataclasses import replace

import torch
from engine_runs import SIZE, make_pictures, small
from torch import nn

from effdeg_lab.data.labeled import Corrupted
from effdeg_lab.models.pretrained import ImageClassifier


def make_encoder(classes):
    """Make an encoder that is always the same, with a head drawn at random."""
    with torch.random.fork_rng():
        torch.manual_seed(123)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE[0] * SIZE[0], 16), nn.Tanh())
    return ImageClassifier(encoder, nn.Linear(16, classes))


def tune(**changes):
    own = {"data": "pictures", "model": "pretrained_toys:make_encoder", "start_from": "probe", "pixels": SIZE[0]}
    return small(**{**own, "limit": 60, "epochs": 2, "lr": 0.01, **changes})


def make_shifted(corrupted=False):
    """Return images with further test sets: turned upside down, and darker ones with other labels."""
    pictures = make_pictures()
    images, labels = pictures.test_inputs, pictures.test_labels
    shifted = {"upside down": (images.flip(2)[:40], labels[:40]), "dark": (images[10:] // 2, labels[10:])}
    kinds = {"fog": (images // 3, labels), "snow": (images[:30], 1 - labels[:30])}
    return replace(pictures, shifted=shifted, corrupted=Corrupted(3, kinds) if corrupted else None)
