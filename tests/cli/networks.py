"""Models that the tests of the command line load by name."""

import random
import warnings
from functools import cache

import numpy as np
import torch
from torch import nn

SMALL = "tests.cli.networks:small"
FAST = ["--paths", "20", "--nodes", "12", "--degree", "6"]


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = small()

    def forward(self, x):
        return self.layers(x)


def plain_function():
    return lambda x: x.flatten(1)


def colors():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def wide(width, *, depth, bias=True):
    return nn.Linear(12, width)


class Wide(nn.Linear):
    def __init__(self, width):
        super().__init__(12, width)


def drawn():
    """A network whose weights depend on the random state of torch, numpy and Python."""
    model = small()
    with torch.no_grad():
        model[1].bias.fill_(np.random.rand())
        model[3].bias[0] = random.random()
    return model


def normed():
    """A layer that cannot be copied."""
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        return nn.utils.weight_norm(nn.Linear(3, 3))


def normalized():
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(12, 3)

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        self.calls = state["calls"]


instance = small()
cached = cache(small)
NORMED = normed()
number = 3
