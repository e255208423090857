"""Where a path lives: among the inputs, or at the output of a layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from effdeg._models.inference import Subject
from effdeg._models.layers import FoundLayer, Layer, advice_for_integers, find_layer, replace_output
from effdeg._models.paths import check_interpolable, interpolate, join_masks
from effdeg._utils.tree import Tree, named_tensors, take, tensors

Batched = Callable[[Callable[[slice], Tensor], int], Tensor]
"""Runs a function on the parts of `n` examples, in batches that fit, and joins what it returns."""


class InputSpace:
    """Paths among the inputs themselves."""

    name: str | None = None

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def join(self, first: Tree, second: Tree, batched: Batched) -> "InputPaths":  # noqa: ARG002
        """Lay the paths that lead from the second examples to the first."""
        for examples in (first, second):
            _check_no_labels(examples)
            check_interpolable(examples, advice=partial(advice_for_integers, self._subject.model))
            _check_masks(examples)
        return InputPaths(self._subject, first, second)


class InputPaths:
    """Some paths among the inputs."""

    def __init__(self, subject: Subject, first: Tree, second: Tree) -> None:
        self._subject = subject
        # A half-precision model gets points that were interpolated in float32, so that neighbouring nodes stay apart.
        self._first, self._second = (subject.place(end, at_least=torch.float32) for end in (first, second))

    def run(self, rows: Tensor, alpha: Tensor) -> tuple[Any, Tensor | None]:
        """Run the model at one point of each of the given paths; return what it returned, and None."""
        points = interpolate(take(self._first, rows), take(self._second, rows), alpha[:, None])
        return self._subject(self._subject.place(points)), None

    def ends(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the floating tensors at the two ends of every path."""
        return _floating(self._first), _floating(self._second)


class LayerSpace:
    """Paths at the output of a layer: its output at both ends is captured, interpolated, and put in its place."""

    def __init__(self, subject: Subject, at: Layer) -> None:
        self._subject, self._layer = subject, find_layer(subject.model, at)
        self.name = self._layer.name

    def join(self, first: Tree, second: Tree, batched: Batched) -> "LayerPaths":
        """Lay the paths that lead from the second examples to the first, by running the model on both."""
        first, second = self._subject.place(first), self._subject.place(second)
        ends = [batched(partial(self._capture, end), len(tensors(end)[0])) for end in (first, second)]
        return LayerPaths(self._subject, self._layer, join_masks(first, second), ends[0], ends[1])

    def _capture(self, end: Tree, part: slice) -> Tensor:
        examples = take(end, part)
        captured: list[Tensor] = []

        def capture(own: Tensor) -> None:
            # A copy: what follows may work in place, as ReLU(inplace=True) does.
            captured.append(own.clone())

        with replace_output(self._layer, capture, rows=len(tensors(examples)[0])):
            self._subject(examples)
        return captured[0]


class LayerPaths:
    """Some paths at the output of a layer."""

    def __init__(self, subject: Subject, layer: FoundLayer, examples: Tree, first: Tensor, second: Tensor) -> None:
        self._subject, self._layer = subject, layer
        self._examples, self._first, self._second = examples, first, second

    def run(self, rows: Tensor, alpha: Tensor) -> tuple[Any, Tensor | None]:
        """Run the model with the layer's output replaced by one point of each of the given paths.

        Returns:
            What the model returned, and the output of the layer that was replaced.
        """
        rows = rows.to(self._first.device)
        points: Tensor = interpolate(self._first[rows], self._second[rows], alpha[:, None])
        replaced: list[Tensor] = []

        def replace(own: Tensor) -> Tensor:
            replaced.append(own)
            return points

        with replace_output(self._layer, replace, rows=len(rows)):
            returned = self._subject(take(self._examples, rows))
        return returned, replaced[0]

    def ends(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the layer's output at the two ends of every path."""
        return [self._first], [self._second]


def open_space(subject: Subject, at: Layer | None) -> InputSpace | LayerSpace:
    """Open the space in which paths live: the inputs, or the output of the layer ``at``."""
    return InputSpace(subject) if at is None else LayerSpace(subject, at)


def _check_no_labels(examples: Tree) -> None:
    """Raise if a tuple looks like inputs and labels: its entries would go into the model as two arguments."""
    if type(examples) is not tuple or len(examples) < 2 or not isinstance(second := examples[1], Tensor):
        return
    if second.dim() == 1 and not second.is_floating_point():
        raise TypeError(
            f"inputs are a tuple whose second entry ({second.dtype}) has one value per example, as labels have, but "
            "the entries of a tuple are the arguments of the model. For images and labels write images alone, or "
            "torch.utils.data.TensorDataset(images, labels), whose labels are left out. If the model does take it, "
            "give the inputs by name: {'x': images, 'mask': …}."
        )


def _check_masks(examples: Tree) -> None:
    """Raise if a floating mask holds -inf, which has no straight line to anything."""
    for name, leaf in named_tensors(examples):
        if leaf.is_floating_point() and "mask" in name and bool(leaf.isinf().any()):
            raise ValueError(f"inputs ({name!r}) hold -inf, which cannot be interpolated. Give booleans for a mask.")


def _floating(tree: Tree) -> list[Tensor]:
    return [tensor for tensor in tensors(tree) if tensor.is_floating_point()]
