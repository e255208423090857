"""Trees of tensors: a tensor, or tuples, lists, dicts and dataclasses of trees."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""A tensor, or a tuple, list, mapping or dataclass whose entries are trees. Other objects are opaque leaves."""


def tree_map(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply a function to corresponding leaves of trees of one structure and keep the structure of the first."""
    return named_map(lambda _, *leaves: function(*leaves), tree, *rest)


def map_tensors(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply a function to corresponding tensors of trees of one structure; other leaves stay those of the first."""
    return tree_map(lambda *leaves: function(*leaves) if isinstance(leaves[0], Tensor) else leaves[0], tree, *rest)


def named_map(function: Callable[..., Any], tree: Tree, *rest: Tree, name: str = "") -> Tree:
    """Apply a function as :func:`tree_map` does, but also pass it the name of the innermost entry, if it has one."""
    if isinstance(tree, Mapping):
        mapped = {key: named_map(function, tree[key], *(other[key] for other in rest), name=str(key)) for key in tree}
        # A mapping that is a dataclass too is built from keywords.
        build: Any = type(tree)
        if hasattr(build, "__dataclass_fields__"):
            return build(**mapped)
        return OrderedDict(mapped) if build is OrderedDict else mapped
    if isinstance(tree, (tuple, list)):
        entries = [named_map(function, *entry, name=name) for entry in zip(tree, *rest, strict=True)]
        return type(tree)(*entries) if hasattr(tree, "_fields") else type(tree)(entries)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        changes = {
            field.name: named_map(function, *(getattr(each, field.name) for each in (tree, *rest)), name=field.name)
            for field in dataclasses.fields(tree)
            if field.init
        }
        return dataclasses.replace(tree, **changes)
    return function(name, tree, *rest)


def named_leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """Walk the leaves of a tree with the names that lead to them, such as ``tokens.input_ids`` or ``[0]``."""
    entries: list[tuple[str, Any]]
    if isinstance(tree, Mapping):
        entries = [(f"{name}.{key}" if name else str(key), tree[key]) for key in tree]
    elif isinstance(tree, (tuple, list)):
        entries = [(f"{name}[{index}]", entry) for index, entry in enumerate(tree)]
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = dataclasses.fields(tree)
        entries = [(f"{name}.{field.name}" if name else field.name, getattr(tree, field.name)) for field in fields]
    else:
        yield name, tree
        return
    for label, entry in entries:
        yield from named_leaves(entry, label)


def named_tensors(tree: Tree) -> list[tuple[str, Tensor]]:
    """List the tensors of a tree with the names that lead to them."""
    return [(name, leaf) for name, leaf in named_leaves(tree) if isinstance(leaf, Tensor)]


def tensors(tree: Tree) -> list[Tensor]:
    """List the tensors of a tree."""
    return [tensor for _, tensor in named_tensors(tree)]


def entry(whole: str, name: str) -> str:
    """Name an entry of a tree for a message: ``inputs ('mask')``, or just ``inputs`` for the tree itself."""
    return f"{whole} ({name!r})" if name else whole


def has_rows(leaf: Any, count: int) -> bool:
    """Return whether a leaf is a tensor with this many rows."""
    # Not by its shape, which a nested tensor does not have.
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.size(0) == count


def check_plain(what: str, tensor: Tensor) -> None:
    """Raise unless a tensor holds one number after another, in a precision that can be computed with."""
    check_dense(what, tensor)
    if tensor.is_meta:
        raise ValueError(f"{what} are on the meta device, where tensors have no values. Load the data first.")
    if tensor.is_floating_point() and tensor.dtype.itemsize < 2:
        raise TypeError(f"{what} are in {tensor.dtype}, in which torch stores numbers only. Convert them: .float().")


def check_dense(what: str, tensor: Tensor) -> None:
    """Raise if a tensor is nested or sparse, and has no rows to take."""
    if tensor.is_nested:
        raise TypeError(f"{what} are nested tensors. Pad them: torch.nested.to_padded_tensor(x, 0.0).")
    if tensor.layout != torch.strided:
        raise TypeError(f"{what} are sparse ({tensor.layout}), which is not supported. Write x.to_dense().")


def take(tree: Tree, indices: Tensor | slice) -> Tree:
    """Take rows of every tensor of a tree."""
    return map_tensors(lambda leaf: leaf[indices if isinstance(indices, slice) else indices.to(leaf.device)], tree)


def concatenate(trees: list[Tree]) -> Tree:
    """Join batches of one structure along their first dimension."""
    if len(trees) == 1:
        return trees[0]
    return map_tensors(lambda *leaves: torch.cat(leaves), *trees)
