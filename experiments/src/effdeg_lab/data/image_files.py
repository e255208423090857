"""Encoded images that stay in their files, in class folders, or are unpacked from Parquet shards."""

import csv
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from effdeg_lab.data.cache import Buffer, Notes, identify_files, keep_bytes
from effdeg_lab.data.layouts import Array, Scale, explain_errors, find_shards

_IMAGES = (".jpeg", ".jpg", ".png", ".webp")
_CLASSES = 1000
_COLUMNS = ("image", "img")
_ROWS = 256  # rows of a table to read at a time
_SCALE: Scale = (0.5,) * 3, (0.5,) * 3  # both of the paper's recipes scale pixels to [-1, 1]
_STATED = "train/CLASS/*.JPEG and val/CLASS/*.JPEG, or train-*.parquet and val*-*.parquet"


@dataclass(frozen=True, eq=False)
class StoredImages:
    """Encoded images of any size in files, with their labels; any process can read any image."""

    files: tuple[Path, ...]  # one folder of images, or shards
    names: Array  # of the images, as bytes; in a folder, their relative paths
    labels: Array
    places: Array | None = None  # in shards, the shard of each image, its first byte and its size
    # For messages, if the files are copies: what was copied, and for each image the number of its shard and its row.
    shards: tuple[Path, ...] = ()
    rows: Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: "slice | Array") -> "StoredImages":
        places, rows = (None if each is None else each[chosen] for each in (self.places, self.rows))
        return replace(self, names=self.names[chosen], labels=self.labels[chosen], places=places, rows=rows)

    def list_names(self) -> list[str]:
        """Return the names as text."""
        return [os.fsdecode(name) for name in self.names]

    def relabel(self, labels: Sequence[int]) -> "StoredImages":
        """Return the images with other labels."""
        return replace(self, labels=np.array(labels, dtype=np.int64))

    def read(self, index: int) -> bytes:
        """Return the bytes of an image."""
        if self.places is None:
            return self._locate(index).read_bytes()
        shard, start, size = map(int, self.places[index])
        with self.files[shard].open("rb") as stream:
            stream.seek(start)
            return stream.read(size)

    def describe(self, index: int) -> str:
        """Return where an image is, for messages."""
        if self.places is None:
            return str(self._locate(index))
        name = os.fsdecode(self.names[index])
        if self.rows is None:
            return f"{name} in {self.files[int(self.places[index, 0])]}"
        shard, row = map(int, self.rows[index])
        return f"{name} in row {row} of {self.shards[shard]}"

    def hash(self) -> str:
        """Return a hash of the names and labels, in order."""
        digest = hashlib.sha256("\n".join(self.list_names()).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return digest.hexdigest()

    def identify(self) -> list[object]:
        """Return a part of a cache key that changes when one of the images is replaced."""
        if self.places is None:
            return [*identify_files(map(self._locate, range(len(self))))]
        return [*identify_files(self.shards or self.files), hashlib.sha256(self.places.tobytes()).hexdigest()]

    def _locate(self, index: int) -> Path:
        return self.files[0] / os.fsdecode(self.names[index])


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
    """Find ImageNet in the data folder: in ``imagenet``, in the folders of Kaggle's archive, or directly in it."""
    places = [folder / place for place in ("imagenet", "imagenet/data", "ILSVRC/Data/CLS-LOC", "")]
    for place in places:
        if (read := _find_splits(place, folder)) is not None:
            return lambda: _make_set(place, *read())
    listed = ", ".join(map(str, places[:-1]))
    raise FileNotFoundError(f"imagenet was not found: expected {_STATED} in {listed} or {places[-1]} itself.")


def _find_splits(place: Path, folder: Path) -> Callable[[], tuple[StoredImages, StoredImages]] | None:
    if (place / "train").is_dir() and (place / "val").is_dir():
        # Kaggle's archive has all validation images in one folder, and their classes in a table.
        table = folder / "LOC_val_solution.csv"
        flat = not _list_classes(place / "val")
        if flat and not table.is_file():
            raise FileNotFoundError(f"{place / 'val'} has no class folders, and {table} with the classes is missing.")
        return lambda: _read_folders(place / "train", place / "val", table if flat else None)
    tests = [split for split in ("val", "validation") if any(place.glob(f"{split}-*.parquet"))]
    if not tests or not any(place.glob("train-*.parquet")):
        return None
    train, test = find_shards(place, "train"), find_shards(place, tests[0])
    return lambda: (store_tables(train), store_tables(test))


def _make_set(place: Path, train: StoredImages, test: StoredImages) -> ImageSet:
    """Check the labels, and bring both splits into a fixed random order."""
    if not len(train) or not len(test):
        raise ValueError(f"{place}: there are {len(train)} training and {len(test)} test images; expected some.")
    classes = int(train.labels.max()) + 1
    if len(labels := np.unique(train.labels)) < 2:
        raise ValueError(f"{place}: all training images are of one class; expected at least two.")
    if labels[0] < 0 or len(labels) < classes:
        raise ValueError(
            f"{place}: the {len(labels)} training labels go from {labels[0]} to {labels[-1]}; expected consecutive "
            "numbers from 0."
        )
    if (wrong := np.flatnonzero((test.labels < 0) | (test.labels >= classes))).size:
        raise ValueError(
            f"{place}: {test.describe(int(wrong[0]))} has the label {test.labels[wrong[0]]}; expected 0 to "
            f"{classes - 1}, as in training."
        )
    # Shuffled, so that the first images are a fair sample: folders list one class after the other.
    orders = [np.random.Generator(np.random.PCG64(seed)).permutation(len(x)) for seed, x in enumerate((train, test))]
    return ImageSet(train[orders[0]], test[orders[1]], classes, *_SCALE)


def _read_folders(train: Path, val: Path, table: Path | None) -> tuple[StoredImages, StoredImages]:
    classes = {name: label for label, name in enumerate(_list_classes(train))}
    stored = store_folders(train, classes)
    present = {*stored.labels.tolist()}
    if empty := [name for name, label in classes.items() if label not in present]:
        raise ValueError(f"{train / empty[0]} has no images ({', '.join(_IMAGES)}): remove it, or download them again.")
    if table is None:
        if unknown := {*_list_classes(val)} - {*classes}:
            raise ValueError(f"{val / min(unknown)} is the folder of a class that is not in training.")
        return stored, store_folders(val, classes)
    with explain_errors(table, "a table of ImageId and PredictionString"), table.open(newline="") as stream:
        known = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(stream)}
        names = list_images(val)
        labels = [list(classes).index(known[Path(name).stem]) for name in names]
    return stored, _store(val, names, labels)


def store_folders(root: Path, labels: Mapping[str, int]) -> StoredImages:
    """Return the images in the folders of classes, which have these labels, folder by folder."""
    images = [(f"{folder}/{name}", label) for folder, label in labels.items() for name in list_images(root / folder)]
    return _store(root, [name for name, _ in images], [label for _, label in images])


def _list_classes(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(each.name for each in entries if each.is_dir() and not each.name.startswith("."))


def list_images(folder: Path) -> list[str]:
    """List the names of the images in a folder, if it exists, without hidden files, such as macOS's ``._NAME``."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:  # fast: there may be a thousand folders of a thousand images
        names = (each.name for each in entries)
        return sorted(name for name in names if name.lower().endswith(_IMAGES) and not name.startswith("."))


def _store(folder: Path, names: Sequence[str], labels: Sequence[int]) -> StoredImages:
    return StoredImages((folder,), _encode(names), np.array(labels, dtype=np.int64))


def _encode(names: Sequence[str]) -> Array:
    """Return names in one array; a million strings would be slow to send to other processes."""
    return np.array([os.fsencode(name) for name in names], dtype=np.bytes_)


def store_tables(
    files: Sequence[Path], what: str = "a Parquet file of images", *, labeled: bool = True
) -> StoredImages:
    """Unpack the images of Parquet shards into the cache: a shard cannot be read one image at a time.

    Images without a column of labels have the label 0; ``what`` names the shards in errors.
    """

    def make(notes: Notes) -> Iterator[Buffer]:
        names, labels, sizes = list[str](), list[int](), list[int]()
        for file in files:
            for content, name, label in read_rows(file, what, labeled):
                names.append(name)
                labels.append(label)
                sizes.append(len(content))
                yield content
        ends = np.cumsum(sizes, dtype=np.int64)
        places = np.column_stack([np.zeros_like(ends), ends - sizes, np.array(sizes, dtype=np.int64)])
        notes |= {"names": _encode(names), "labels": np.array(labels, dtype=np.int64), "places": places}

    size = sum(file.stat().st_size for file in files)
    key = ["unpacked", identify_files(files), *([] if labeled else ["without labels"])]
    file, notes = keep_bytes(key, f"the images of {files[0].parent}", make, size=size)
    counts = [pq.ParquetFile(each).metadata.num_rows for each in files]
    rows = np.column_stack([np.repeat(np.arange(len(files)), counts), np.concatenate([*map(np.arange, counts)])])
    return StoredImages((file,), notes["names"], notes["labels"], notes["places"], tuple(files), rows)


def read_rows(file: Path, what: str, labeled: bool) -> Iterator[tuple[bytes, str, int]]:
    """Yield the bytes, the name and the label of every image in a Parquet file as on the Hugging Face hub."""
    with explain_errors(file, what):
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        column = next((name for name in _COLUMNS if name in names), None)
        if column is None or (labeled and "label" not in names):
            expected = f"image (or img){' and label' if labeled else ''}"
            raise ValueError(f"it has the columns {', '.join(names)}; expected {expected}.")
        row = 0
        for batch in table.iter_batches(_ROWS, columns=[column, *(["label"] if labeled else [])]):
            cells = batch.column(column).to_pylist()
            labels = batch.column("label").to_pylist() if labeled else [0] * len(cells)
            for cell, label in zip(cells, labels, strict=True):
                if cell is None or label is None:
                    raise ValueError(f"row {row} has no image or no label.")
                # An empty image is broken, and reported when it is decoded.
                yield cell["bytes"] or b"", cell.get("path") or f"row {row} of {file.name}", label
                row += 1
