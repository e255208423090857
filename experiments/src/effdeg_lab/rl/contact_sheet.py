"""A contact sheet: frames of several games at several moments in one image."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_GAP = 2  # white pixels between frames


def draw_frames(frames: NDArray[np.uint8], file: Path) -> None:
    """Write frames as one PNG, a row per game and a column per moment.

    Args:
        frames: Images (games, moments, height, width, 3).
        file: The PNG, which is replaced if it exists.

    Raises:
        ValueError: If the frames have another type or shape.
    """
    if frames.dtype != np.uint8 or frames.ndim != 5 or frames.shape[-1] != 3 or not frames.size:
        raise ValueError(
            f"expected frames of uint8 (games, moments, height, width, 3); got {frames.dtype} {frames.shape}."
        )
    margin = (0, _GAP)
    tiles = np.pad(frames, ((0, 0), (0, 0), margin, margin, (0, 0)), constant_values=255)
    games, moments, height, width, _ = tiles.shape
    sheet = tiles.transpose(0, 2, 1, 3, 4).reshape(games * height, moments * width, 3)[:-_GAP, :-_GAP]
    Image.fromarray(np.ascontiguousarray(sheet)).save(file, format="PNG")
