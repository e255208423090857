"""Labeled data sets in memory, from files of known names or in the layouts in which users may provide their own.

A ``find_…`` function checks that the files of a data set exist, and returns the function that reads them.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from effdeg.io import ImageList, ImageOptions, load_data
from effdeg_lab.data.cache import Buffer, Notes, identify_files, keep_bytes
from effdeg_lab.data.shifts import TestSet
from effdeg_lab.data.sources import Array, Arrays, Scale, explain_errors, find_shards

Read = Callable[[], tuple[Arrays, Arrays]]
LAYOUTS = (
    "a folder with train-*.parquet and test-*.parquet, a folder with train/CLASS/*.png and test/CLASS/*.png, or a .npz "
    "file with x_train, y_train, x_test and y_test"
)
_LABELS = ("label", "labels", "label_ids", "target", "targets", "y")


@dataclass(frozen=True, eq=False)
class Labeled:
    """A data set for classification, with training and test examples."""

    train_inputs: Tensor  # images as bytes, N × channels × height × width, or features, N × D floats
    train_labels: Tensor  # from 0
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    mean: tuple[float, ...] = ()  # of pixels in [0, 1], by channel; empty for features
    std: tuple[float, ...] = ()
    further_tests: Mapping[str, Tensor] = field(default_factory=dict)  # modified test inputs, with the same labels
    true_labels: Tensor | None = None  # of the training examples, if some of train_labels are known to be wrong
    corrupted: "Corrupted | None" = None
    # Further test sets, with images of the same classes in another style: images as bytes with their labels, or images
    # in files. Like corrupted ones, they do not affect training.
    shifted: Mapping[str, tuple[Tensor, Tensor] | TestSet] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Return a short hash of all examples and labels, in order, except corrupted and shifted ones."""
        digest = hashlib.sha256()
        tensors = (self.train_inputs, self.train_labels, self.test_inputs, self.test_labels)
        truth = () if self.true_labels is None else (self.true_labels,)
        for tensor in (*tensors, *self.further_tests.values(), *truth):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.cpu().contiguous().numpy().data)  # no copy, which may not fit into memory
        return digest.hexdigest()[:16]

    def shuffle(self) -> "Labeled":
        """Return the data set with its training examples in a fixed random order."""
        order = torch.randperm(len(self.train_labels), generator=torch.Generator().manual_seed(0))
        truth = None if self.true_labels is None else self.true_labels[order]
        return replace(
            self, train_inputs=self.train_inputs[order], train_labels=self.train_labels[order], true_labels=truth
        )


@dataclass(frozen=True, eq=False)
class Corrupted:
    """Corrupted test images, for further tests of a trained network; they do not affect training."""

    severity: int  # from 1 to 5
    images: Mapping[str, tuple[Tensor, Tensor]]  # images as bytes and their labels, by the name of the corruption


def make_labeled(name: object, train: Arrays, test: Arrays, scale: Scale | None = None) -> Labeled:
    """Check a data set, whose name is for errors, and number its classes: the sorted labels of training examples."""
    _check(f"{name}: the training", *train)
    _check(f"{name}: the test", *test)
    classes, tensors = np.unique(train[1]), list[Tensor]()
    if len(classes) < 2:
        raise ValueError(f"{name}: all training examples are of one class, {classes[0]}; expected at least two.")
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(f"{name}: test inputs of shape {test[0].shape} do not match training inputs {train[0].shape}.")
    for inputs, labels in (train, test):
        places = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
        if (wrong := np.flatnonzero(classes[places] != labels)).size:
            raise ValueError(f"{name}: the test label {labels[wrong[0]]} (example {wrong[0]}) is not in training.")
        kept = inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32)
        tensors += [torch.from_numpy(np.ascontiguousarray(kept)), torch.from_numpy(places.astype(np.int64))]
    x, y, test_x, test_y = tensors
    return Labeled(x, y, test_x, test_y, len(classes), *(scale or _measure_pixels(train[0])))


def _check(what: str, inputs: Array, labels: Array) -> None:
    is_image = inputs.dtype == np.uint8 and inputs.ndim == 4 and inputs.shape[1] in {1, 3}
    is_known = is_image or (inputs.dtype.kind == "f" and inputs.ndim == 2 and bool(np.isfinite(inputs).all()))
    if not is_known or not labels.size or labels.shape != inputs.shape[:1] or labels.dtype.kind not in "biuU":
        raise ValueError(
            f"{what} inputs are {inputs.dtype} of the shape {inputs.shape}, their labels {labels.dtype} of the shape "
            f"{labels.shape}; expected N images as bytes (uint8), height × width with or without 1 or 3 channels, or "
            "N × D features as finite floats, and N labels, integers or text."
        )


def _measure_pixels(inputs: Array) -> Scale:
    """Return the mean and the standard deviation of pixels in [0, 1], from counts of the 256 values."""
    shades, means, stds = np.arange(256) / 255, [], []
    for channel in range(inputs.shape[1]) if inputs.dtype == np.uint8 else ():
        counts = np.bincount(inputs[:, channel].ravel(), minlength=256)
        means.append(float(np.average(shades, weights=counts)))
        stds.append(float(np.sqrt(np.average((shades - means[-1]) ** 2, weights=counts))))
    return tuple(means), tuple(std if std > 1e-6 else 1.0 for std in stds)  # a constant channel is left unscaled


def find_labeled(
    name: str, places: list[Path], names: list[str], readers: Mapping[str, Callable[[Path], Arrays]], scale: Scale
) -> Callable[[], Labeled]:
    """Find files by name, the test examples last, with one of the readers' suffixes; or else Parquet files."""
    for place in places:
        for suffix, read in readers.items():
            *train, test = (place / f"{each}{suffix}" for each in names)
            if train[0].is_file():
                if missing := [str(file) for file in (*train, test) if not file.is_file() or not file.stat().st_size]:
                    raise FileNotFoundError(f"{name} is incomplete: {', '.join(missing)} is missing or empty.")
                return lambda: make_labeled(f"{name} in {place}", read_all(read, train), read(test), scale)
        if (parquet := find_parquet(place)) is not None:
            return lambda: make_labeled(f"{name} in {place}", *parquet(), scale)
    raise FileNotFoundError(
        f"{name} was not found: expected {', '.join(names)} (each perhaps with {[*readers][-1]}), or train-*.parquet "
        f"and test-*.parquet (as on the Hugging Face hub) in {', '.join(map(str, places[:-1]))} or {places[-1]} itself."
    )


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


def read_all(read: Callable[[Path], Arrays], files: Sequence[Path]) -> Arrays:
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
