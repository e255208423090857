"""CIFAR-10, with people's labels (CIFAR-10N), and with corrupted images and conflicting cues to test on."""

import codecs
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from effdeg_lab.data.corruptions import find_corrupted
from effdeg_lab.data.images import decode_by_path
from effdeg_lab.data.labeled import Labeled, find_labeled
from effdeg_lab.data.sources import HUB, Array, Arrays, DataSet, Size, explain_errors, find_shards

LoadLabeled = Callable[[], Labeled]
CIFAR10N = {
    "cifar10n-aggregate": "aggre_label",
    "cifar10n-random1": "random_label1",
    "cifar10n-random2": "random_label2",
    "cifar10n-random3": "random_label3",
    "cifar10n-worst": "worse_label",
}
"""The label sets of CIFAR-10N, by their keys in its authors' file."""
CUE_CONFLICT = {"airplane": 0, "car": 1, "bird": 2, "cat": 3, "dog": 5, "boat": 8, "truck": 9}
"""The classes of CIFAR-10 for which there are images of conflicting cues; boats count as ships."""


def find_cifar10(folder: Path, pixels: int | None = None) -> LoadLabeled:
    """Find CIFAR-10 in the data folder, and further test images if there are any.

    These are corrupted, or for larger images have the shape and the texture of different classes.
    """
    load_images, load_corrupted = find_images(folder), find_corrupted(folder)
    load_shapes = _find_cue_conflict(folder / "shapes", pixels)
    return lambda: replace(load_images(), corrupted=load_corrupted(), shifted=load_shapes())


def _find_cue_conflict(place: Path, pixels: int | None) -> Callable[[], dict[str, tuple[Tensor, Tensor]]]:
    """Find ``cue-conflict-*.parquet`` (Geirhos et al., 2019); without that folder, or ``pixels``, nothing is loaded.

    Each image has its ``path``, ``SHAPE/SHAPE1-TEXTURE2.png``. Images are labeled by shape. Images whose shape is not a
    class of CIFAR-10, or whose texture has the same class, are left out.
    """
    files = find_shards(place, "cue-conflict") if pixels and place.is_dir() else []

    def get_label(path: str) -> int | None:
        shape, name = path.split("/")
        texture = Path(name.split("-")[1]).stem.rstrip("0123456789")
        return CUE_CONFLICT.get(shape) if shape != texture else None

    return lambda: decode_by_path("cue conflict", files, "images of conflicting cues", get_label, pixels or 0)


def find_images(folder: Path) -> LoadLabeled:
    """Find CIFAR-10 in the data folder: in ``cifar10``, the folders of its archives, or the folder itself."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    places = [folder / place for place in ("cifar10", "cifar-10-batches-py", "cifar-10-batches-bin", "")]
    scale = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return find_labeled("cifar10", places, names, {"": _read_pickle, ".bin": _read_binary}, scale)


def find_cifar10n(name: str, folder: Path, _: int | None = None) -> LoadLabeled:
    """Find CIFAR-10 and a set of human labels for its training images (CIFAR-10N; Wei et al., 2022).

    The labels are in ``cifar10n`` or the folder itself: in ``CIFAR-10_human.pt``, as published, or in ``cifar10n.npz``,
    with arrays named like the label sets. The test labels are CIFAR-10's own.
    """
    load_cifar10 = find_cifar10(folder)
    files = [folder / place / file for place in ("cifar10n", "") for file in ("CIFAR-10_human.pt", "cifar10n.npz")]
    file = next((each for each in files if each.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{name} was not found: expected one of {', '.join(map(str, files))}.")

    def load() -> Labeled:
        data, labels = load_cifar10(), _read_human_labels(file)
        clean, given = labels["clean_label"], labels[CIFAR10N[name]]
        if not torch.equal(clean, data.train_labels):
            raise ValueError(f"{file}: its clean labels differ from those of the training images in {folder}.")
        if given.shape != clean.shape or not bool(((given >= 0) & (given < data.classes)).all()):
            raise ValueError(f"{file}: the labels of {name} are not {len(clean)} numbers from 0 to {data.classes - 1}.")
        return replace(data, train_labels=given, true_labels=data.train_labels)

    return load


def _read_binary(file: Path) -> Arrays:
    with explain_errors(file, "a binary batch of CIFAR-10"):
        rows = np.fromfile(file, np.uint8).reshape(-1, 1 + 3 * 32 * 32)  # a label and its image
        return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _read_pickle(file: Path) -> Arrays:
    with explain_errors(file, "a pickled batch of CIFAR-10"):
        batch = _ArrayUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        return batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[b"labels"])


def _read_human_labels(file: Path) -> dict[str, Tensor]:
    keys = {"clean": "clean_label"} | {name.removeprefix("cifar10n-"): key for name, key in CIFAR10N.items()}
    with explain_errors(file, "the labels of CIFAR-10N"):
        if file.suffix == ".npz":
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                arrays = {key: stored[name] for name, key in keys.items()}
        else:
            arrays = _load_arrays(file)
        return {key: torch.from_numpy(arrays[key].astype(np.int64)) for key in keys.values()}


def _load_arrays(file: Path) -> dict[str, Array]:
    """Load a dictionary of integer arrays that ``torch.save`` wrote, without running code from the file."""
    make: Any = np.zeros(0).__reduce__()[0]
    numbers = [type(np.dtype(f"{kind}{size}")) for kind in "iu" for size in (1, 2, 4, 8)]
    # Files name the function that makes arrays, which numpy 2 has moved.
    places = [(make, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    try:
        with torch.serialization.safe_globals([*places, np.ndarray, np.dtype, codecs.encode, *numbers]):
            loaded: dict[str, Array] = torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:  # torch's message advises loading it anyway
        raise ValueError("it holds something other than integer arrays.") from error
    return loaded


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays of numbers without running code from the file."""

    def find_class(self, module: str, name: str) -> Any:
        package = module.partition(".")[0]
        if f"{package}.{name}" not in {"numpy._reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode"}:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed in it.")
        return super().find_class(module, name)


CIFAR10 = (
    "https://www.cs.toronto.edu/~kriz/cifar.html (unpacked in DIR), or "
    f"uoft-cs/cifar10 {HUB} (its files in DIR/cifar10)"
)
_CIFAR10N = f"{CIFAR10}; people's labels in CIFAR-10_human.pt of https://github.com/UCSC-REAL/cifar-10-100n"
_SIZE = Size(50_000, 10_000, (3, 32, 32), 10)
DATA_SETS = {
    "cifar10": DataSet(find_cifar10, CIFAR10, _SIZE),
    **{name: DataSet(partial(find_cifar10n, name), _CIFAR10N, _SIZE) for name in CIFAR10N},
}
