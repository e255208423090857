"""Where a path lives: among the inputs, or at the output of a layer."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._checks import suggest
from effdeg.inference import Model, Subject
from effdeg.paths import check_interpolable, interpolate, is_mask
from effdeg.tree import Tree, take, tensors, tree_map

Layer = str | nn.Module
"""A layer: its name in the model, as ``model.named_modules()`` gives it, or the module itself."""

Batched = Callable[[Callable[[slice], Tensor], int], Tensor]
"""Runs a function on parts of so many examples, in batches that fit, and joins what it gives."""

Hook = Callable[[nn.Module, Any, Any], Any]


class InputSpace:
    """Paths among the inputs themselves."""

    name: str | None = None

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def join(self, first: Tree, second: Tree, batched: Batched) -> "InputPaths":  # noqa: ARG002
        """Lay the paths that lead from the second examples to the first."""
        for examples in (first, second):
            check_interpolable(examples, advice=partial(_advice, self._subject.model))
        return InputPaths(self._subject, first, second)


class InputPaths:
    """Some paths among the inputs."""

    def __init__(self, subject: Subject, first: Tree, second: Tree) -> None:
        self._subject = subject
        # A half-precision model gets points that were interpolated in float32, so that neighbouring nodes stay apart.
        self._first, self._second = (subject.place(end, at_least=torch.float32) for end in (first, second))

    def run(self, rows: Tensor, alpha: Tensor) -> Any:
        """Run the model at one point of each of the given paths."""
        points = interpolate(take(self._first, rows), take(self._second, rows), alpha)
        return self._subject(self._subject.place(points))

    def ends(self) -> tuple[list[Tensor], list[Tensor]]:
        """Give the floating tensors at the two ends of every path."""
        return _floating(self._first), _floating(self._second)


class LayerSpace:
    """Paths at the output of a layer: its output at both ends is captured, interpolated, and put in its place."""

    def __init__(self, subject: Subject, at: Layer) -> None:
        self._subject = subject
        self.name, self._layer = find_layer(subject.model, at)

    def join(self, first: Tree, second: Tree, batched: Batched) -> "LayerPaths":
        """Lay the paths that lead from the second examples to the first, by running the model on both."""
        first, second = self._subject.place(first), self._subject.place(second)
        ends = [batched(partial(self._capture, end), len(tensors(end)[0])) for end in (first, second)]
        return LayerPaths(self._subject, self._layer, _join_masks(first, second), ends[0], ends[1])

    def _capture(self, end: Tree, part: slice) -> Tensor:
        examples = take(end, part)
        captured: list[Tensor] = []

        def keep(_: nn.Module, __: Any, output: Any) -> None:
            # A copy: what follows may work in place, as ReLU(inplace=True) does.
            captured.append(_first_tensor(output, self.name).clone())

        with _hook(self._layer, keep):
            self._subject(examples)
        if len(captured) != 1:
            raise ValueError(
                f"the layer {self.name!r} ran {len(captured)} times in one forward pass; a path can live only at the "
                "output of a layer that runs once. Choose another layer with at=…"
            )
        count = len(tensors(examples)[0])
        if captured[0].dim() == 0 or len(captured[0]) != count:
            raise ValueError(
                f"the layer {self.name!r} returned shape {tuple(captured[0].shape)} for {count} examples; a path needs "
                "a layer whose output has the examples first. Choose another layer with at=…"
            )
        return captured[0]


class LayerPaths:
    """Some paths at the output of a layer."""

    def __init__(self, subject: Subject, layer: nn.Module, examples: Tree, first: Tensor, second: Tensor) -> None:
        self._subject, self._layer = subject, layer
        self._examples, self._first, self._second = examples, first, second

    def run(self, rows: Tensor, alpha: Tensor) -> Any:
        """Run the model with the layer's output replaced by one point of each of the given paths."""
        rows = rows.to(self._first.device)
        points = interpolate(self._first[rows], self._second[rows], alpha)

        def replace(_: nn.Module, __: Any, output: Any) -> Any:
            return points if isinstance(output, Tensor) else (points, *output[1:])

        with _hook(self._layer, replace):
            return self._subject(take(self._examples, rows))

    def ends(self) -> tuple[list[Tensor], list[Tensor]]:
        """Give the layer's output at the two ends of every path."""
        return [self._first], [self._second]


def open_space(subject: Subject, at: Layer | None) -> InputSpace | LayerSpace:
    """Open the space in which paths live: the inputs, or the output of the layer ``at``."""
    return InputSpace(subject) if at is None else LayerSpace(subject, at)


def find_layer(model: Model, at: Layer) -> tuple[str, nn.Module]:
    """Find a layer by name or by reference; a reference also serves a model that is not a module."""
    modules = _layers(model)
    if not isinstance(at, str | nn.Module):
        raise TypeError(f"at={at!r} must be the name of a layer or a module.")
    if isinstance(at, nn.Module):
        name = next((name for name, module in modules.items() if module is at), None)
        if name is None and modules:
            raise ValueError(
                f"at={type(at).__name__}(…) is not a layer of this model. Give one of model.modules() or a name."
            )
        return name or type(at).__name__, at
    if at not in modules or not at:
        if not modules:
            raise ValueError(
                f"at={at!r} names a layer, but the model is a plain function. Give the module itself: at=module."
            )
        raise ValueError(f"at={at!r} is not a layer of this model. {suggest(at, [name for name in modules if name])}")
    return at, modules[at]


def _layers(model: Model) -> dict[str, nn.Module]:
    """List the layers of a model by name, without the prefix that torch.compile puts in."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    return {name.replace("_orig_mod.", ""): module for name, module in named}


@contextmanager
def _hook(layer: nn.Module, hook: Hook) -> Iterator[None]:
    handle = layer.register_forward_hook(hook)
    try:
        with _eager():
            yield
    finally:
        handle.remove()


def _eager() -> AbstractContextManager[object]:
    """Run compiled models as they were written: they would not notice a hook that is newer than their compilation."""
    # Nothing is compiled where the compiler was not even loaded, and loading it takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _first_tensor(output: Any, name: str) -> Tensor:
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or not first.is_floating_point():
        raise TypeError(
            f"the layer {name!r} returns {type(output).__name__}; a path needs a layer that returns a floating-point "
            "tensor, or a tuple with one first. Choose another layer with at=…"
        )
    return first


def _join_masks(first: Tree, second: Tree) -> Tree:
    """Give every path one input: the first end's, with the masks of both ends joined by OR."""

    def join(one: Any, other: Any) -> Any:
        mask = isinstance(one, Tensor) and isinstance(other, Tensor) and is_mask(one) and is_mask(other)
        return one | other if mask else one

    return tree_map(join, first, second)


def _floating(tree: Tree) -> list[Tensor]:
    return [tensor for tensor in tensors(tree) if tensor.is_floating_point()]


def _advice(model: Model) -> str:
    advice = "Convert images to floating point (images.float() / 255); for token ids let the path live at a layer, at=…"
    embeddings = [name for name, module in _layers(model).items() if name and "Embedding" in type(module).__name__]
    if embeddings:
        # The shortest name is the outermost layer: the one after which the whole example is embedded.
        advice += f", such as at={min(embeddings, key=lambda name: name.count('.'))!r}"
    return advice + "."
