"""MNIST, from its four idx files."""

import gzip
import math
from pathlib import Path

import numpy as np

from effdeg.lab.data.labelled import Array, Known, Labelled, RawSplit, labelled
from effdeg.lab.data.reading import reading

KNOWN = Known(shape=(1, 28, 28), classes=10, mean=(0.1307,), std=(0.3081,))
_PLACES = ("mnist", "MNIST/raw", "")


def load_mnist(folder: Path) -> Labelled:
    """Load MNIST from the data folder: from ``mnist``, ``MNIST/raw`` (torchvision's) or the folder itself."""
    places = [folder / place for place in _PLACES]
    for place in places:
        if _file(place, "train-images-idx3-ubyte").is_file():
            return labelled(f"mnist in {place}", _split(place, "train"), _split(place, "t10k"), KNOWN)
    raise FileNotFoundError(
        f"mnist was not found: train-images-idx3-ubyte, or the same with .gz, is neither in {places[0]}, nor in "
        f"{places[1]}, nor in {places[2]} itself."
    )


def _split(place: Path, name: str) -> RawSplit:
    images = _idx(_file(place, f"{name}-images-idx3-ubyte"), dimensions=3)
    return RawSplit(images[:, None], _idx(_file(place, f"{name}-labels-idx1-ubyte"), dimensions=1))


def _file(place: Path, name: str) -> Path:
    """Return the file as it is, or else gzipped."""
    return place / name if (place / name).is_file() else place / f"{name}.gz"


def _idx(file: Path, *, dimensions: int) -> Array:
    """Read bytes behind a header of big-endian numbers: the kind of array, then its shape."""
    with reading(file, f"MNIST's idx file of {'images' if dimensions == 3 else 'labels'}"):
        stored = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        kind, *shape = map(int, np.frombuffer(stored, ">u4", count=1 + dimensions))
        if kind != (unsigned_bytes := 0x800) + dimensions:
            raise ValueError(f"it begins with {kind}, where {unsigned_bytes + dimensions} is expected.")
        contents = np.frombuffer(stored, np.uint8, offset=4 + 4 * dimensions)
        if contents.size != math.prod(shape):
            raise ValueError(f"it holds {contents.size} bytes, where {shape} are announced.")
        return contents.reshape(shape).copy()  # what lies in a file's bytes is not writable
