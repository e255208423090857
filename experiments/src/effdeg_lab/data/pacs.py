"""PACS (Li et al., 2017): seven classes in four domains, photos and three styles that are ever further from photos."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from effdeg_lab.data.images import IMAGENET_SCALE, Crop, Images, StoredImages, store_folders, store_tables
from effdeg_lab.data.labeled import Labeled
from effdeg_lab.data.sources import DataSet, find_shards

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def find_photos(folder: Path, pixels: int | None = None) -> Callable[[], Labeled]:
    """Find the photos of PACS, four fifths to train on and the rest to test on, and the other domains as shifts.

    The split is always the same. Images are decoded to 224 pixels a side unless another number is given.
    """
    load = find_pacs(folder, Crop(pixels or 224))

    def load_split() -> Labeled:
        shifted = load()
        images, labels = shifted.pop(DOMAINS[0])
        count = len(labels) * 4 // 5
        parts = images[:count], labels[:count], images[count:], labels[count:]
        return Labeled(*parts, len(CLASSES), *IMAGENET_SCALE, shifted=shifted)

    return load_split


def find_pacs(folder: Path, crop: Crop) -> Callable[[], dict[str, tuple[Tensor, Tensor]]]:
    """Find PACS in ``pacs`` or ``PACS`` of the data folder: ``DOMAIN-*.parquet``, or folders ``DOMAIN/CLASS``.

    In Parquet files, images have their ``path``, ``CLASS/FILE``. The result has, for each domain, the images as bytes,
    N × 3 × size × size, and their classes, indices into :data:`CLASSES`. Each domain is in a fixed random order, so its
    first and its last images are a fair sample.
    """
    labels = {name: label for label, name in enumerate(CLASSES)}
    for place in (folder / "pacs", folder / "PACS"):
        if any(place.glob(f"{DOMAINS[0]}-*.parquet")):
            shards = {name: find_shards(place, name) for name in DOMAINS}
            store = partial(store_tables, what="a Parquet file of PACS", labeled=False)
            return lambda: {name: _decode(name, store(files), crop) for name, files in shards.items()}
        if all((place / name / each).is_dir() for name in DOMAINS for each in CLASSES):
            return lambda: {name: _decode(name, store_folders(place / name, labels), crop) for name in DOMAINS}
    raise FileNotFoundError(
        f"PACS was not found: expected {folder / 'pacs'} with DOMAIN-*.parquet or folders DOMAIN/CLASS, for the "
        f"domains {', '.join(DOMAINS)} and the classes {', '.join(CLASSES)}."
    )


def _decode(domain: str, stored: StoredImages, crop: Crop) -> tuple[Tensor, Tensor]:
    paths = stored.list_names()
    classes = [path.split("/")[0] for path in paths]
    if wrong := [path for path, name in zip(paths, classes, strict=True) if name not in CLASSES]:
        raise ValueError(f"{domain} of PACS has {wrong[0]}, which is in none of {', '.join(CLASSES)}.")
    labeled = stored.relabel([CLASSES.index(name) for name in classes])
    order = torch.randperm(len(paths), generator=torch.Generator().manual_seed(0)).numpy()
    return Images(labeled[np.argsort(paths, kind="stable")[order]], crop, domain).decode_once()


_SOURCE = "https://dali-dl.github.io/project_iccv2017.html (folders DOMAIN/CLASS in DIR/pacs)"
DATA_SETS = {"pacs": DataSet(find_photos, _SOURCE)}
