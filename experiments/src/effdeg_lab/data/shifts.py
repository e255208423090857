"""Five distribution shifts of ImageNet, in their usual layouts.

Each is a set of images with classes of its own; one or several of ImageNet's classes count as each of them.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from effdeg_lab.data.images import Crop, Images, StoredImages, store_folders


@dataclass(frozen=True)
class ImageNetClass:
    """A class of ImageNet; its index in :func:`read_classes` is its number."""

    wnid: str
    name: str  # as in CLIP's prompts
    in_r: bool
    in_a: bool
    objectnet: str  # the folder of ObjectNet that it counts as; empty if there is none


@cache
def read_classes() -> tuple[ImageNetClass, ...]:
    """Read the 1,000 classes of ImageNet; the file says where they are from."""
    text = resources.files("effdeg_lab.data").joinpath("imagenet_classes.tsv").read_text(encoding="utf-8")
    _, *rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return tuple(ImageNetClass(wnid, name, bool(r), bool(a), objectnet) for wnid, name, r, a, objectnet in rows)


@dataclass(frozen=True, eq=False)
class TestSet:
    """Images that models with ImageNet's 1,000 outputs are tested on."""

    __test__ = False  # for pytest

    name: str
    images: Images
    labels: Tensor  # the class of each image, an index into ``counts_as``
    counts_as: tuple[tuple[int, ...], ...]  # for each class, the classes of ImageNet that count as it

    def __len__(self) -> int:
        return len(self.labels)

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels in parts, decoded in other processes if there are many."""
        workers = 0 if self.images.kept is not None or len(self) <= size else min(16, os.cpu_count() or 1)
        return zip(DataLoader(self.images, size, num_workers=workers), torch.split(self.labels, size), strict=True)

    def project(self, logits: Tensor) -> Tensor:
        """Restrict logits, N × 1,000, to the classes of this set; the largest counts where there are several."""
        if logits.shape[-1] != len(read_classes()):
            raise ValueError(f"{self.name} needs logits of ImageNet's 1,000 classes; given {tuple(logits.shape)}.")
        longest = max(map(len, self.counts_as))
        # Repeating a class does not change the largest.
        places = [[*each, *each[:1] * (longest - len(each))] for each in self.counts_as]
        return logits[..., torch.tensor(places, device=logits.device)].amax(-1)

    def take(self, count: int) -> "TestSet":
        """Return a part of the images, evenly spaced, so that all classes are covered alike."""
        places = torch.linspace(0, len(self) - 1, min(count, len(self)), dtype=torch.float64).round().long()
        return replace(self, images=self.images.take(places.numpy()), labels=self.labels[places])


@dataclass(frozen=True)
class _Layout:
    """Where the images of a set are, and what its folders are called."""

    places: tuple[str, ...]  # within the data folder
    get_folder: Callable[[ImageNetClass], str] = lambda each: each.wnid  # of a class; empty if there is none
    border: int = 0


_LAYOUTS: Mapping[str, _Layout] = {
    "imagenet-v2": _Layout(("imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency", "imagenet-v2")),
    "imagenet-r": _Layout(("imagenet-r",), lambda each: each.wnid if each.in_r else ""),
    "imagenet-a": _Layout(("imagenet-a",), lambda each: each.wnid if each.in_a else ""),
    "imagenet-sketch": _Layout(("sketch", "imagenet-sketch/sketch", "imagenet-sketch", "ImageNet-Sketch")),
    # The published images have a red border, so that nobody trains on them by accident.
    "objectnet": _Layout(
        ("objectnet-1.0/images", "objectnet/images", "objectnet"), lambda each: each.objectnet, border=2
    ),
}

SHIFTS = (*_LAYOUTS,)
"""The shifts of the paper's Table 2; ``avg OOD`` is their unweighted mean."""


def find_test_set(name: str, folder: Path, crop: Crop) -> TestSet:
    """Find one of :data:`SHIFTS` in the data folder; images are decoded on access.

    Classes are folders named by WordNet id; by number for ImageNetV2 as published; or by ObjectNet's names, without
    those that match no class of ImageNet.
    """
    layout = _LAYOUTS[name]
    crop, members = replace(crop, border=layout.border), _find_members(layout)
    places = [folder / place for place in layout.places]
    root = next((each for each in places if each.is_dir()), None)
    if root is None:
        raise FileNotFoundError(f"{name} was not found: expected {' or '.join(map(str, places))}.")
    stored = _store_folders(name, root, members)
    labels = torch.from_numpy(stored.labels)
    if missing := sorted({*range(len(members))} - {*labels.tolist()}):
        names = [[*members][label] for label in missing[:3]]
        raise FileNotFoundError(
            f"{root} has no images of {len(missing)} of the {len(members)} classes of {name}: "
            f"{', '.join(names)}{' and others' if len(missing) > 3 else ''}. Expected a folder of images for each."
        )
    return TestSet(name, Images(stored, crop, name), labels, tuple(members.values()))


def find_shifts(folder: Path, crop: Crop) -> dict[str, TestSet]:
    """Find the shifts of ImageNet that are in the data folder, by name; missing ones are left out."""
    present = (name for name in SHIFTS if any((folder / place).is_dir() for place in _LAYOUTS[name].places))
    return {name: find_test_set(name, folder, crop) for name in present}


def _find_members(layout: _Layout) -> dict[str, tuple[int, ...]]:
    """Return the classes of ImageNet that count as each folder of a set, in the order of the folders' names."""
    members = dict[str, tuple[int, ...]]()
    for number, each in enumerate(read_classes()):
        if folder := layout.get_folder(each):
            members[folder] = (*members.get(folder, ()), number)
    return dict(sorted(members.items()))


def _store_folders(name: str, root: Path, members: Mapping[str, tuple[int, ...]]) -> StoredImages:
    labels = {folder: label for label, folder in enumerate(members)}
    if name == "imagenet-v2":  # by number, where 10 does not come before 2
        labels |= {str(label): label for label in range(len(members))}
    folders = sorted(each.name for each in root.iterdir() if each.is_dir())
    if name != "objectnet" and (unknown := [folder for folder in folders if folder not in labels]):
        expected = ", ".join([*labels][:3])
        raise ValueError(f"{root / unknown[0]} is not a class of {name}: expected folders such as {expected}.")
    return store_folders(root, {folder: labels[folder] for folder in folders if folder in labels})
