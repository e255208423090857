"""Examples with their classes, some to train on and some to test on."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]
Split = tuple[Array, Array]
"""Inputs and labels as they were read, not yet checked."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """A data set for classification.

    Attributes:
        train_inputs: The training inputs: images as bytes, N × channels × height × width, or features, N × D floats.
        train_labels: Their classes, from 0.
        test_inputs: The test inputs.
        test_labels: Their classes.
        classes: The number of classes.
        mean: The mean of the pixels in [0, 1], channel by channel; empty for features.
        std: Their standard deviation.
        further_tests: Other inputs to test on, by name: the test inputs changed in some way, with the same classes.
    """

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    further_tests: Mapping[str, Tensor] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Return a short hash of all examples and their classes, in their order."""
        found = hashlib.sha256()
        tensors = (self.train_inputs, self.train_labels, self.test_inputs, self.test_labels)
        for tensor in (*tensors, *self.further_tests.values()):
            found.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            found.update(tensor.cpu().contiguous().numpy().data)  # without a copy, which may not fit into memory
        return found.hexdigest()[:16]

    def shuffle(self) -> "Labelled":
        """Bring the training examples into a random order that is always the same."""
        order = torch.randperm(len(self.train_labels), generator=torch.Generator().manual_seed(0))
        return replace(self, train_inputs=self.train_inputs[order], train_labels=self.train_labels[order])


@dataclass(frozen=True)
class Known:
    """What is known of a published data set: the shape of its images, the number of classes, and how pixels vary."""

    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def make_labelled(name: object, train: Split, test: Split, known: Known | None = None) -> Labelled:
    """Check what was read, under a name for errors, and number the classes.

    If nothing is known of the data set, its classes are the sorted labels of the training examples, and the mean and
    the standard deviation are theirs.
    """
    shape = known.shape if known else train[0].shape[1:]
    for kind, (inputs, labels) in (("training", train), ("test", test)):
        try:
            _check(inputs, labels, shape)
        except ValueError as error:
            raise ValueError(f"{name}: the {kind} {error}") from None
    classes = np.arange(known.classes) if known else np.unique(train[1])
    if len(classes) < 2:
        raise ValueError(f"{name}: all training examples are of one class, {classes[0]}; expected at least two.")
    mean, std = (known.mean, known.std) if known else _measure_pixels(train[0])
    return Labelled(
        train_inputs=_to_tensor(train[0]),
        train_labels=_number(f"{name}: the training label", train[1], classes),
        test_inputs=_to_tensor(test[0]),
        test_labels=_number(f"{name}: the test label", test[1], classes),
        classes=len(classes),
        mean=mean,
        std=std,
    )


def _check(inputs: Array, labels: Array, shape: tuple[int, ...]) -> None:
    if inputs.size == 0:
        raise ValueError("inputs are empty.")
    is_image = inputs.dtype == np.uint8 and inputs.ndim == 4 and inputs.shape[1] in {1, 3}
    if not is_image and (inputs.dtype.kind != "f" or inputs.ndim != 2):
        raise ValueError(
            f"inputs are {inputs.dtype} of the shape {inputs.shape}; expected images as bytes (uint8), "
            "N × height × width with or without 1 or 3 channels, or features as floats, N × D."
        )
    if inputs.shape[1:] != shape:
        given, expected = (" × ".join(map(str, each)) for each in (inputs.shape[1:], shape))
        raise ValueError(f"inputs have the shape {given}; expected {expected}.")
    if not is_image and not np.isfinite(inputs).all():
        raise ValueError("inputs are not all finite numbers.")
    if labels.shape != (len(inputs),):
        raise ValueError(f"labels have the shape {labels.shape}; expected one label for each of {len(inputs)} inputs.")
    if labels.dtype.kind not in "biuU":
        raise ValueError(f"labels are {labels.dtype}; expected whole numbers or text.")


def _number(what: str, labels: Array, classes: Array) -> Tensor:
    """Return the place of every label among the classes."""
    places = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    if (wrong := np.flatnonzero(classes[places] != labels)).size:
        expected = ", ".join(map(str, classes[:20])) + (", …" if len(classes) > 20 else "")
        raise ValueError(f"{what} {labels[wrong[0]]} (example {wrong[0]}) is none of the classes {expected}.")
    return torch.from_numpy(places.astype(np.int64))


def _measure_pixels(inputs: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of pixels in [0, 1], from how often each of 256 values occurs."""
    if inputs.dtype != np.uint8:
        return (), ()
    shades = np.arange(256) / 255
    counts = [np.bincount(inputs[:, channel].ravel(), minlength=256) for channel in range(inputs.shape[1])]
    means = [float(np.average(shades, weights=count)) for count in counts]
    stds = [
        # A channel that never varies is left unscaled.
        float(np.sqrt(np.average((shades - mean) ** 2, weights=count))) if np.count_nonzero(count) > 1 else 1.0
        for mean, count in zip(means, counts, strict=True)
    ]
    return tuple(means), tuple(stds)


def _to_tensor(inputs: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32)))
