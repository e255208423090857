"""The file layouts in which users may provide their own labeled data sets.

A ``find_…`` function checks that the files of a data set exist, and returns the function that reads them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from effdeg.io import ImageList, ImageOptions, load_data
from effdeg_lab.data.cache import Buffer, Notes, identify_files, keep_bytes

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array]  # inputs and labels as they were read, not yet checked
Scale = tuple[tuple[float, ...], tuple[float, ...]]  # the mean and the standard deviation of pixels
LAYOUTS = (
    "a folder with train-*.parquet and test-*.parquet, a folder with train/CLASS/*.png and test/CLASS/*.png, or a .npz "
    "file with x_train, y_train, x_test and y_test"
)
Read = Callable[[], tuple[Arrays, Arrays]]
_LABELS = ("label", "labels", "label_ids", "target", "targets", "y")


def find_layout(path: Path) -> Read:
    """Find a data set in a file or folder, in any known layout."""
    if path.suffix == ".npz":
        return lambda: _read_arrays(path)
    if (read := find_parquet(path)) is not None:
        return read
    if not all(any(path.glob(f"{split}/*/*")) for split in ("train", "test")):
        raise ValueError(f"{path} is in no known layout: expected {LAYOUTS}.")
    return lambda: (_read_class_folders(path / "train"), _read_class_folders(path / "test"))


def find_parquet(folder: Path) -> Read | None:
    """Find ``train-*.parquet`` and ``test-*.parquet``, as on the Hugging Face hub; None if there is neither."""
    if not any(any(folder.glob(f"{split}-*.parquet")) for split in ("train", "test")):
        return None
    train, test = find_shards(folder, "train"), find_shards(folder, "test")
    return lambda: (read_tables(train), read_tables(test))


def find_shards(folder: Path, name: str) -> list[Path]:
    """Find ``NAME-*.parquet``, and check that none is missing if names are like ``train-00000-of-00003.parquet``."""
    files = sorted(folder.glob(f"{name}-*.parquet"))
    parts = re.search(r"-of-0*(\d+)\.parquet$", files[0].name) if files else None
    expected = int(parts[1]) if parts else 1
    if len(files) < expected:
        raise FileNotFoundError(f"{folder} is incomplete: found {len(files)} of {expected} {name}-*.parquet.")
    return files


@contextmanager
def explain_errors(file: Path, what: str) -> Iterator[None]:
    """Add the name of a file, and what it should be, to any error while it is read."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file} cannot be read as {what}: {error}") from error


def read_all(read: Callable[[Path], Arrays], files: Sequence[Path]) -> Arrays:
    """Read the files of a split, and concatenate them."""
    inputs, labels = zip(*map(read, files), strict=True)
    return np.concatenate(inputs), np.concatenate(labels)


def read_tables(files: Sequence[Path]) -> Arrays:
    """Read Parquet files through the cache; without it, if it cannot be written to."""

    def make(notes: Notes) -> Iterator[Buffer]:
        notes["inputs"], notes["labels"] = read_all(_read_table, files)
        yield b""

    size = sum(file.stat().st_size for file in files)
    try:
        _, notes = keep_bytes(["decoded", identify_files(files)], f"the examples of {files[0].parent}", make, size=size)
    except OSError:
        return read_all(_read_table, files)
    return notes["inputs"], notes["labels"]


def _read_table(file: Path) -> Arrays:
    with explain_errors(file, "a Parquet file of examples"):
        names = pq.read_schema(file).names
        if (column := next((name for name in names if name in _LABELS), None)) is None:
            raise ValueError(f"there is no column of labels ({', '.join(_LABELS)}) among {', '.join(names)}.")
        labels = np.array(pq.read_table(file, columns=[column]).column(0).to_pylist())
        inputs = load_data(file, images=_Pixels()).inputs
        return _arrange(_decode(inputs) if isinstance(inputs, ImageList) else inputs.numpy(), labels)


def _read_class_folders(folder: Path) -> Arrays:
    images = load_data(folder, images=_Pixels()).inputs
    for file in images.sources:
        if file.parent.parent != folder:
            raise ValueError(f"{file} is not in a class folder; expected {folder}/CLASS/*.png.")
    return _arrange(_decode(images), np.array([file.parent.name for file in images.sources]))


class _Pixels(ImageOptions):
    """Leaves images as Pillow returns them: bytes, channels last."""

    def __call__(self, image: Any) -> Any:
        return np.asarray(image)


def _decode(images: ImageList) -> Array:
    with ThreadPoolExecutor() as threads:  # Pillow releases the GIL
        decoded = list(threads.map(images.__getitem__, range(len(images))))
    for index, image in enumerate(decoded):
        if image.shape != decoded[0].shape:
            raise ValueError(f"{images.describe(index)} has the shape {image.shape}; expected {decoded[0].shape}.")
    return np.stack(decoded)


def _read_arrays(file: Path) -> tuple[Arrays, Arrays]:
    with explain_errors(file, "a .npz file"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        if missing := {"x_train", "y_train", "x_test", "y_test"} - {*stored}:
            raise ValueError(f"there is no array {', '.join(sorted(missing))} among {', '.join(stored)}.")
        train, test = (_arrange(stored[f"x_{split}"], stored[f"y_{split}"]) for split in ("train", "test"))
        return train, test


def _arrange(inputs: Array, labels: Array) -> Arrays:
    """Bring images with channels last or without channels, and labels in a column, into the expected shapes."""
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        inputs = inputs[..., None]
    if inputs.ndim == 4 and inputs.shape[3] in {1, 3}:
        inputs = np.moveaxis(inputs, 3, 1)
    return inputs, labels[:, 0] if labels.shape[1:] == (1,) else labels
