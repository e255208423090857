"""PACS (Li et al., 2017): seven classes in four domains, photos and three styles that are ever further from photos."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from effdeg_lab.data.image_files import list_images
from effdeg_lab.data.images import IMAGENET_SCALE, Crop, Images, read_by_path
from effdeg_lab.data.labeled import Labeled
from effdeg_lab.data.layouts import find_shards

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def find_photos(folder: Path, pixels: int) -> Callable[[], Labeled]:
    """Find the photos of PACS, four fifths to train on and the rest to test on, and the other domains as shifts.

    The split is always the same.
    """
    load = find_pacs(folder, Crop(pixels))

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
    for place in (folder / "pacs", folder / "PACS"):
        if any(place.glob(f"{DOMAINS[0]}-*.parquet")):
            shards = {domain: find_shards(place, domain) for domain in DOMAINS}
            return lambda: _load(
                {domain: read_by_path(files, "a Parquet file of PACS") for domain, files in shards.items()}, crop
            )
        if all((place / domain / each).is_dir() for domain in DOMAINS for each in CLASSES):
            return lambda: _load({domain: _list_files(place / domain) for domain in DOMAINS}, crop)
    raise FileNotFoundError(
        f"PACS was not found: expected {folder / 'pacs'} with DOMAIN-*.parquet or folders DOMAIN/CLASS, for the "
        f"domains {', '.join(DOMAINS)} and the classes {', '.join(CLASSES)}."
    )


def _list_files(folder: Path) -> dict[str, Path | bytes]:
    return {f"{each}/{name}": folder / each / name for each in CLASSES for name in list_images(folder / each)}


def _load(domains: Mapping[str, Mapping[str, Path | bytes]], crop: Crop) -> dict[str, tuple[Tensor, Tensor]]:
    found = dict[str, tuple[Tensor, Tensor]]()
    for domain, sources in domains.items():
        if wrong := [path for path in sources if path.split("/")[0] not in CLASSES]:
            raise ValueError(f"{domain} of PACS has {wrong[0]}, which is in none of {', '.join(CLASSES)}.")
        paths = sorted(sources)
        order = torch.randperm(len(paths), generator=torch.Generator().manual_seed(0)).tolist()
        images = Images([sources[paths[place]] for place in order], crop, domain).decode_once()
        found[domain] = images, torch.tensor([CLASSES.index(paths[place].split("/")[0]) for place in order])
    return found
