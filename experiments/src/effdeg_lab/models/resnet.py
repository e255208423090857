"""ResNet-18 for 32 × 32 images: the first convolution has a kernel of 3 and no pooling after it."""

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two convolutions, added to what came in."""

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
        """Run the block on a batch of feature maps."""
        return torch.relu(self.body(x) + self.skip(x))


class ResNet18(nn.Module):
    """A residual network of 18 layers."""

    def __init__(self, *, width: int = 64, channels: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width * factor for factor in (1, 1, 2, 2, 4, 4, 8, 8)]
        pairs = zip([width, *widths], widths, strict=False)
        self.blocks = nn.Sequential(*[BasicBlock(given, out, 1 if given == out else 2) for given, out in pairs])
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classify a batch of images."""
        logits: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return logits
