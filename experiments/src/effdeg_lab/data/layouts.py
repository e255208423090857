"""The layouts in which people have data sets of their own.

A ``find_…`` function checks that the files of a data set are there, and returns the function that reads them.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from effdeg.io import ImageList, ImageOptions, load_data, write_atomically
from effdeg_lab.data.labelled import Array, Split

LAYOUTS = (
    "a folder with train-*.parquet and test-*.parquet, a folder with train/CLASS/*.png and test/CLASS/*.png, or a .npz "
    "file with x_train, y_train, x_test and y_test"
)
Read = Callable[[], tuple[Split, Split]]
_LABELS = ("label", "labels", "label_ids", "target", "targets", "y")


def find_layout(path: Path) -> Read:
    """Find a data set in a file or folder, in whichever layout it is."""
    if path.suffix == ".npz":
        return lambda: _read_arrays(path)
    if (read := find_parquet(path)) is not None:
        return read
    if not all(any(path.glob(f"{split}/*/*")) for split in ("train", "test")):
        raise ValueError(f"{path} is in no known layout: expected {LAYOUTS}.")
    return lambda: (_read_class_folders(path / "train"), _read_class_folders(path / "test"))


def find_parquet(folder: Path) -> Read | None:
    """Find ``train-*.parquet`` and ``test-*.parquet``, as on the Hugging Face hub; None if there is neither."""
    train, test = (sorted(folder.glob(f"{split}-*.parquet")) for split in ("train", "test"))
    if not train and not test:
        return None
    for split, files in (("train", train), ("test", test)):
        parts = re.search(r"-of-0*(\d+)\.parquet$", files[0].name) if files else None
        expected = int(parts[1]) if parts else 1
        if len(files) < expected:
            raise FileNotFoundError(f"{folder} is incomplete: {len(files)} of {expected} {split}-*.parquet are there.")
    return lambda: (_read_tables(train), _read_tables(test))


@contextmanager
def explain_errors(file: Path, what: str) -> Iterator[None]:
    """Name the file, and what it should be, in whatever goes wrong while it is read."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file} cannot be read as {what}: {error}") from error


def read_all(read: Callable[[Path], Split], files: Sequence[Path]) -> Split:
    """Read the parts of a split, and join them."""
    inputs, labels = zip(*map(read, files), strict=True)
    return np.concatenate(inputs), np.concatenate(labels)


def _read_tables(files: Sequence[Path]) -> Split:
    """Read Parquet files, or what was decoded from them before: kept in EFFDEG_CACHE or else ``~/.cache/effdeg``."""
    seen = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]
    kept = Path(os.environ.get("EFFDEG_CACHE") or "~/.cache/effdeg").expanduser() / "data" / f"{name}.npz"
    # Whatever is wrong with the file, from missing to damaged: it can be made again.
    with suppress(Exception), kept.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        return stored["inputs"], stored["labels"]
    inputs, labels = read_all(_read_table, files)
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez(content, inputs=inputs, labels=labels)
        write_atomically(kept, content.getvalue())
    return inputs, labels


def _read_table(file: Path) -> Split:
    with explain_errors(file, "a Parquet file of examples"):
        names = pq.read_schema(file).names
        if (column := next((name for name in names if name in _LABELS), None)) is None:
            raise ValueError(f"there is no column of labels ({', '.join(_LABELS)}) among {', '.join(names)}.")
        labels = np.array(pq.read_table(file, columns=[column]).column(0).to_pylist())
        inputs = load_data(file, images=_Pixels()).inputs
        return _arrange(_decode(inputs) if isinstance(inputs, ImageList) else inputs.numpy(), labels)


def _read_class_folders(folder: Path) -> Split:
    images = load_data(folder, images=_Pixels()).inputs
    for file in images.sources:
        if file.parent.parent != folder:
            raise ValueError(f"{file} is in no folder of a class; expected {folder}/CLASS/*.png.")
    return _arrange(_decode(images), np.array([file.parent.name for file in images.sources]))


class _Pixels(ImageOptions):
    """Leaves images as Pillow has them: bytes, channels last."""

    def __call__(self, image: Any) -> Any:
        return np.asarray(image)


def _decode(images: ImageList) -> Array:
    decoded = [images[index] for index in range(len(images))]
    for index, image in enumerate(decoded):
        if image.shape != decoded[0].shape:
            raise ValueError(f"{images.describe(index)} has the shape {image.shape}; expected {decoded[0].shape}.")
    return np.stack(decoded)


def _read_arrays(file: Path) -> tuple[Split, Split]:
    with explain_errors(file, "a .npz file"), file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        if missing := {"x_train", "y_train", "x_test", "y_test"} - {*stored}:
            raise ValueError(f"there is no array {', '.join(sorted(missing))} among {', '.join(stored)}.")
        train, test = (_arrange(stored[f"x_{split}"], stored[f"y_{split}"]) for split in ("train", "test"))
        return train, test


def _arrange(inputs: Array, labels: Array) -> Split:
    """Bring images with the channels last or left out, and labels in a column, into the shapes expected."""
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        inputs = inputs[..., None]
    if inputs.ndim == 4 and inputs.shape[3] in {1, 3}:
        inputs = np.moveaxis(inputs, 3, 1)
    return inputs, labels[:, 0] if labels.shape[1:] == (1,) else labels
