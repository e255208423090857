"""Images cut in two: a part on one side of a straight line from border to border, and the rest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from effdeg._utils.shapes import Bool, Float
from effdeg.baselines._mixup import soft_labels

# The line lies between a quarter and three quarters of the height or of the width, so that neither part is a sliver.
_LEAST = 0.25


@dataclass(frozen=True, eq=False)
class Cuts:
    """Where images are cut, each in its own way.

    Attributes:
        part: Which pixels belong to the part.
        share: How many of all.
    """

    part: Bool[Tensor, "images 1 height width"]
    share: Float[Tensor, "images"]

    @classmethod
    def draw(cls, count: int, images: Tensor) -> "Cuts":
        """Draw so many cuts for images of this size, across or upright; the part is either side of the line."""
        height, width = images.shape[-2:]
        device = images.device
        place = _LEAST + (1 - 2 * _LEAST) * torch.rand(count, 1, 1, 1, device=device)
        across, beyond = torch.rand(2, count, 1, 1, 1, device=device) < 0.5
        down = _centres(height, device).view(height, 1).expand(height, width)
        right = _centres(width, device).expand(height, width)
        part = (torch.where(across, down, right) < place) ^ beyond
        return cls(part, part.float().mean((1, 2, 3)))

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        """Put the part of one image each together with the rest of another."""
        return torch.where(self.part, one, other)

    def mix(self, one: Tensor, other: Tensor) -> Tensor:
        """Mix soft labels by how much of the image is whose."""
        return torch.lerp(other, one, self.share[:, None])


def cut_mixed(images: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Put every image of a batch together with a part of the one before, and mix their labels by area (CutMix).

    Args:
        images: The batch, in a random order, so that the one before is any other.
        labels: Class ids or soft labels.
        classes: How many classes there are.

    Returns:
        The joined images and their soft labels.
    """
    cuts, soft = Cuts.draw(len(images), images), soft_labels(labels, classes, images.dtype)
    return cuts.join(images.roll(1, 0), images), cuts.mix(soft.roll(1, 0), soft)


def _centres(count: int, device: torch.device) -> Tensor:
    return (torch.arange(count, device=device) + 0.5) / count
