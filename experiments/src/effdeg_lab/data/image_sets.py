"""CIFAR-10 and MNIST, from the files that their authors published or the Hugging Face hub's Parquet files."""

import gzip
import io
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from effdeg_lab.data.labelled import Array, Known, Labelled, Split, make_labelled
from effdeg_lab.data.layouts import explain_errors, find_parquet

_CIFAR10 = Known(shape=(3, 32, 32), classes=10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
_MNIST = Known(shape=(1, 28, 28), classes=10, mean=(0.1307,), std=(0.3081,))
_ROW = 1 + math.prod(_CIFAR10.shape)  # of a binary batch: a label and its image


def find_cifar10(folder: Path) -> Callable[[], Labelled]:
    """Find CIFAR-10 in the data folder: in ``cifar10``, the folders of its archives, or the folder itself."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    readers = {"": partial(_read_batches, _read_pickle), ".bin": partial(_read_batches, _read_binary)}
    places = ("cifar10", "cifar-10-batches-py", "cifar-10-batches-bin", "")
    return _find("cifar10", _CIFAR10, [folder / place for place in places], names, readers)


def find_mnist(folder: Path) -> Callable[[], Labelled]:
    """Find MNIST in the data folder: in ``mnist``, ``MNIST/raw`` (torchvision's) or the folder itself."""
    names = [f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    places = [folder / place for place in ("mnist", "MNIST/raw", "")]
    return _find("mnist", _MNIST, places, names, {"": _read_idx_files, ".gz": _read_idx_files})


def _find(
    name: str,
    known: Known,
    places: Sequence[Path],
    names: Sequence[str],
    readers: Mapping[str, Callable[[Sequence[Path]], tuple[Split, Split]]],
) -> Callable[[], Labelled]:
    """Find the published files, by their names with one of the readers' suffixes, or Parquet files in their place."""
    for place in places:
        for suffix, read in readers.items():
            files = [place / f"{each}{suffix}" for each in names]
            if files[0].is_file():
                for file in files:
                    if not file.is_file():
                        raise FileNotFoundError(f"{file}, a file of {name}, is missing.")
                return lambda: make_labelled(f"{name} in {place}", *read(files), known)
        if (parquet := find_parquet(place)) is not None:
            return lambda: make_labelled(f"{name} in {place}", *parquet(), known)
    suffixes = " or ".join(suffix for suffix in readers if suffix)
    raise FileNotFoundError(
        f"{name} was not found: expected {', '.join(names)} (or the same with {suffixes}), or train-*.parquet and "
        f"test-*.parquet (as on the Hugging Face hub) in {', '.join(map(str, places[:-1]))} or {places[-1]} itself."
    )


def _read_batches(read: Callable[[Path], Split], files: Sequence[Path]) -> tuple[Split, Split]:
    inputs, labels = zip(*(read(file) for file in files[:-1]), strict=True)
    return (np.concatenate(inputs), np.concatenate(labels)), read(files[-1])


def _read_binary(file: Path) -> Split:
    with explain_errors(file, "a binary batch of CIFAR-10"):
        stored = np.fromfile(file, np.uint8)
        if stored.size == 0 or stored.size % _ROW:
            raise ValueError(f"{stored.size} bytes are no multiple of {_ROW}, a label and its image.")
        rows = stored.reshape(-1, _ROW)
        return rows[:, 1:].reshape(-1, *_CIFAR10.shape), rows[:, 0]


def _read_pickle(file: Path) -> Split:
    with explain_errors(file, "a pickled batch of CIFAR-10"):
        batch = _ArrayUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
            raise ValueError("it does not hold data and labels.")
        return batch[b"data"].reshape(-1, *_CIFAR10.shape), np.array(batch[b"labels"])


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays of numbers, and runs no code that a file may bring along."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what arrays are made with, and bytes as Python 3 writes them for Python 2."""
        allowed = {
            "_reconstruct": np.empty(0).__reduce__()[0],  # numpy's own; its module depends on numpy's version
            "ndarray": np.ndarray,
            "dtype": np.dtype,
            "encode": lambda text, _: text.encode("latin1"),
        }
        if name not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in it.")
        return allowed[name]


def _read_idx_files(files: Sequence[Path]) -> tuple[Split, Split]:
    images, labels, test_images, test_labels = map(_read_idx, files)
    return (images[:, None], labels), (test_images[:, None], test_labels)


def _read_idx(file: Path) -> Array:
    """Read bytes after a header of big-endian numbers: the kind of array, then its shape."""
    what, dimensions = ("images", 3) if "images" in file.name else ("labels", 1)
    with explain_errors(file, f"MNIST's idx file of {what}"):
        stored = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        kind, *shape = map(int, np.frombuffer(stored, ">u4", count=1 + dimensions))
        if kind != (expected := 0x800 + dimensions):  # 0x800: unsigned bytes
            raise ValueError(f"it begins with {kind}; expected {expected}.")
        contents = np.frombuffer(stored, np.uint8, offset=4 + 4 * dimensions)
        if contents.size != math.prod(shape):
            raise ValueError(f"it holds {contents.size} bytes; expected {shape}.")
        return contents.reshape(shape).copy()  # a view of the file's bytes is not writable
