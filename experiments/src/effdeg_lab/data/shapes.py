"""Images with the shape of one thing and the texture of another (Geirhos et al., 2019), for networks on CIFAR-10."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from effdeg_lab.data.images import Crop, Images, read_by_path
from effdeg_lab.data.layouts import find_shards

CLASSES = {"airplane": 0, "car": 1, "bird": 2, "cat": 3, "dog": 5, "boat": 8, "truck": 9}
"""The classes of CIFAR-10 for which there are images; boats count as ships."""
NAME = "cue conflict"


def find_cue_conflict(folder: Path, pixels: int) -> Callable[[], Mapping[str, tuple[Tensor, Tensor]]]:
    """Find ``cue-conflict-*.parquet`` in ``shapes`` of the data folder; without that folder nothing is loaded.

    Each image has its ``path``, ``SHAPE/SHAPE1-TEXTURE2.png``. Images are labeled by shape. Images whose shape is not a
    class of CIFAR-10, or whose texture has the same class, are left out.
    """
    place = folder / "shapes"
    files = find_shards(place, "cue-conflict") if place.is_dir() else []

    def load() -> dict[str, tuple[Tensor, Tensor]]:
        sources, labels = list[bytes](), list[int]()
        for path, image in read_by_path(files, "images of conflicting cues").items():
            shape, name = path.split("/")
            texture = Path(name.split("-")[1]).stem.rstrip("0123456789")
            if shape in CLASSES and shape != texture:
                sources.append(image)
                labels.append(CLASSES[shape])
        return {NAME: (Images(sources, Crop(pixels), NAME).decode_once(), torch.tensor(labels))} if sources else {}

    return load
