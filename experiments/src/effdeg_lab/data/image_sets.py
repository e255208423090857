"""CIFAR-10, CIFAR-10N, MNIST and Tiny-ImageNet as published, and MNIST–CIFAR, made from two of them."""

import codecs
import gzip
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from effdeg_lab.data.corruptions import find_corrupted
from effdeg_lab.data.image_files import store_tables
from effdeg_lab.data.images import Crop, Images
from effdeg_lab.data.labeled import Labeled, make_labeled
from effdeg_lab.data.layouts import (
    Array,
    Arrays,
    Scale,
    explain_errors,
    find_parquet,
    find_shards,
    read_all,
    read_tables,
)

LoadLabeled = Callable[[], Labeled]
Reader = Callable[[Path], Arrays]
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
    load_images, load_corrupted = _find_cifar10(folder), find_corrupted(folder)
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

    return lambda: _decode_by_path("cue conflict", files, "images of conflicting cues", get_label, pixels or 0)


def _decode_by_path(
    name: str, files: list[Path], what: str, get_label: Callable[[str], int | None], pixels: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return a test set of the images in Parquet shards whose path has a label; none without such images."""
    if not files:
        return {}
    stored = store_tables(files, what, labeled=False)
    labels = list(map(get_label, stored.list_names()))
    chosen = [place for place, label in enumerate(labels) if label is not None]
    images = stored[np.array(chosen, dtype=np.int64)].relabel([label for label in labels if label is not None])
    return {name: Images(images, Crop(pixels), name).decode_once()} if chosen else {}


def _find_cifar10(folder: Path) -> LoadLabeled:
    """Find CIFAR-10 in the data folder: in ``cifar10``, the folders of its archives, or the folder itself."""
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    places = [folder / place for place in ("cifar10", "cifar-10-batches-py", "cifar-10-batches-bin", "")]
    scale = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return _find("cifar10", places, names, {"": _read_pickle, ".bin": _read_binary}, scale)


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


def find_mnist(folder: Path, _: int | None = None) -> LoadLabeled:
    """Find MNIST in the data folder: in ``mnist``, ``MNIST/raw`` (torchvision's) or the folder itself."""
    names = ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"]
    places = [folder / place for place in ("mnist", "MNIST/raw", "")]
    return _find("mnist", places, names, {"": _read_mnist, ".gz": _read_mnist}, ((0.1307,), (0.3081,)))


def find_tiny_imagenet(folder: Path, _: int | None = None) -> LoadLabeled:
    """Find Tiny-ImageNet, 100,000 images of 64 pixels in 200 classes, tested on its 10,000 validation images.

    It is in ``tiny-imagenet`` or ``tiny``, as on the Hugging Face hub: ``train-*.parquet``, and ``val-*.parquet`` or
    ``valid-*.parquet``. Pixels are scaled to [-1, 1], as by ViT's authors. Further test images of its classes, from
    ImageNet's validation set, may be in ``val5``.
    """
    places = [folder / name for name in ("tiny-imagenet", "tiny")]
    place = next((each for each in places if any(each.glob("train-*.parquet"))), None)
    if place is None:
        raise FileNotFoundError(
            f"tiny-imagenet was not found: expected train-*.parquet and val-*.parquet in {places[0]} or {places[1]}."
        )
    train = find_shards(place, "train")
    test = find_shards(place, "valid" if any(place.glob("valid-*.parquet")) else "val")
    load_further = _find_val5(folder / "val5", place / "classes.tsv")

    def load() -> Labeled:
        scale = (0.5,) * 3, (0.5,) * 3
        data = make_labeled(f"tiny-imagenet in {place}", read_tables(train), read_tables(test), scale)
        return replace(data.shuffle(), shifted=load_further(data.train_inputs.shape[-1]))

    return load


def _find_val5(folder: Path, names: Path) -> Callable[[int], dict[str, tuple[Tensor, Tensor]]]:
    """Find ``val-*.parquet`` with images of ImageNet, of which those of Tiny-ImageNet's classes are used.

    The ``path`` of an image is ``WNID/FILE``. Each line of ``names``, a file in Tiny-ImageNet's folder, has the number
    of a class, a tab and its WordNet id. Without the folder, nothing is loaded.
    """
    files = find_shards(folder, "val") if folder.is_dir() else []
    if files and not names.is_file():
        raise FileNotFoundError(f"{names} is missing: {folder} needs the number and the WordNet id of each class.")

    def load(pixels: int) -> dict[str, tuple[Tensor, Tensor]]:
        if not files:
            return {}
        with explain_errors(names, "a table of numbers and WordNet ids"):
            rows = [line.split("\t") for line in names.read_text(encoding="utf-8").splitlines()]
            numbers = {wnid: int(number) for number, wnid, *_ in rows}
        what = "a Parquet file of ImageNet's validation images"
        images = _decode_by_path("val5", files, what, lambda path: numbers.get(path.split("/")[0]), pixels)
        if not images:
            raise ValueError(f"{folder} has no images of the classes in {names}: expected paths {rows[0][1]}/FILE, ….")
        return images

    return load


def find_mnist_cifar(folder: Path, _: int | None = None) -> LoadLabeled:
    """Find the parts of MNIST–CIFAR (Shah et al., 2020): a digit zero above an automobile, or a one above a truck.

    The paper does not say how it combines them, but its accuracies are multiples of 1/2000. Here all automobiles and
    trucks of CIFAR-10 are used, shuffled within their class, below digits in MNIST's order (the first 20 test zeros
    twice), so the halves are independent given the class. In the further tests, one half is replaced by that of a
    random test image of any class.
    """
    load_mnist, load_cifar10 = find_mnist(folder), _find_cifar10(folder)

    def load() -> Labeled:
        mnist, cifar = load_mnist(), load_cifar10()
        train = _stack(1, mnist.train_inputs, mnist.train_labels, cifar.train_inputs, cifar.train_labels)
        test = _stack(2, mnist.test_inputs, mnist.test_labels, cifar.test_inputs, cifar.test_labels)
        data = make_labeled(f"mnist-cifar in {folder}", train, test)
        upper, lower = data.test_inputs.chunk(2, dim=2)
        further = {
            "MNIST randomized": torch.cat([_shuffle(upper, seed=3), lower], dim=2),
            "CIFAR randomized": torch.cat([upper, _shuffle(lower, seed=4)], dim=2),
        }
        return replace(data, further_tests=further)

    return load


def _find(name: str, places: list[Path], names: list[str], readers: dict[str, Reader], scale: Scale) -> LoadLabeled:
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


def _read_binary(file: Path) -> Arrays:
    with explain_errors(file, "a binary batch of CIFAR-10"):
        rows = np.fromfile(file, np.uint8).reshape(-1, 1 + 3 * 32 * 32)  # a label and its image
        return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _read_pickle(file: Path) -> Arrays:
    with explain_errors(file, "a pickled batch of CIFAR-10"):
        batch = _ArrayUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        return batch[b"data"].reshape(-1, 3, 32, 32), np.array(batch[b"labels"])


def _read_human_labels(file: Path) -> dict[str, Tensor]:
    """Read the label sets of CIFAR-10N by their published keys."""
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


def _read_mnist(file: Path) -> Arrays:
    labels = file.with_name(file.name.replace("images-idx3", "labels-idx1"))
    return _read_idx(file, dimensions=3)[:, None], _read_idx(labels, dimensions=1)


def _read_idx(file: Path, dimensions: int) -> Array:
    """Read bytes after a header of big-endian integers: the type of the array, then its shape."""
    with explain_errors(file, "an idx file of MNIST"):
        stored = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        _, *shape = np.frombuffer(stored, ">u4", count=1 + dimensions)
        return np.frombuffer(stored, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()  # to be writable


def _stack(seed: int, mnist: Tensor, mnist_labels: Tensor, cifar: Tensor, cifar_labels: Tensor) -> Arrays:
    generator = torch.Generator().manual_seed(seed)
    images, labels = [], []
    for label, (digit, picture) in enumerate(((0, 1), (1, 9))):  # zero and automobile, one and truck
        digits, pictures = mnist[mnist_labels == digit], cifar[cifar_labels == picture]
        pictures = pictures[torch.randperm(len(pictures), generator=generator)]
        digits = digits[torch.arange(len(pictures)) % len(digits)]  # if there are too few, the first are used again
        images.append(torch.cat([pad(digits, (2,) * 4).expand(-1, 3, -1, -1), pictures], dim=2))
        labels.append(torch.full((len(pictures),), label))
    order = torch.randperm(sum(map(len, labels)), generator=generator)
    return torch.cat(images)[order].numpy(), torch.cat(labels)[order].numpy()


def _shuffle(images: Tensor, seed: int) -> Tensor:
    """Replace every image by the next in a random cycle, so that each is used once and none stays."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return images[order.roll(1)[order.argsort()]]
