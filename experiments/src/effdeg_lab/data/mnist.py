"""MNIST, and MNIST–CIFAR, made from it and CIFAR-10."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from effdeg_lab.data.cifar10 import CIFAR10, find_images
from effdeg_lab.data.labeled import Labeled, find_labeled, make_labeled
from effdeg_lab.data.sources import HUB, Array, Arrays, DataSet, Size, explain_errors


def find_mnist(folder: Path, _: int | None = None) -> Callable[[], Labeled]:
    """Find MNIST in the data folder: in ``mnist``, ``MNIST/raw`` (torchvision's) or the folder itself."""
    names = ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"]
    places = [folder / place for place in ("mnist", "MNIST/raw", "")]
    return find_labeled("mnist", places, names, {"": _read_mnist, ".gz": _read_mnist}, ((0.1307,), (0.3081,)))


def find_mnist_cifar(folder: Path, _: int | None = None) -> Callable[[], Labeled]:
    """Find the parts of MNIST–CIFAR (Shah et al., 2020): a digit zero above an automobile, or a one above a truck.

    The paper does not say how it combines them, but its accuracies are multiples of 1/2000. Here all automobiles and
    trucks of CIFAR-10 are used, shuffled within their class, below digits in MNIST's order (the first 20 test zeros
    twice), so the halves are independent given the class. In the further tests, one half is replaced by that of a
    random test image of any class.
    """
    load_mnist, load_cifar10 = find_mnist(folder), find_images(folder)

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


_MNIST = f"ylecun/mnist {HUB} (its files in DIR/mnist)"
DATA_SETS = {
    "mnist": DataSet(find_mnist, _MNIST, Size(60_000, 10_000, (1, 28, 28), 10)),
    "mnist-cifar": DataSet(find_mnist_cifar, f"{_MNIST}, and {CIFAR10}", Size(10_000, 2_000, (3, 64, 32), 2)),
}
