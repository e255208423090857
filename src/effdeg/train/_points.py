"""Points on paths between the examples of a batch, which ride in the batch's own forward pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._models.labels import IGNORED
from effdeg._models.paths import interpolate, join_masks
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, named_map, take, tensors, tree_map


@dataclass(frozen=True, eq=False)
class Points:
    """Points on paths between the examples of a batch.

    Attributes:
        inputs: What to append to the batch: the points, path after path and node after node. For paths at a layer they
            are stand-ins, the inputs of each path's first end with the masks of both ends joined, until the layer.
        pairs: The examples that each path joins; alpha = 1 at the first, 0 at the second.
        alpha: The nodes of each path.
        inner: The nodes that are points. At the others, the outer two of each path, labels or the batch's own outputs
            serve as values.
        labels: The labels of the two examples of each path, or None without anchoring.
        batch: The number of examples in the batch.
    """

    inputs: Tree
    pairs: Int[Tensor, "pairs 2"]
    alpha: Float[Tensor, "pairs nodes"]
    inner: slice
    labels: Tensor | None
    batch: int

    def __len__(self) -> int:
        """Count the points."""
        return self.alpha[:, self.inner].numel()

    @property
    def total(self) -> int:
        """The number of rows of the joined batch."""
        return self.batch + len(self)

    def append_to(self, x: Tree) -> Tree:
        """Join the batch and its points, the batch first."""

        def join(own: Any, other: Any) -> Any:
            return torch.cat([own, other]) if _per_example(own, self.batch) else own

        return tree_map(join, x, self.inputs)

    def interpolate(self, x: Tree) -> Tree:
        """Return the points of these paths for any tensors of the batch, such as a layer's output for it."""
        first, second = (take(x, end) for end in self.pairs.unbind(1))
        return interpolate(first, second, self.alpha[:, self.inner])

    def first_rows(self, returned: Any) -> Any:
        """Return what a model returned for the joined batch less the rows of the points."""
        found = False

        def cut(leaf: Any) -> Any:
            nonlocal found
            if not _per_example(leaf, self.total):
                return leaf
            found = True
            return leaf[: self.batch]

        cut_off = tree_map(cut, returned)
        if not found:
            raise ValueError(
                f"the model returned {_described(returned)} for {self.batch} examples and {len(self)} points: there is "
                f"no tensor of {self.total} rows, so the batch's outputs cannot be told from the points'. A model must "
                "return one row per example; a loss is to be computed from what penalty(model, x, y) returns."
            )
        return cut_off


def count_examples(x: Tree) -> int:
    """Count the examples of a batch: the rows of its first tensor that has any."""
    for tensor in tensors(x):
        if tensor.dim() > 0 and len(tensor) > 0:
            return len(tensor)
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors(x))
    raise TypeError(
        f"x holds no examples: it has {f'tensors of shape {shapes}' if shapes else 'no tensor'}. A batch is a tensor, "
        "or a tuple or mapping of tensors, with the examples in the first dimension."
    )


def examples_only(x: Tree, batch: int) -> Tree:
    """Return a batch with None in place of what is not one row per example: labels of a mapping, shared tensors."""
    kept = {name: leaf for name, leaf in x.items() if name != "labels"} if isinstance(x, Mapping) else x
    return tree_map(lambda leaf: leaf if _per_example(leaf, batch) else None, kept)


def points_of(x: Tree, pairs: Tensor, alpha: Tensor, *, batch: int, between: bool) -> Tree:
    """Make the inputs of points: between the examples, or, for paths that begin at a layer, stand-ins for them.

    Tensors that do not have one row per example are the same for all. ``labels`` in a mapping, which a model may make
    its own loss of, are marked as to be left out.
    """

    def make(name: str, leaf: Any) -> Any:
        if not _per_example(leaf, batch):
            return leaf
        first, second = ({name: leaf[end]} for end in pairs.to(leaf.device).unbind(1))
        if between:
            return interpolate(first, second, alpha)[name]
        return join_masks(first, second)[name].repeat_interleave(alpha.shape[1], dim=0)

    if isinstance(x, Mapping) and _per_example(x.get("labels"), batch):
        rest = {name: leaf for name, leaf in x.items() if name != "labels"}
        labels = x["labels"]
        ignored = torch.full((alpha.numel(), *labels.shape[1:]), IGNORED, device=labels.device)
        return {**named_map(make, rest), "labels": ignored}
    return named_map(make, x)


def _per_example(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows


def _described(tree: Tree) -> str:
    shapes = [str(tuple(tensor.shape)) for tensor in tensors(tree)]
    return f"{type(tree).__name__} with " + (" and ".join(shapes[:3]) if shapes else "no tensor")
