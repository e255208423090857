"""Random crops and flips of a batch of images, on the device that holds them all."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

BORDER = 4
Augment = Literal["none", "crop", "crop-flip"]


def bordered(images: Tensor, augment: Augment) -> Tensor:
    """Put a black border around images, for crops to reach into; only where there will be crops."""
    return images if augment == "none" else pad(images, (BORDER,) * 4)


def augmented(images: Tensor, batch: Tensor, augment: Augment) -> Tensor:
    """Pick a batch out of bordered images, each cropped at random and, if wanted, half of them flipped.

    Args:
        images: All images, with their border.
        batch: Which of them.
        augment: What is done to them.

    Returns:
        The batch.
    """
    if augment == "none":
        return images[batch]
    channels, height, width = images.shape[1], *(side - 2 * BORDER for side in images.shape[2:])
    device = images.device
    top, left = torch.randint(0, 2 * BORDER + 1, (2, len(batch), 1), device=device)
    rows, columns = top + torch.arange(height, device=device), left + torch.arange(width, device=device)
    if augment == "crop-flip":
        flipped = torch.rand(len(batch), 1, device=device) < 0.5
        columns = torch.where(flipped, columns.flip(1), columns)
    channel = torch.arange(channels, device=device)[:, None, None]
    # One gather does it all, where slices image by image would be hundreds of kernels.
    return images[batch[:, None, None, None], channel, rows[:, None, :, None], columns[:, None, None, :]]
