"""Images from their files, decoded by all cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from effdeg.io._data import ImageList, ImageOptions
from effdeg.lab.data.labelled import Array

_PER_TURN = 500


class Pixels(ImageOptions):
    """Images as they are stored: bytes, channels × height × width."""

    def __call__(self, image: Any) -> Tensor:
        """Turn a Pillow image, grey or RGB, into bytes."""
        pixels = torch.from_numpy(np.array(image))
        return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)


def decoded(images: ImageList, called: Callable[[int], object]) -> Array:
    """Decode images of one size.

    Args:
        images: The images.
        called: What to call an image in an error, by its number.

    Returns:
        Bytes, N × channels × height × width.
    """
    shape = images[0].shape

    def decode(start: int) -> Tensor:
        """Decode so many that the threads' turns cost little."""
        indices = range(start, min(start + _PER_TURN, len(images)))
        some = [images[index] for index in indices]
        for index, each in zip(indices, some, strict=True):
            if each.shape != shape:
                given, first = (" × ".join(map(str, size[1:])) for size in (each.shape, shape))
                raise ValueError(f"{called(index)} has {given} pixels, the first image {first}: one size is expected.")
        return torch.stack(some)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return torch.cat(list(threads.map(decode, range(0, len(images), _PER_TURN)))).numpy()
