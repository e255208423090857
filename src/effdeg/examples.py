"""What people have (tensors, trees, data sets, loaders, iterables of batches) seen as one thing: examples by index."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from effdeg.tree import Tree, concatenate, named_leaves, take, tree_map

Part = Callable[[Any], Any]
"""What of an item, or of a batch of them, is wanted."""

LABELS = {"label", "labels", "label_ids", "target", "targets", "y"}
"""Names under which labels come beside inputs; they are left out."""


@runtime_checkable
class Examples(Protocol):
    """Examples that can be counted and fetched by index."""

    def __len__(self) -> int:
        """Count the examples."""

    def fetch(self, indices: Sequence[int]) -> Tree:
        """Fetch some examples as one batch, a tree of tensors with the examples first."""


def as_examples(inputs: Any, *, labelled: bool = False) -> Examples:
    """See any kind of inputs as examples.

    Args:
        inputs: A tensor or array with the examples first; a tree of them; a map-style data set; a ``DataLoader``; or
            any iterable of batches (a list is one). The items of the last three may be ``(inputs, labels, …)`` tuples,
            of which the first entry is taken, or mappings, whose labels (:data:`LABELS`) are left out.
        labelled: Keep the labels: :func:`split_labels` takes a fetched batch apart.

    Returns:
        The examples. A data set is only asked for those that are drawn; an iterable is read to its end.
    """
    part = _whole if labelled else _without_labels
    if isinstance(inputs, Examples):
        return inputs
    if isinstance(inputs, DataLoader):
        return _from_loader(inputs, part)
    if isinstance(inputs, Dataset) and hasattr(inputs, "__len__"):
        return _DataSet(inputs, partial(_stack, part=part))
    if isinstance(inputs, Tensor | np.ndarray | tuple | Mapping) or hasattr(inputs, "__dataclass_fields__"):
        return Batch(tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, inputs))
    if isinstance(inputs, list):
        return _from_batches(inputs, part)
    if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
        return _DataSet(inputs, partial(_stack, part=part))
    if isinstance(inputs, Iterable):
        return _from_batches(inputs, part)
    raise TypeError(
        f"inputs of type {type(inputs).__name__} cannot be read as examples. Give a tensor with the examples first, a "
        "tuple, dict or dataclass of such tensors, a map-style Dataset, a DataLoader, or an iterable of batches."
    )


class Batch:
    """Examples that lie in memory as one batch."""

    def __init__(self, batch: Tree) -> None:
        lengths = {
            name: len(leaf) if leaf.dim() else None for name, leaf in named_leaves(batch) if isinstance(leaf, Tensor)
        }
        if not lengths or None in lengths.values():
            raise ValueError(
                f"inputs hold no examples: expected tensors with the examples first, found {_shapes(batch)}."
            )
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"inputs disagree on the number of examples: {_shapes(batch)}. The first dimension must be one."
            )
        self._batch = batch
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length or 0

    def fetch(self, indices: Sequence[int]) -> Tree:
        """Fetch some examples as one batch."""
        return take(self._batch, torch.as_tensor(indices))


class _DataSet:
    """Examples of a map-style data set, fetched one by one when they are drawn."""

    def __init__(self, data: Any, collate: Any) -> None:
        self._data = data
        self._collate = collate

    def __len__(self) -> int:
        return len(self._data)

    def fetch(self, indices: Sequence[int]) -> Tree:
        return self._collate([self._data[int(index)] for index in indices])


def _from_loader(loader: DataLoader[Any], part: Part) -> Examples:
    # A loader over a plain sampler holds the examples of its data set, so only the drawn ones need to be read. Any
    # other sampler decides which examples there are: then the loader is asked.
    collate = loader.collate_fn
    if _takes_all(loader):
        return _DataSet(loader.dataset, lambda items: _as_tensors(part(_collated(collate, items))))
    return _from_batches(loader, part)


def _takes_all(loader: DataLoader[Any]) -> bool:
    """Tell whether a loader takes every example of its data set once, among all processes if there are several."""
    batches, sampler = loader.batch_sampler, loader.sampler
    if type(batches) is not BatchSampler or batches.sampler is not sampler:
        return False
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    return isinstance(sampler, SequentialSampler | DistributedSampler)


def _collated(collate: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    try:
        return collate(items)
    except RuntimeError as error:
        raise ValueError(
            f"the loader cannot make one batch of {len(items)} drawn examples: {error}. All examples must have one "
            "shape (pad text to one length, resize images to one size)."
        ) from error


def _from_batches(batches: Iterable[Any], part: Part) -> Examples:
    read = [_as_tensors(part(batch)) for batch in batches]
    if not read:
        raise ValueError("inputs are empty: the iterable gave no batch.")
    try:
        return Batch(concatenate(read))
    except (RuntimeError, ValueError, KeyError) as error:
        shapes = sorted({_shapes(batch) for batch in read})
        raise ValueError(
            f"inputs give batches that do not fit together: {' and '.join(shapes[:3])}. All examples must have one "
            "shape (pad text to one length, resize images to one size)."
        ) from error


def _stack(items: list[Any], part: Part) -> Tree:
    """Stack single examples, or the part of them that is wanted, into a batch."""
    trees = [_as_tensors(part(item)) for item in items]

    def stack(*leaves: Any) -> Any:
        if not isinstance(leaves[0], Tensor):
            return leaves[0]
        shapes = sorted({tuple(leaf.shape) for leaf in leaves})
        if len(shapes) > 1:
            raise ValueError(
                f"examples have unequal shapes, {' and '.join(map(str, shapes[:3]))}: no straight line joins them. "
                "Pad text to one length, resize images to one size."
            )
        return torch.stack(leaves)

    return tree_map(stack, *trees)


def split_labels(batch: Tree) -> tuple[Tree, Tensor | None]:
    """Take a labelled batch apart: a pair into inputs and labels, a mapping into its labels and the rest."""
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields") and len(batch) > 1:
        return batch[0], batch[1]
    labels = next((batch[name] for name in batch if name in LABELS), None) if isinstance(batch, Mapping) else None
    return _without_labels(batch), labels


def _whole(item: Any) -> Any:
    return item


def _without_labels(item: Any) -> Any:
    if isinstance(item, tuple | list) and not hasattr(item, "_fields"):
        if not item:
            raise ValueError("inputs give an empty item: expected examples, or (examples, labels).")
        return item[0]
    if isinstance(item, Mapping):
        return {key: value for key, value in item.items() if key not in LABELS}
    return item


def _as_tensors(tree: Tree) -> Tree:
    """Turn arrays, numbers and lists of numbers into tensors; other leaves stay."""
    if isinstance(tree, Mapping):
        return {key: _as_tensors(value) for key, value in tree.items()}
    if isinstance(tree, list) and tree and isinstance(tree[0], int | float | list):
        try:
            return torch.as_tensor(tree)
        except ValueError as error:
            raise ValueError(f"inputs hold lists of unequal length: {error}. Pad text to one length.") from error

    def convert(leaf: Any) -> Any:
        return torch.as_tensor(leaf) if isinstance(leaf, np.ndarray | np.generic | int | float) else leaf

    return tree_map(convert, tree)


def _shapes(tree: Tree) -> str:
    described = [
        f"{name + ' ' if name else ''}{tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__}"
        for name, leaf in named_leaves(tree)
    ]
    return ", ".join(described) or "nothing"
