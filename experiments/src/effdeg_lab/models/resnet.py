"""Residual networks for 32 × 32 images: ResNet-18, with a first 3 × 3 convolution and no pooling after it; ResNet-9."""

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        changed = stride > 1 or channels != width
        skip = [nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)] if changed else []
        self.skip = nn.Sequential(*skip)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


class ResNet18(nn.Module):
    def __init__(self, *, width: int = 64, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width * factor for factor in (1, 1, 2, 2, 4, 4, 8, 8)]
        pairs = zip([width, *widths], widths, strict=False)
        self.blocks = nn.Sequential(*[BasicBlock(given, out, 1 if given == out else 2) for given, out in pairs])
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class ResNet9(nn.Module):
    """A residual network of 9 layers that learns CIFAR-10 in few epochs (Page, 2018), here with average pooling last.

    It has four convolutions, the last three with max pooling, and a block after the second and the fourth of them.
    """

    def __init__(self, *, width: int = 64, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_convolve(channels, width),
            *_convolve(width, 2 * width, nn.MaxPool2d(2)),
            BasicBlock(2 * width, 2 * width, 1),
            *_convolve(2 * width, 4 * width, nn.MaxPool2d(2)),
            *_convolve(4 * width, 8 * width, nn.MaxPool2d(2)),
            BasicBlock(8 * width, 8 * width, 1),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layers(images).mean((2, 3)))


def _convolve(channels: int, width: int, *pooling: nn.Module) -> list[nn.Module]:
    return [nn.Conv2d(channels, width, 3, 1, 1, bias=False), *pooling, nn.BatchNorm2d(width), nn.ReLU()]
