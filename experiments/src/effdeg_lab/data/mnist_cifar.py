"""MNIST–CIFAR (Shah et al., 2020): a handwritten zero over an automobile, or a one over a truck.

Either half tells the class. The paper does not say how it put them together, but its accuracies are multiples of
1/2000, so that there are 2,000 test images: all automobiles and trucks of CIFAR-10's test set.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from effdeg_lab.data.image_sets import find_cifar10, find_mnist
from effdeg_lab.data.labelled import Labelled, Split, make_labelled

# MNIST's digit and CIFAR-10's class, automobile and truck, of our classes 0 and 1.
_CLASSES = ((0, 1), (1, 9))
_SEEDS = {"training": 1, "test": 2, "MNIST": 3, "CIFAR": 4}


def find_mnist_cifar(folder: Path) -> Callable[[], Labelled]:
    """Find MNIST and CIFAR-10 in the data folder, of which MNIST–CIFAR is made, in the same way every time.

    There are as many images of a class as CIFAR-10 has: 5,000 to train on and 1,000 to test on. Digits are taken in
    MNIST's order, and the pictures below them are shuffled within their class, so that given the class the halves are
    independent. MNIST has 980 zeros to test on: the first 20 are used twice. Images are 3 × 64 × 32 bytes in a random
    order, and their channels are scaled by the mean and the deviation of whole training images. The further tests are
    the test images with either half replaced by that of another test image, whatever its class.
    """
    load_mnist, load_cifar10 = find_mnist(folder), find_cifar10(folder)

    def load() -> Labelled:
        mnist, cifar = load_mnist(), load_cifar10()
        train = _stack("training", mnist.train_inputs, mnist.train_labels, cifar.train_inputs, cifar.train_labels)
        test = _stack("test", mnist.test_inputs, mnist.test_labels, cifar.test_inputs, cifar.test_labels)
        data = make_labelled(f"mnist-cifar in {folder}", train, test)
        return replace(data, further_tests=_randomize(data.test_inputs))

    return load


def _stack(kind: str, mnist: Tensor, mnist_labels: Tensor, cifar: Tensor, cifar_labels: Tensor) -> Split:
    generator = torch.Generator().manual_seed(_SEEDS[kind])
    images, labels = [], []
    for label, (digit, picture) in enumerate(_CLASSES):
        digits, pictures = mnist[mnist_labels == digit], cifar[cifar_labels == picture]
        for name, found, wanted in (("mnist", digits, digit), ("cifar10", pictures, picture)):
            if len(found) == 0:
                raise ValueError(f"mnist-cifar needs {kind} images of the class {wanted} of {name}, which has none.")
        pictures = pictures[torch.randperm(len(pictures), generator=generator)]
        # Where there are fewer digits than pictures, the first are used again.
        digits = digits[torch.arange(len(pictures)) % len(digits)]
        images.append(torch.cat([pad(digits, (2,) * 4).expand(-1, 3, -1, -1), pictures], dim=2))
        labels.append(torch.full((len(pictures),), label))
    order = torch.randperm(sum(map(len, labels)), generator=generator)
    return torch.cat(images)[order].numpy(), torch.cat(labels)[order].numpy()


def _randomize(images: Tensor) -> dict[str, Tensor]:
    upper, lower = images.chunk(2, dim=2)
    return {
        "MNIST randomized": torch.cat([upper[_draw_others(len(images), "MNIST")], lower], dim=2),
        "CIFAR randomized": torch.cat([upper, lower[_draw_others(len(images), "CIFAR")]], dim=2),
    }


def _draw_others(count: int, which: str) -> Tensor:
    """Assign another image to every image, each of them once: the next in a random cycle."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SEEDS[which]))
    others = torch.empty_like(order)
    others[order] = order.roll(1)
    return others
