"""Points on paths between the examples of a batch, which ride in the batch's own forward pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._models.examples import has_rows
from effdeg._models.paths import interpolate
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, take, tensors, tree_map


@dataclass(frozen=True, eq=False)
class Points:
    """Points on paths between the examples of a batch, as :meth:`effdeg.Penalty.points` makes them.

    Attributes:
        inputs: What to append to the batch: the points, path after path and node after node. For paths at a layer they
            are stand-ins, the inputs of each path's first end with the masks of both ends joined, until the layer.
        pairs: The examples that each path joins; α = 1 at the first, 0 at the second.
        alpha: The nodes of each path.
        inner: The nodes that are points. At the others, the outer two of each path, the values are labels or the
            batch's own outputs.
        labels: The labels of the two examples of each path, or None without anchoring.
        batch: The number of examples in the batch.

    Example:
        >>> import torch, effdeg
        >>> x = torch.tensor([[0.0, 0.0], [4.0, 8.0]])
        >>> penalty = effdeg.Penalty(nodes=5, degree=2, sampling="uniform")
        >>> points = penalty.points(x, pairs=torch.tensor([[1, 0]]))
        >>> points.inputs  # the batch's own outputs are the values at its ends
        tensor([[1., 2.],
                [2., 4.],
                [3., 6.]])
        >>> len(points), points.total
        (3, 5)
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
            return torch.cat([own, other]) if has_rows(own, self.batch) else own

        return tree_map(join, x, self.inputs)

    def interpolate(self, x: Tree) -> Tree:
        """Return the points of these paths for any tensors of the batch, such as a layer's output for it."""
        first, second = (take(x, end) for end in self.pairs.unbind(1))
        return interpolate(first, second, self.alpha[:, self.inner])

    def first_rows(self, returned: Any) -> Any:
        """Return what a model returned for the joined batch, without the rows of the points.

        Raises:
            ValueError: If no tensor has one row per example and point.
        """
        found = False

        def cut(leaf: Any) -> Any:
            nonlocal found
            if not has_rows(leaf, self.total):
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


def _described(tree: Tree) -> str:
    shapes = [str(tuple(tensor.shape)) for tensor in tensors(tree)]
    return f"{type(tree).__name__} with " + (" and ".join(shapes[:3]) if shapes else "no tensor")
