"""Examples by index, from tensors, trees, data sets, loaders or iterables of batches."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from effdeg._utils.memo import Memo
from effdeg._utils.tree import (
    Tree,
    check_plain,
    concatenate,
    entry,
    has_rows,
    map_tensors,
    named_leaves,
    named_tensors,
    take,
    tensors,
    tree_map,
)

LABELS = {"label", "labels", "label_ids", "target", "targets", "y"}
"""Names of labels among inputs; they are left out."""

MOST_EXAMPLES = 1_000_000
MOST_BYTES = 8 * 2**30
"""How much of an iterable is read into memory: a longer one may never end."""

_CHANNELS = (1, 3, 4)
_CHECKED_AT_ONCE = 2**25  # numbers, which bounds the memory of a check
_ONE_SHAPE = "All examples must have one shape (pad text to one length, resize images to one size)."


@runtime_checkable
class Examples(Protocol):
    """Examples that can be counted and fetched by index."""

    def __len__(self) -> int:
        """Count the examples."""

    def fetch(self, indices: Sequence[int]) -> Tree:
        """Return some examples as a batch: a tree of inputs, or a tuple of inputs and what an item has behind them."""


def as_examples(inputs: Any, *, labeled: bool = False) -> Examples:
    """Read inputs of any kind as examples; raise, when they are read, if they hold NaN or infinite numbers.

    Items of data sets, loaders and iterators may be tuples with labels, or mappings with labels by name; if
    ``labeled``, which allows labels to be a list, so may a tuple or mapping itself. An ``ItemReader`` decides with the
    model what the entries are. Only the drawn examples of a map-style data set are read, an iterable to its end.
    """
    if isinstance(inputs, Examples):
        return inputs
    if labeled and isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], list):
        inputs = inputs[0], torch.as_tensor(inputs[1], device="cpu")
    if hasattr(inputs, "inputs") and hasattr(inputs, "preprocessing"):
        raise TypeError("inputs are what load_data returned, with its source. Pass the examples: load_data(…).inputs.")
    if isinstance(inputs, data.DataLoader):
        # With a plain sampler only the drawn examples of the data set need to be read. Another one selects examples.
        if reads_all(inputs):
            return DataSet(inputs.dataset, labeled, inputs.collate_fn)
        if inputs.batch_sampler is None and isinstance(inputs.dataset, data.TensorDataset):
            raise ValueError(
                "a DataLoader with batch_size=None yields the items of its data set as batches, and those of a "
                "TensorDataset are single examples. Pass the TensorDataset itself, or give the loader a batch_size."
            )
        # With batch_size=None a loader yields the items of its data set.
        with _seed_generators(inputs):
            return _from_batches(map(_check_batch, inputs) if inputs.batch_sampler is None else inputs, labeled)
    if isinstance(inputs, data.IterableDataset):
        advice = "itertools.islice(DataLoader(inputs, batch_size=100), 10)"
        return Batch(_join(_read(inputs, labeled, lambda _: 1, advice), _stack, labeled), has_items=True)
    # A memory-mapped file may be larger than memory: only the drawn examples are read.
    if isinstance(inputs, np.memmap) or (isinstance(inputs, data.Dataset) and hasattr(inputs, "__len__")):
        return DataSet(inputs, labeled)
    if isinstance(inputs, Tensor | np.ndarray | tuple | Mapping) or hasattr(inputs, "__dataclass_fields__"):
        tree = tree_map(lambda leaf: _from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, inputs)
        return Batch(tree, has_items=labeled)
    if isinstance(inputs, list | deque):
        return _from_list(list(inputs), labeled)
    if isinstance(inputs, str | os.PathLike):
        raise TypeError(
            f"inputs={str(inputs)!r} is a path, which only the command line takes: effdeg measure … --data {inputs}. "
            f"In Python load it first, for example torch.from_numpy(numpy.load({str(inputs)!r}))."
        )
    if hasattr(inputs, "to_numpy"):
        # Indices of a data frame are names of columns.
        raise TypeError(
            f"inputs are a {type(inputs).__name__}. Write torch.tensor(inputs.to_numpy(), dtype=torch.float32), "
            "without labels."
        )
    # Where indices are names, as in a graph of PyTorch Geometric, there are no examples by number.
    if not hasattr(inputs, "keys"):
        if hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__"):
            return DataSet(inputs, labeled)
        if isinstance(inputs, Iterable):
            return _from_batches(map(_check_batch, inputs), labeled)
    raise TypeError(
        f"inputs of type {type(inputs).__name__} cannot be read as examples. Pass a tensor with the examples first, a "
        "tuple, dict or dataclass of such tensors, a Dataset, a DataLoader, or an iterator of batches."
    )


class Batch:
    """Examples in memory as one batch: inputs of a model, or items of a data set, which may have labels."""

    def __init__(self, batch: Tree, *, has_items: bool = False) -> None:
        _check_storage(batch)
        inputs, labels = split_labels(batch) if has_items else (batch, None)
        lengths = {len(leaf) if leaf.dim() else None for leaf in tensors(batch)}
        if not lengths or None in lengths:
            tokens = isinstance(batch, Mapping) and "input_ids" in batch
            advice = " For tensors, call the tokenizer with padding=True, return_tensors='pt'." if tokens else ""
            problem = f"inputs hold no examples: expected tensors with examples first, found {describe_shapes(batch)}."
            raise ValueError(problem + advice)
        if len(lengths) > 1:
            counts = {len(leaf) for leaf in tensors(inputs)}
            if isinstance(labels, Tensor) and len(counts) == 1:
                raise ValueError(f"there are {counts.pop()} examples, but {len(labels)} labels: each needs one.")
            raise ValueError(
                f"inputs disagree on the number of examples, their first dimension: {describe_shapes(batch)}."
            )
        check_finite(inputs)
        self._batch, self._length, self._has_items = batch, lengths.pop() or 0, has_items

    def __len__(self) -> int:
        return self._length

    def fetch(self, indices: Sequence[int]) -> Tree:
        rows = take(self._batch, torch.as_tensor(indices, device="cpu"))
        return rows if self._has_items else (rows,)


class DataSet:
    """Examples of a map-style data set, each read when it is drawn."""

    def __init__(self, items: Any, labeled: bool, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self._items, self._labeled, self._collate = items, labeled, collate

    def __len__(self) -> int:
        return len(self._items)

    def open_collate(self, indices: Sequence[int]) -> Callable[[Iterable[int]], Tree] | None:
        """Return what collates some of these examples, by their places among the indices; None without a collate_fn."""
        collate = self._collate
        if collate is None or collate is data.default_collate:
            return None
        items = [self._items[int(index)] for index in indices]
        return lambda places: split_labels(_read_item(collate([items[place] for place in places]), self._labeled))[0]

    def fetch(self, indices: Sequence[int]) -> Tree:
        items = [self._items[int(index)] for index in indices]
        if self._collate is None:
            if missing := [index for index, item in zip(indices, items, strict=True) if item is None]:
                raise TypeError(f"inputs[{missing[0]}] is None: an item of the data set is missing.")
            batch = _join([_read_item(item, self._labeled) for item in items], _stack, self._labeled)
        else:
            try:
                collated = self._collate(items)
            except TypeError:
                _refuse_pillow(items[0])
                raise
            except RuntimeError as error:
                problem = f"the loader cannot make one batch of {len(items)} drawn examples: {error}."
                raise ValueError(f"{problem} {_ONE_SHAPE}") from error
            batch = _read_item(collated, self._labeled)
        inputs = split_labels(batch)[0]
        _check_storage(batch if self._labeled else inputs)
        check_finite(inputs, indices)
        return batch


class ReadOnce(DataSet):
    """Examples of a data set that stay in memory once they were read, while there is room: decoding may be slow."""

    def __init__(self, examples: DataSet) -> None:
        super().__init__(examples._items, examples._labeled, examples._collate)
        self._memo = Memo()

    def fetch(self, indices: Sequence[int]) -> Tree:
        return self._memo.get(tuple(indices), partial(super().fetch, indices))


def _check_storage(batch: Tree) -> None:
    for name, leaf in named_tensors(batch):
        check_plain(entry("inputs", name), leaf)


def check_finite(inputs: Tree, indices: Sequence[int] | None = None) -> None:
    """Raise, naming the example, if inputs are NaN or infinite; ``indices`` are those of the rows in the data set."""
    for name, leaf in named_tensors(inputs):
        if not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        rows = max(1, _CHECKED_AT_ONCE * len(leaf) // max(1, leaf.numel()))
        broken = torch.cat([find_broken(part, name) for part in torch.split(leaf, rows)]).nonzero().flatten().tolist()
        if broken:
            first = broken[0] if indices is None or len(indices) != len(leaf) else indices[broken[0]]
            more = f" (and in {len(broken) - 1} more of the {len(leaf)} that were read)" if len(broken) > 1 else ""
            raise ValueError(
                f"the data are NaN or infinite: {entry('inputs', name)} in example {first}{more}. Repair such examples "
                "or leave them out, for example inputs[inputs.isfinite().flatten(1).all(1)]."
            )


def find_broken(rows: Tensor, name: str) -> Tensor:
    """Return which rows are NaN or infinite."""
    # A mask that is added to attention scores is -inf where it hides.
    broken = rows.isnan() | (rows == torch.inf) if "mask" in name else ~rows.isfinite()
    return broken.flatten(1).any(1) if broken.dim() > 1 else broken


@contextmanager
def _seed_generators(loader: data.DataLoader[Any]) -> Iterator[None]:
    """Let the generators of a loader and its sampler follow torch's, which is seeded; restore them afterwards."""
    owners = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    found = {id(each): each for each in (getattr(owner, "generator", None) for owner in owners)}
    generators = [each for each in found.values() if isinstance(each, torch.Generator)]
    states = [each.get_state() for each in generators]
    for each in generators:
        each.manual_seed(int(torch.randint(2**62, (), device="cpu")))
    try:
        yield
    finally:
        for each, state in zip(generators, states, strict=True):
            each.set_state(state)


def reads_all(loader: data.DataLoader[Any]) -> bool:
    """Return whether a loader reads every example of its data set once, over all processes if there are several."""
    batches, sampler = loader.batch_sampler, loader.sampler
    if type(batches) is not data.BatchSampler or batches.sampler is not sampler:
        return False
    # A subclass may leave examples out, or put them into an order of its own.
    if type(sampler) is data.RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    if type(sampler) is data.SequentialSampler:
        return len(sampler) == len(loader.dataset)  # type: ignore[arg-type]
    return type(sampler) is data.DistributedSampler


def keeps_order(inputs: Any) -> bool:
    """Return whether examples have the order of their data set: not with a loader whose sampler has its own."""
    loaded = isinstance(inputs, data.DataLoader) and not isinstance(inputs.dataset, data.IterableDataset)
    return not loaded or reads_all(inputs)


def _from_list(items: list[Any], labeled: bool) -> Examples:
    """Read a list whose entries are certainly single examples; raise, with what to write instead, for any other."""
    if not items:
        raise ValueError("inputs are empty: a list without entries.")
    if all(map(_has_one_label, items)):
        return DataSet(items, labeled)
    first, last = items[0], items[-1]
    _refuse_pillow(first)
    if isinstance(first, str):
        raise TypeError(
            "inputs are a list of strings. Pass what the model is called with, such as a tokenizer's output, or give "
            "measure the tokenizer too: tokenizer=…."
        )
    number = first
    while isinstance(number, list) and number:
        number = number[0]
    if isinstance(number, int | float | np.generic):
        raise TypeError("inputs are a list of numbers. Write torch.tensor(inputs).")
    kind, one, many = f"entries of type {type(first).__name__}", "torch.utils.data.DataLoader(inputs)", "iter(inputs)"
    if isinstance(first, Tensor | np.ndarray):
        kind = f"{type(first).__name__}s, the first of shape {tuple(first.shape)},"
        if isinstance(last, type(first)) and first.ndim != last.ndim:
            raise TypeError(
                f"inputs are a list of {len(items)} {kind} the last of shape {tuple(last.shape)}. If they are inputs "
                "and labels, pass the inputs alone; pass several arguments of the model as a tuple."
            )
        names = ("torch.stack", "torch.cat") if isinstance(first, Tensor) else ("np.stack", "np.concatenate")
        one, many = (f"{name}(inputs)" for name in names)
    raise TypeError(
        f"inputs are a list of {len(items)} {kind} which may be single examples or batches. Write {one} if each is one "
        f"example, {many} if each is a batch of them."
    )


def _has_one_label(item: Any) -> bool:
    """Return whether an item is a single example, as a single label shows."""
    pair = is_plain_tuple(item) and len(item) > 1
    if not isinstance(item, Mapping) and (not pair or isinstance(item[0], int | float | np.generic)):
        return False
    label = split_labels(item)[1]
    return isinstance(label, int | float | str | np.generic) or getattr(label, "ndim", None) == 0


def _check_batch(item: Any) -> Any:
    """Return an item that may be a batch; raise if it is a single example."""
    if _has_one_label(item):
        raise ValueError(
            "inputs are an iterator of items with a single label or number each, as single examples have, but an "
            "iterator is read as batches. Write list(inputs) if each item is one example; if each is a batch, leave "
            "the number out: (item[0] for item in inputs)."
        )
    return item


def _from_batches(batches: Iterable[Any], labeled: bool) -> Examples:
    def count(batch: Tree) -> int:
        return max((len(tensor) for tensor in tensors(batch) if tensor.dim()), default=1)

    read = _read(batches, labeled, count, "itertools.islice(inputs, 10)")
    try:
        joined = _join(read, concatenate, labeled)
    except (RuntimeError, ValueError, KeyError) as error:
        shapes = sorted({describe_shapes(batch) for batch in read})
        problem = f"inputs are batches that do not fit together: {' and '.join(shapes[:3])}."
        raise ValueError(f"{problem} {_ONE_SHAPE}") from error
    return Batch(joined, has_items=True)


def _read(items: Iterable[Any], labeled: bool, count: Callable[[Tree], int], advice: str) -> list[Tree]:
    """Read an iterable to its end; raise if it is too long."""
    read, examples, size = [], 0, 0
    for item in items:
        # A copy: some loaders write every batch into the same memory.
        tree = map_tensors(Tensor.clone, _read_item(item, labeled))
        read.append(tree)
        examples += count(tree)
        size += sum(tensor.nbytes for tensor in tensors(tree))
        if examples > MOST_EXAMPLES or size > MOST_BYTES:
            raise ValueError(
                f"inputs go on after {examples:,} examples ({size / 2**30:.2g} GiB) and may never end; an iterable is "
                f"read into memory. Pass a part of it, such as {advice}, or a map-style Dataset, from which only the "
                "drawn examples are read."
            )
    if not read:
        raise ValueError("inputs are empty: the iterable has no items.")
    return read


def _stack(examples: list[Tree]) -> Tree:
    def stack(*leaves: Tensor) -> Tensor:
        shapes = sorted({tuple(leaf.shape) for leaf in leaves})
        if len(shapes) > 1:
            raise ValueError(f"examples have unequal shapes, {' and '.join(map(str, shapes[:3]))}. {_ONE_SHAPE}")
        return torch.stack(leaves)

    return map_tensors(stack, *examples)


def _join(items: list[Tree], join: Callable[[list[Tree]], Tree], labeled: bool) -> Tree:
    """Join items or batches; what follows the inputs becomes None where it cannot be joined, unless it must be."""
    if labeled or not all(is_plain_tuple(item) and len(item) == len(items[0]) > 1 for item in items):
        return join(items)
    inputs, *rest = zip(*items, strict=True)
    joined = join(list(inputs))
    count = next((len(leaf) for leaf in tensors(joined) if leaf.dim()), 0)

    def try_join(entries: tuple[Tree, ...]) -> Tree:
        try:
            batch = join(list(entries))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError):  # such as boxes in images
            return None
        return batch if all(has_rows(leaf, count) for leaf in tensors(batch)) else None

    return joined, *map(try_join, rest)


def is_plain_tuple(item: Any) -> TypeGuard[Sequence[Any]]:
    """Return whether an item has entries by position alone: a tuple or list without names."""
    # torch.compile of torch 2.6 cannot trace tuple | list.
    return isinstance(item, (tuple, list)) and not hasattr(item, "_fields")


def split_labels(item: Any) -> tuple[Any, Any]:
    """Return the first entry of a tuple and the second, or a mapping without labels and these, whatever the model."""
    if is_plain_tuple(item):
        return item[0], item[1] if len(item) > 1 else None
    if not isinstance(item, Mapping):
        return item, None
    labels = next((item[name] for name in item if name in LABELS), None)
    return {name: item[name] for name in item if name not in LABELS}, labels


def _read_item(item: Any, labeled: bool) -> Tree:
    """Return the tensors of an item or a batch; labels are left out of a mapping unless they are needed."""
    if not is_plain_tuple(item):
        return _as_tensors(item if labeled else split_labels(item)[0])
    if not item:
        raise ValueError("inputs hold an empty item: expected examples, or (examples, labels).")
    return _as_tensors(item[0]), *map(_as_tensors if labeled else _try_as_tensors, item[1:])


def _try_as_tensors(labels: Tree) -> Tree:
    """Convert what follows the inputs, or return None where that is not possible, such as for words."""
    try:
        return _as_tensors(labels)
    except (TypeError, ValueError, RuntimeError):
        return None


def _as_tensors(tree: Tree) -> Tree:
    """Convert arrays, numbers and lists of numbers to tensors; other leaves stay."""
    if isinstance(tree, Mapping):
        return {key: _as_tensors(value) for key, value in tree.items()}
    if isinstance(tree, list) and tree and isinstance(tree[0], int | float | list):
        try:
            return torch.as_tensor(tree, device="cpu")
        except ValueError as error:
            raise ValueError(f"inputs hold lists of unequal length: {error}. Pad text to one length.") from error

    _refuse_pillow(tree)

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return _from_numpy(leaf)
        return torch.as_tensor(leaf, device="cpu") if isinstance(leaf, np.generic | int | float) else leaf

    return tree_map(convert, tree)


def _refuse_pillow(tree: Tree) -> None:
    if any(type(leaf).__module__.partition(".")[0] == "PIL" for _, leaf in named_leaves(tree)):
        raise TypeError(
            "inputs are images of Pillow, not tensors. Convert each: torch.from_numpy(numpy.array("
            "image.convert('RGB'))).permute(2, 0, 1) / 255, or give the data set "
            "transform=torchvision.transforms.ToTensor()."
        )


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"inputs are a masked array of numpy, of shape {array.shape}, and a tensor has no mask. Write what the "
            "model should see in place of masked values, x.filled(0.0); for a single array of one dimension, "
            "x.compressed() leaves them out."
        )
    return torch.as_tensor(array, device="cpu")


def describe_shapes(tree: Tree) -> str:
    """List the shapes of some tensors, with their names."""
    described = [
        f"{name + ' ' if name else ''}{tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf).__name__}"
        for name, leaf in named_leaves(tree)
    ]
    more = f" and {len(described) - 6} more" if len(described) > 6 else ""
    return ", ".join(described[:6]) + more or "nothing"


def check_channels_first(images: Tensor) -> None:
    """Raise if images seem to have their channels last, where height and width are expected."""
    if images.dim() == 4 and images.shape[-1] in _CHANNELS and images.shape[1] not in _CHANNELS:
        raise TypeError(
            f"images of shape {tuple(images.shape[1:])} have their channels last. Write x.permute(0, 3, 1, 2)."
        )


def as_arguments(inputs: Tree, **more: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments for a model: a mapping becomes keywords, a tuple or list arguments, anything else one."""
    if isinstance(inputs, Mapping):
        if twice := sorted(set(inputs) & set(more)):
            raise TypeError(f"{', '.join(twice)}: given both in x and as keywords.")
        return (), {**inputs, **more}
    return tuple(inputs) if is_plain_tuple(inputs) else (inputs,), more


def count_examples(x: Tree, what: str = "x") -> int:
    """Count the examples of a batch: the rows of its first tensor that has any."""
    for tensor in tensors(x):
        if tensor.dim() > 0 and tensor.size(0) > 0:
            return tensor.size(0)
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors(x))
    raise TypeError(
        f"{what} holds no examples: it has {f'tensors of shape {shapes}' if shapes else 'no tensor'}. A batch is a "
        "tensor, or a tuple or mapping of tensors, with the examples in the first dimension."
    )


def examples_only(x: Tree, count: int) -> Tree:
    """Return a batch with None in the place of what does not have one row per example."""
    return tree_map(lambda leaf: leaf if has_rows(leaf, count) else None, x)
