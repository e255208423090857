"""Where a path lives: among the inputs, or at the output of a layer."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.examples import count_examples, describe_shapes
from effdeg._adapters.inference import ModelRunner
from effdeg._adapters.layers import (
    FoundLayer,
    Layer,
    advice_for_integers,
    find_embeddings,
    find_layer,
    replace_output,
)
from effdeg._adapters.paths import (
    check_interpolable,
    check_masks,
    exchange_masks,
    floating_inputs,
    interpolate,
    is_mask,
    join_masks,
)
from effdeg._utils.tree import Tree, map_tensors, named_tensors, take, tensors

KEYWORDS = (
    "A dict holds the model's keywords. To pass one of its entries alone, write inputs[…]. If the model's argument is "
    "the dict itself, write (inputs,)."
)
"""Note on an error that a model raises if it was called with the entries of a dict."""

_TRIED = 4  # examples
_ROUNDED = 0.05  # of the differences between outputs, which half precision may round by a hundredth

Batched = Callable[[Callable[[slice], Tensor], int], Tensor]
"""Runs a function on the parts of `n` examples, in batches that fit, and joins what it returns."""


def are_tokens(examples: Tree) -> bool:
    """Return whether examples are rows of integers: next to images, paths between texts alone would not be meant."""
    leaves = [leaf for name, leaf in named_tensors(examples) if not is_mask(name, leaf)]
    return bool(leaves) and all(not leaf.is_floating_point() and leaf.dim() == 2 for leaf in leaves)


def default_layer(model: object, examples: Tree) -> str | None:
    """Return the layer at which paths lie if none is named: for token ids the embeddings, where they are known."""
    return find_embeddings(model) if are_tokens(examples) else None


class Space:
    """Where paths lie: among the inputs, or at the output of a layer, where they join its outputs for both ends."""

    def __init__(self, runner: ModelRunner, at: Layer | None) -> None:
        self._runner = runner
        self._layer = None if at is None else find_layer(runner.model, at)
        self.name = None if self._layer is None else self._layer.name

    def join(self, first: Tree, second: Tree, batched: Batched) -> "Paths":
        """Lay the paths from the second examples to the first; at a layer, the model runs on both."""
        runner, layer = self._runner, self._layer
        if layer is None:
            for examples in (first, second):
                _check_no_labels(examples)
                check_interpolable(examples, advice=partial(advice_for_integers, runner.model))
                check_masks(examples)
            # A half-precision model gets points that were interpolated in float32, so that neighbors stay apart.
            one, other = (runner.place(end, at_least=torch.float32) for end in (first, second))
            return Paths(runner, one, other)
        first, second = runner.place(first), runner.place(second)
        count = count_examples(first, f"a batch of inputs ({type(first).__name__})")
        one, other = (batched(partial(_capture, runner, layer, end), count) for end in (first, second))
        return Paths(runner, one, other, layer, join_masks(first, second))

    def note_bypass(self, first: Tree, second: Tree, read: Callable[[Any, int], Tree]) -> str | None:
        """Return a note if the model reads more of an example than the layer's output and masks."""
        runner, layer = self._runner, self._layer
        if layer is None:
            return None
        few = slice(_TRIED)
        first, second = (runner.place(take(end, few)) for end in (first, second))
        features, rows = _capture(runner, layer, second, few), len(tensors(second)[0])

        def run(examples: Tree) -> Tensor:
            with replace_output(layer, lambda _: features.clone(), rows=rows):
                returned = run_examples(runner, examples)
            return torch.cat([leaf.reshape(rows, -1).double() for leaf in tensors(read(returned, rows))], dim=1)

        expected, again, crossed = map(run, (second, second, exchange_masks(first, second)))
        by_chance, difference = ((each - expected).norm() for each in (again, crossed))
        if not difference > 10 * by_chance + _ROUNDED * (expected - expected.mean(0)).norm() + 1e-3 * expected.norm():
            return None
        return (
            f"something bypasses the layer {layer.name!r} and stays that of the first example along a path, such as a "
            "skip connection, or the place of the last token, which some classifiers find by its id: pad on the left."
        )


def run_examples(runner: ModelRunner, examples: Tree) -> Any:
    """Run the model on examples by themselves."""
    # A copy: models may work in place, as ReLU(inplace=True) does.
    return _run(runner, map_tensors(Tensor.clone, runner.place(examples)))


class Paths:
    """Some paths, by their ends: among the inputs, or at the output of a layer for some examples."""

    def __init__(
        self, runner: ModelRunner, first: Tree, second: Tree, layer: FoundLayer | None = None, examples: Tree = None
    ) -> None:
        self._runner, self._first, self._second = runner, first, second
        self._layer, self._examples = layer, examples

    def run(self, rows: Tensor, alpha: Tensor) -> tuple[Any, Tensor | None]:
        """Run the model at one point of each of the given paths; return what it returned, and what was replaced."""
        points = interpolate(take(self._first, rows), take(self._second, rows), alpha[:, None])
        if self._layer is None:
            return _run(self._runner, self._runner.place(points)), None
        replaced: list[Tensor] = []

        def replace(features: Tensor) -> Tensor:
            replaced.append(features)
            return points  # type: ignore[no-any-return]

        with replace_output(self._layer, replace, rows=len(rows)):
            returned = _run(self._runner, take(self._examples, rows))
        return returned, replaced[0]

    @property
    def reach_examples(self) -> bool:
        """Whether the ends of paths are the examples: not at a layer, nor where masks of both ends are joined."""
        return self._layer is None and all(leaf.is_floating_point() for leaf in tensors(self._first))

    def ends(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the floating tensors at the two ends of every path, but masks, by their names."""
        return floating_inputs(self._first), floating_inputs(self._second)


def _capture(runner: ModelRunner, layer: FoundLayer, end: Tree, part: slice) -> Tensor:
    examples = take(end, part)
    captured: list[Tensor] = []

    def capture(features: Tensor) -> None:
        captured.append(features.clone())  # as the model may work in place

    with replace_output(layer, capture, rows=len(tensors(examples)[0])):
        run_examples(runner, examples)
    return captured[0]


def _run(runner: ModelRunner, batch: Tree) -> Any:
    """Run a model, and let its errors say on what."""
    try:
        return runner(batch)
    except Exception as error:
        error.add_note(f"The model was called on a batch of shape {describe_shapes(batch)}.")
        if isinstance(error, TypeError) and isinstance(batch, Mapping):
            error.add_note(KEYWORDS)
        if not isinstance(batch, Mapping) and (hasattr(batch, "__dataclass_fields__") or hasattr(batch, "_fields")):
            fields = "inputs._asdict()" if hasattr(batch, "_fields") else "vars(inputs)"
            error.add_note(f"{type(batch).__name__} was passed as one argument. To pass its fields by name: {fields}.")
        if "does not require grad" in str(error):
            error.add_note(
                "The model runs without gradients. If it needs them itself, let it call torch.enable_grad()."
            )
        if "dtype" in str(error) and not isinstance(runner.model, nn.Module):
            error.add_note("The model is a function: dtype= converts examples, but no weights that it uses.")
        if isinstance(error, IndexError):
            error.add_note("If it holds the edges of a graph: points are run in batches of any size, each on its own.")
        raise


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
