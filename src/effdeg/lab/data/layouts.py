"""The layouts in which people have data sets of their own."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from effdeg._models.examples import LABELS
from effdeg._utils.imports import require
from effdeg.io import load_data
from effdeg.io._data import IMAGES, ImageList
from effdeg.lab.data.cache import cached
from effdeg.lab.data.images import Pixels, decoded
from effdeg.lab.data.labelled import Array, Labelled, RawSplit, labelled, shuffled
from effdeg.lab.data.reading import reading

LAYOUTS = (
    "a folder with train-*.parquet and test-*.parquet, a folder with train/CLASS/*.png and test/CLASS/*.png, or a .npz "
    "file with x_train, y_train, x_test and y_test"
)
_SPLITS = ("train", "test")
_PART = re.compile(r"(.*)-(\d+)-of-(\d+)\.parquet")


def load_path(path: Path) -> Labelled:
    """Load a data set from a file or folder in one of the known layouts.

    Args:
        path: The file or folder.

    Returns:
        The data set, in a random order that is always the same: many are sorted by class.
    """
    if path.suffix == ".npz":
        return shuffled(labelled(path, *_read_npz(path)))
    if is_parquet(path):
        return shuffled(labelled(path, *read_parquet(path)))
    if all((path / split).is_dir() for split in _SPLITS):
        return shuffled(labelled(path, *_read_folders(path)))
    raise ValueError(f"{path} is in no known layout: expected {LAYOUTS}.")


def is_parquet(folder: Path) -> bool:
    """Return whether a folder holds Parquet files of training or test examples."""
    return any(any(folder.glob(f"{split}-*.parquet")) for split in _SPLITS)


def read_parquet(folder: Path) -> tuple[RawSplit, RawSplit]:
    """Read ``train-*.parquet`` and ``test-*.parquet``, as the Hugging Face hub stores them."""
    train, test = (sorted(folder.glob(f"{split}-*.parquet")) for split in _SPLITS)
    for split, files in zip(_SPLITS, (train, test), strict=True):
        if not files:
            raise FileNotFoundError(f"{folder} has no {split}-*.parquet.")
        _check_parts(files)
    return cached([*train, *test], lambda: (_tables(train), _tables(test)))


def _check_parts(files: Sequence[Path]) -> None:
    """Raise if files say that there are more parts than are there."""
    for match in filter(None, (_PART.fullmatch(file.name) for file in files)):
        name, digits, count = match[1], len(match[2]), int(match[3])
        for number in range(count):
            part = files[0].parent / f"{name}-{number:0{digits}}-of-{match[3]}.parquet"
            if part not in files:
                raise FileNotFoundError(f"{part}, one of {count} parts, is missing.")


def _tables(files: Sequence[Path]) -> RawSplit:
    tables = [_table(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if table.inputs.shape[1:] != tables[0].inputs.shape[1:]:
            raise ValueError(
                f"{file} holds examples of the shape {table.inputs.shape[1:]}, {files[0]} of the shape "
                f"{tables[0].inputs.shape[1:]}: one shape is expected."
            )
    return RawSplit(*(np.concatenate(each) for each in zip(*tables, strict=True)))


def _table(file: Path) -> RawSplit:
    parquet = require("pyarrow.parquet", extra="files", purpose="a .parquet file")
    with reading(file, "a Parquet file of examples"):
        names = parquet.read_schema(file).names
        found = [name for name in names if name in LABELS]
        if not found:
            known = ", ".join(sorted(LABELS))
            raise ValueError(f"{file} has no column of labels ({known}); it has {', '.join(names)}.")
        labels = np.array(parquet.read_table(file, columns=found[:1]).column(0).to_pylist())
        inputs = load_data(file, images=Pixels()).inputs
        if isinstance(inputs, ImageList):
            return RawSplit(decoded(inputs, lambda index: f"image {index} of {file}"), labels)
        return RawSplit(inputs.numpy(), labels)


def _read_folders(folder: Path) -> tuple[RawSplit, RawSplit]:
    train, test = (_image_files(folder / split) for split in _SPLITS)
    return cached([*train, *test], lambda: (_images(train), _images(test)))


def _image_files(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.glob("*/*") if file.suffix.lower() in IMAGES)
    if not files:
        raise FileNotFoundError(f"{folder} has no images in folders named by class, such as {folder}/CLASS/1.png.")
    return files


def _images(files: Sequence[Path]) -> RawSplit:
    stored = ImageList(files, Pixels(), str(files[0].parent.parent))
    return RawSplit(decoded(stored, files.__getitem__), np.array([file.parent.name for file in files]))


def _read_npz(file: Path) -> tuple[RawSplit, RawSplit]:
    with reading(file, "a .npz file"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        arrays = dict(stored)
    train, test = (
        RawSplit(_channels_first(_array(arrays, f"x_{split}", file)), _flat(_array(arrays, f"y_{split}", file)))
        for split in _SPLITS
    )
    return train, test


def _array(arrays: dict[str, Array], key: str, file: Path) -> Array:
    if key not in arrays:
        raise ValueError(f"{file} has no array {key}; it has {', '.join(arrays)}.")
    return arrays[key]


def _channels_first(inputs: Array) -> Array:
    """Bring images, with the channels last, first or left out, into one shape; leave the rest as it is."""
    if inputs.dtype != np.uint8 or inputs.ndim not in {3, 4}:
        return inputs
    if inputs.ndim == 3:
        return inputs[:, None]
    return inputs.transpose(0, 3, 1, 2) if inputs.shape[3] in {1, 3} else inputs


def _flat(labels: Array) -> Array:
    """Drop the second dimension of a column of labels."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
