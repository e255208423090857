"""CIFAR-10, from the Hugging Face hub's Parquet files or the original batches, pickled or binary."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from effdeg.lab.data.labelled import Known, Labelled, RawSplit, labelled
from effdeg.lab.data.layouts import is_parquet, read_parquet
from effdeg.lab.data.reading import reading

KNOWN = Known(shape=(3, 32, 32), classes=10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
_PLACES = ("cifar10", "cifar-10-batches-py", "cifar-10-batches-bin", "")
_ROW = 1 + 3 * 32 * 32


def load_cifar10(folder: Path) -> Labelled:
    """Load CIFAR-10 from the data folder: from ``cifar10``, the folders of its archives, or the folder itself."""
    places = [folder / place for place in _PLACES]
    for place in places:
        if is_parquet(place):
            return labelled(f"cifar10 in {place}", *read_parquet(place), KNOWN)
        for suffix, read in (("", _pickled), (".bin", _binary)):
            if (place / f"data_batch_1{suffix}").is_file():
                parts = [read(place / f"data_batch_{number}{suffix}") for number in range(1, 6)]
                train = RawSplit(*(np.concatenate(each) for each in zip(*parts, strict=True)))
                return labelled(f"cifar10 in {place}", train, read(place / f"test_batch{suffix}"), KNOWN)
    raise FileNotFoundError(
        f"cifar10 was not found: neither train-*.parquet and test-*.parquet (as on the Hugging Face hub), nor "
        f"data_batch_1 to 5 and test_batch (pickled, or binary with .bin) are in {', '.join(map(str, places[:-1]))}, "
        f"or {places[-1]} itself."
    )


def _binary(file: Path) -> RawSplit:
    with reading(file, "a binary batch of CIFAR-10"):
        stored = np.fromfile(file, np.uint8)
        if stored.size == 0 or stored.size % _ROW:
            raise ValueError(f"{stored.size} bytes are no multiple of {_ROW}, a label and its image.")
        rows = stored.reshape(-1, _ROW)
        return RawSplit(rows[:, 1:].reshape(-1, *KNOWN.shape), rows[:, 0])


def _pickled(file: Path) -> RawSplit:
    with reading(file, "a pickled batch of CIFAR-10"):
        batch = _ArraysOnly(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
            raise ValueError("it does not hold data and labels.")
        return RawSplit(batch[b"data"].reshape(-1, *KNOWN.shape), np.array(batch[b"labels"]))


def _encoded(text: str, _: str) -> bytes:
    return text.encode("latin1")


# All that an array needs to be unpickled: numpy's own function, whose place is another in every numpy, and bytes as
# Python 3 writes them for Python 2.
_ALLOWED: dict[str, Any] = {
    "_reconstruct": np.empty(0).__reduce__()[0],
    "ndarray": np.ndarray,
    "dtype": np.dtype,
    "encode": _encoded,
}


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays of numbers, and runs no code that a file may bring along."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what arrays are made with."""
        if name not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it.")
        return _ALLOWED[name]
