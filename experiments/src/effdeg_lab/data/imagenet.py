"""ImageNet, whose images stay in their files."""

import csv
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from effdeg_lab.data.images import (
    SUFFIXES,
    StoredImages,
    list_classes,
    list_images,
    store_folders,
    store_names,
    store_tables,
)
from effdeg_lab.data.sources import HUB, DataSet, Scale, explain_errors, find_shards

_CLASSES = 1000
_SCALE: Scale = (0.5,) * 3, (0.5,) * 3  # both of the paper's recipes scale pixels to [-1, 1]
Read = Callable[[], tuple[StoredImages, StoredImages]]
_STATED = "train/CLASS/*.JPEG and val/CLASS/*.JPEG, or train-*.parquet and val*-*.parquet"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set for classification whose images are decoded when needed."""

    train: StoredImages
    test: StoredImages
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def list_gaps(self) -> list[str]:
        """Describe what ImageNet has and this set lacks, as after an incomplete download: classes, or their tests."""
        tested, gaps = len(np.unique(self.test.labels)), list[str]()
        if self.classes != _CLASSES:
            gaps.append(f"data=imagenet has {self.classes:,} classes here; ImageNet has {_CLASSES:,}.")
        if tested < self.classes:
            gaps.append(f"only {tested:,} of the {self.classes:,} classes of data=imagenet have test images.")
        return gaps

    def fingerprint(self) -> str:
        """Return a short hash of the names and labels of all images; reading their bytes would take too long."""
        return hashlib.sha256(f"{self.train.hash()} {self.test.hash()}".encode()).hexdigest()[:16]


def find_imagenet(folder: Path, _: int | None = None) -> Callable[[], ImageSet]:
    """Find ImageNet in the data folder, with the images of both splits in a fixed random order."""
    read = find_splits(folder)
    return lambda: _make_set(folder, *read())


def find_splits(folder: Path) -> Read:
    """Find ImageNet in the data folder, and return what reads its training and test images, in the order of the files.

    It is in ``imagenet`` or ``ILSVRC2012``, in the folders of Kaggle's archive, or directly in the data folder.
    """
    places = [folder / place for place in ("imagenet", "imagenet/data", "ILSVRC2012", "ILSVRC/Data/CLS-LOC", "")]
    for place in places:
        if (read := _find_splits(place, folder)) is not None:
            return read
    listed = ", ".join(map(str, places[:-1]))
    raise FileNotFoundError(f"imagenet was not found: expected {_STATED} in {listed} or {places[-1]} itself.")


def _find_splits(place: Path, folder: Path) -> Read | None:
    val = next((place / name for name in ("val_in_folder", "val") if (place / name).is_dir()), None)
    if (place / "train").is_dir() and val is not None:
        # Kaggle's archive has all validation images in one folder, and their classes in a table.
        table = folder / "LOC_val_solution.csv"
        flat = not list_classes(val)
        if flat and not table.is_file():
            raise FileNotFoundError(f"{val} has no class folders, and {table} with the classes is missing.")
        return lambda: _read_folders(place / "train", val, table if flat else None)
    tests = [split for split in ("val", "validation") if any(place.glob(f"{split}-*.parquet"))]
    if not tests or not any(place.glob("train-*.parquet")):
        return None
    train, test = find_shards(place, "train"), find_shards(place, tests[0])
    return lambda: (store_tables(train), store_tables(test))


def _make_set(folder: Path, train: StoredImages, test: StoredImages) -> ImageSet:
    """Check the labels, and bring both splits into a fixed random order."""
    labels = np.unique(train.labels)
    classes = len(labels)
    if classes < 2 or not len(test) or not np.array_equal(labels, np.arange(classes)):
        raise ValueError(
            f"{folder}: the {len(train)} training images have the labels {labels[:3].tolist()}, …, and there are "
            f"{len(test)} test images; expected images of two or more classes, numbered from 0, and test images."
        )
    if (wrong := np.flatnonzero((test.labels < 0) | (test.labels >= classes))).size:
        raise ValueError(
            f"{folder}: {test.describe(int(wrong[0]))} has the label {test.labels[wrong[0]]}; expected 0 to "
            f"{classes - 1}, as in training."
        )
    # Shuffled, so that the first images are a fair sample: folders list one class after the other.
    orders = [np.random.Generator(np.random.PCG64(seed)).permutation(len(x)) for seed, x in enumerate((train, test))]
    return ImageSet(train[orders[0]], test[orders[1]], classes, *_SCALE)


def _read_folders(train: Path, val: Path, table: Path | None) -> tuple[StoredImages, StoredImages]:
    classes = {name: label for label, name in enumerate(list_classes(train))}
    stored = store_folders(train, classes)
    present = {*stored.labels.tolist()}
    if empty := [name for name, label in classes.items() if label not in present]:
        raise ValueError(
            f"{train / empty[0]} has no images ({', '.join(SUFFIXES)}): remove it, or download them again."
        )
    if table is None:
        if unknown := {*list_classes(val)} - {*classes}:
            raise ValueError(f"{val / min(unknown)} is the folder of a class that is not in training.")
        return stored, store_folders(val, classes)
    with explain_errors(table, "a table of ImageId and PredictionString"), table.open(newline="") as stream:
        known = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(stream)}
        names = list_images(val)
        labels = [list(classes).index(known[Path(name).stem]) for name in names]
    return stored, store_names(val, names, labels)


_SOURCE = f"https://image-net.org, or ILSVRC/imagenet-1k {HUB} (its files in DIR/imagenet)"
DATA_SETS = {"imagenet": DataSet(find_imagenet, _SOURCE)}
