"""Examples with their classes, some to train on and some to test on."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Labelled:
    """A data set for classification.

    Attributes:
        train_inputs: The training inputs: images as bytes, N × channels × height × width, or features, N × D floats.
        train_labels: Their classes, from 0.
        test_inputs: The test inputs.
        test_labels: Their classes.
        classes: How many classes there are.
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
        """Return a short hash of all examples and their classes, in their order: equal for equal data alone."""
        found = hashlib.sha256()
        tensors = (self.train_inputs, self.train_labels, self.test_inputs, self.test_labels)
        for tensor in (*tensors, *self.further_tests.values()):
            found.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            # In place: a copy of it all may not fit beside it.
            found.update(tensor.cpu().contiguous().numpy().data)
        return found.hexdigest()[:16]


class RawSplit(NamedTuple):
    """Inputs and labels as they were read, not yet checked."""

    inputs: Array
    labels: Array


@dataclass(frozen=True)
class Known:
    """What is known of a data set before it is read: the shape of its images, their number of classes, their scale."""

    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def labelled(name: object, train: RawSplit, test: RawSplit, known: Known | None = None) -> Labelled:
    """Check what was read, and number the classes.

    Args:
        name: What to call the data set in an error.
        train: The training examples.
        test: The test examples.
        known: What the data set must agree with. Otherwise the classes are the sorted labels of the training examples,
            and the mean and the standard deviation are theirs.

    Returns:
        The data set.
    """
    for kind, split in (("training", train), ("test", test)):
        _check_inputs(f"{name}: the {kind} inputs", split.inputs)
        if split.labels.shape != (len(split.inputs),):
            raise ValueError(
                f"{name}: {len(split.inputs)} {kind} inputs came with labels of the shape {split.labels.shape}; "
                "one label is expected for each."
            )
        if split.labels.dtype.kind not in "biuU":
            raise ValueError(f"{name}: the {kind} labels are {split.labels.dtype}; expected whole numbers or text.")
    shape = train.inputs.shape[1:] if known is None else known.shape
    for kind, split in (("training", train), ("test", test)):
        if split.inputs.shape[1:] != shape:
            given, expected = (" × ".join(map(str, each)) for each in (split.inputs.shape[1:], shape))
            raise ValueError(f"{name}: the {kind} inputs have the shape {given}; expected {expected}.")
    names = np.unique(train.labels) if known is None else np.arange(known.classes)
    if known is None and len(names) < 2:
        raise ValueError(f"{name}: all training examples are of one class, {names[0]}; at least two are expected.")
    is_image = train.inputs.dtype == np.uint8
    mean, std = (known.mean, known.std) if known else _scale(train.inputs) if is_image else ((), ())
    return Labelled(
        train_inputs=_tensor(train.inputs),
        train_labels=_numbered(f"{name}: the training label", train.labels, names),
        test_inputs=_tensor(test.inputs),
        test_labels=_numbered(f"{name}: the test label", test.labels, names),
        classes=len(names),
        mean=mean,
        std=std,
    )


def shuffled(data: Labelled) -> Labelled:
    """Bring the training examples into a random order that is always the same."""
    order = torch.randperm(len(data.train_labels), generator=torch.Generator().manual_seed(0))
    return replace(data, train_inputs=data.train_inputs[order], train_labels=data.train_labels[order])


def _check_inputs(what: str, inputs: Array) -> None:
    if inputs.size == 0:
        raise ValueError(f"{what} are empty.")
    if inputs.dtype == np.uint8 and inputs.ndim == 4 and inputs.shape[1] in {1, 3}:
        return
    if inputs.dtype.kind != "f" or inputs.ndim != 2:
        raise ValueError(
            f"{what} are {inputs.dtype} of the shape {inputs.shape}; expected images as bytes (uint8), "
            "N × height × width with or without 1 or 3 channels, or features as floats, N × D."
        )
    if not np.isfinite(inputs).all():
        raise ValueError(f"{what} are not all finite numbers.")


def _numbered(what: str, labels: Array, names: Array) -> Tensor:
    """Return the place of every label among the names of the classes."""
    places = np.searchsorted(names, labels).clip(max=len(names) - 1)
    if (wrong := np.flatnonzero(names[places] != labels)).size:
        expected = ", ".join(map(str, names[:20])) + (", …" if len(names) > 20 else "")
        raise ValueError(f"{what} {labels[wrong[0]]} (example {wrong[0]}) is none of the classes {expected}.")
    return torch.from_numpy(places.astype(np.int64))


def _scale(images: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of pixels in [0, 1], from how often each of 256 values occurs."""
    shades = np.arange(256) / 255
    counts = [np.bincount(images[:, channel].ravel(), minlength=256) for channel in range(images.shape[1])]
    means = [float(np.average(shades, weights=count)) for count in counts]
    spread = [
        float(np.sqrt(np.average((shades - mean) ** 2, weights=count)))
        for mean, count in zip(means, counts, strict=True)
    ]
    # A channel that never varies is left unscaled.
    return tuple(means), tuple(std or 1.0 for std in spread)


def _tensor(inputs: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32)))
