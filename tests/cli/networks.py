"""Models that the tests of the command line load by name."""

from torch import nn


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


def colours():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


instance = small()
number = 3
