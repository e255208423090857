"""The layouts in which people have data sets of their own, and the cache of their decoded images.

A data set is first found, which checks that its files are there and reads at most their headers, and then read: a
``find_…`` function returns the function that reads. Decoded images are kept between runs in ``EFFDEG_CACHE``, or else
in ``~/.cache/effdeg``.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from effdeg.io import ImageList, ImageOptions, load_data, write_atomically
from effdeg_lab.data.labelled import Array, Split

LAYOUTS = (
    "a folder with train-*.parquet and test-*.parquet, a folder with train/CLASS/*.png and test/CLASS/*.png, or a .npz "
    "file with x_train, y_train, x_test and y_test"
)
Read = Callable[[], tuple[Split, Split]]

_SPLITS = ("train", "test")
_LABELS = ("label", "labels", "label_ids", "target", "targets", "y")
_PART = re.compile(r"(.*)-(\d+)-of-(\d+)\.parquet")
_DECODED_AT_ONCE = 500
_CACHE_VERSION = 1
"""Goes up when the same files are decoded in another way."""


def find_layout(path: Path) -> Read:
    """Find a data set in a file or folder, in whichever layout it is."""
    if path.suffix == ".npz":
        with _open_arrays(path):
            return lambda: _read_arrays(path)
    if (read := find_parquet(path)) is not None:
        return read
    if not all((path / split).is_dir() for split in _SPLITS):
        raise ValueError(f"{path} is in no known layout: expected {LAYOUTS}.")
    for folder in (path / split for split in _SPLITS):
        if not any(folder.glob("*/*")):
            raise FileNotFoundError(f"{folder} has no images in folders named by class, such as {folder}/CLASS/1.png.")
    return lambda: _read_class_folders(path)


def find_parquet(folder: Path) -> Read | None:
    """Find ``train-*.parquet`` and ``test-*.parquet``, as on the Hugging Face hub; None if there is neither."""
    train, test = (sorted(folder.glob(f"{split}-*.parquet")) for split in _SPLITS)
    if not train and not test:
        return None
    for split, files in zip(_SPLITS, (train, test), strict=True):
        if not files:
            raise FileNotFoundError(f"{folder} has no {split}-*.parquet.")
        for file in files:
            _check_parts(file)
            _find_labels(file)
    return lambda: _cache([*train, *test], lambda: (_read_tables(train), _read_tables(test)))


@contextmanager
def explain_errors(file: Path, what: str) -> Iterator[None]:
    """Name the file, and what it should be, in whatever goes wrong while it is read."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}, {what}, is missing.")
    try:
        yield
    except Exception as error:
        if isinstance(error, ValueError | OSError) and str(file) in str(error):
            raise
        raise ValueError(f"{file} cannot be read as {what}; it may be damaged or cut short: {error}") from error


def _check_parts(file: Path) -> None:
    """Raise if a file says that there are more parts than are there."""
    if match := _PART.fullmatch(file.name):
        for number in range(int(match[3])):
            part = file.with_name(f"{match[1]}-{number:0{len(match[2])}}-of-{match[3]}.parquet")
            if not part.is_file():
                raise FileNotFoundError(f"{part}, one of {int(match[3])} parts, is missing.")


def _find_labels(file: Path) -> str:
    """Find the column of labels."""
    with explain_errors(file, "a Parquet file of examples"):
        names = pq.read_schema(file).names
        if not (found := [name for name in names if name in _LABELS]):
            raise ValueError(f"{file} has no column of labels ({', '.join(_LABELS)}); it has {', '.join(names)}.")
        return str(found[0])


def _read_tables(files: Sequence[Path]) -> Split:
    tables = [_read_table(file) for file in files]
    shapes = [inputs.shape[1:] for inputs, _ in tables]
    for file, shape in zip(files, shapes, strict=True):
        if shape != shapes[0]:
            raise ValueError(
                f"{file} holds examples of the shape {shape}, {files[0]} of the shape {shapes[0]}; expected one shape."
            )
    inputs, labels = (np.concatenate(each) for each in zip(*tables, strict=True))
    return inputs, labels


def _read_table(file: Path) -> Split:
    column = _find_labels(file)
    with explain_errors(file, "a Parquet file of examples"):
        labels = np.array(pq.read_table(file, columns=[column]).column(0).to_pylist())
        inputs = load_data(file, images=_Pixels()).inputs
        return _decode(inputs) if isinstance(inputs, ImageList) else inputs.numpy(), labels


def _read_class_folders(path: Path) -> tuple[Split, Split]:
    train, test = (load_data(path / split, images=_Pixels()).inputs for split in _SPLITS)

    def read(folder: Path, images: ImageList) -> Split:
        names = [file.relative_to(folder).parts for file in images.sources if isinstance(file, Path)]
        if misplaced := next((parts for parts in names if len(parts) == 1), None):
            raise ValueError(f"{folder / misplaced[0]} is in no folder of a class; expected {folder}/CLASS/*.png.")
        return _decode(images), np.array([parts[0] for parts in names])

    files = [*train.sources, *test.sources]
    return _cache(files, lambda: (read(path / "train", train), read(path / "test", test)))


class _Pixels(ImageOptions):
    """Leaves images as they are stored: bytes, channels × height × width."""

    def __call__(self, image: Any) -> Tensor:
        pixels = torch.from_numpy(np.array(image))
        return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)


def _decode(images: ImageList) -> Array:
    """Decode images of one size, on all cores."""
    shape = images[0].shape
    pixels = np.empty((len(images), *shape), np.uint8)

    def decode_some(start: int) -> None:
        indices = range(start, min(start + _DECODED_AT_ONCE, len(images)))
        decoded = [images[index] for index in indices]
        for index, image in zip(indices, decoded, strict=True):
            if image.shape != shape:
                given, expected = (" × ".join(map(str, each[1:])) for each in (image.shape, shape))
                raise ValueError(
                    f"{images.describe(index)} has {given} pixels, the first image {expected}; expected one size."
                )
        pixels[indices.start : indices.stop] = torch.stack(decoded).numpy()

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(decode_some, range(0, len(images), _DECODED_AT_ONCE)))
    return pixels


@contextmanager
def _open_arrays(file: Path) -> Iterator[Any]:
    with explain_errors(file, "a .npz file"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        for name in (f"{array}_{split}" for split in _SPLITS for array in "xy"):
            if name not in stored:
                raise ValueError(f"{file} has no array {name}; it has {', '.join(stored)}.")
        yield stored


def _read_arrays(file: Path) -> tuple[Split, Split]:
    with _open_arrays(file) as stored:
        train, test = ((stored[f"x_{split}"], stored[f"y_{split}"]) for split in _SPLITS)
    return _put_channels_first(*train), _put_channels_first(*test)


def _put_channels_first(inputs: Array, labels: Array) -> Split:
    """Bring images with the channels last or left out, and labels in a column, into the shapes expected."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        return inputs[:, None], labels
    if inputs.dtype == np.uint8 and inputs.ndim == 4 and inputs.shape[3] in {1, 3}:
        return inputs.transpose(0, 3, 1, 2), labels
    return inputs, labels


def _cache(files: Sequence[Path], read: Read) -> tuple[Split, Split]:
    """Return what was read from these files before, known by their names, sizes and times of change, or read them."""
    seen = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = hashlib.sha256(json.dumps([_CACHE_VERSION, seen]).encode()).hexdigest()[:32]
    try:
        kept = Path(os.environ.get("EFFDEG_CACHE") or Path.home() / ".cache" / "effdeg") / "data" / f"{name}.npz"
    except RuntimeError:  # there is no home
        return read()
    # Whatever is wrong with the file, from missing to damaged: it can be made again.
    with suppress(Exception), kept.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        train, test = ((stored[f"{split}_inputs"], stored[f"{split}_labels"]) for split in _SPLITS)
        return train, test
    train, test = read()
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez(content, train_inputs=train[0], train_labels=train[1], test_inputs=test[0], test_labels=test[1])
        write_atomically(kept, content.getvalue())
    return train, test
