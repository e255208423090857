"""The points on paths between the examples of a batch."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.examples import describe_shapes
from effdeg._adapters.partners import make_copies, read_changes
from effdeg._adapters.paths import interpolate
from effdeg._utils.device import is_traced
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, check_dense, has_rows, take, tensors, tree_map
from effdeg.train._batch import TrainingBatch
from effdeg.train._settings import PenaltySettings


@dataclass(frozen=True, eq=False)
class Points:
    """Points on paths between the examples of a batch. :meth:`effdeg.Penalty.points` returns them.

    Attributes:
        inputs: What to append to the batch: the unlabeled examples, if any, and the points, path after path and node
            after node. For paths at a layer these are placeholders, replaced at the layer's output: the inputs of each
            path's first example, or of its changed copy, with the masks of both ends combined.
        pairs: The examples that each path joins; α = 1 at the first, 0 at the second. Paths between unlabeled examples
            come last; their indices start at ``batch``. An example is its own partner if the path leads to its copy.
        alpha: The nodes of each path.
        inner: The nodes that are points: all, or all but the outer two, whose values are labels or the batch's outputs.
        labels: The labels of the two examples of each path in the batch if labels are anchored, else None.
        batch: The number of examples in the batch.
        unlabeled: The number of unlabeled examples.
        unlabeled_rows: How many of these are rows of the joined batch: all, or none if a teacher runs on them instead.
        has_copies: Whether the placeholders are the changed copies to which paths at a layer lead.

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
    unlabeled: int = 0
    unlabeled_rows: int = 0
    has_copies: bool = False

    def __len__(self) -> int:
        """Count the points."""
        return self.alpha[:, self.inner].numel()

    @property
    def total(self) -> int:
        """The number of rows of the joined batch."""
        return self.examples + len(self)

    @property
    def examples(self) -> int:
        """The number of examples that are run, those of the batch and the unlabeled ones."""
        return self.batch + self.unlabeled_rows

    def append_to(self, x: Tree) -> Tree:
        """Join the batch, the unlabeled examples and the points, in this order."""

        def join(own: Any, other: Any) -> Any:
            return torch.cat([own, other]) if has_rows(own, self.batch) else own

        return tree_map(join, x, self.inputs)

    def interpolate(self, x: Tree) -> Tree:
        """Return the points of these paths for any tensors of the examples, such as a layer's output for them.

        For paths at a layer that lead to changed copies, ``x`` is the layer's output for the whole joined batch, which
        holds these copies. Otherwise a copy has what its example has, such as its label.

        Raises:
            ValueError: If the copies are not among the rows.
        """
        first, second = (take(x, end) for end in self.pairs.unbind(1))
        if self.has_copies:
            if not all(has_rows(leaf, self.total) for leaf in tensors(x)):
                raise ValueError(
                    f"these paths lead to changed copies, so interpolate needs the layer's output for all {self.total} "
                    f"rows of points.append_to(x), not {describe_shapes(x)}."
                )
            second = take(x, slice(self.examples, None, len(self) // len(self.pairs)))
        return interpolate(first, second, self.alpha[:, self.inner])

    def first_rows(self, returned: Any) -> Any:
        """Return what a model returned for the joined batch, without the rows of unlabeled examples and points.

        Raises:
            ValueError: If no tensor has one row per example and point.
        """
        found = False

        def cut(leaf: Any) -> Any:
            nonlocal found
            if isinstance(leaf, Tensor):
                check_dense("the model's outputs", leaf)
            if not has_rows(leaf, self.total):
                return leaf
            found = True
            return leaf[: self.batch]

        own = tree_map(cut, returned)
        if not found:
            raise ValueError(
                f"the model returned {describe_shapes(returned)} for {self.examples} examples and {len(self)} points: "
                f"there is no tensor of {self.total} rows, so its outputs cannot be told apart from the points'. "
                "A model must return one row per example; compute the loss from what penalty(model, x, y) returns."
            )
        return own


def draw_points(
    batch: TrainingBatch,
    settings: PenaltySettings,
    *,
    between: bool,
    unlabeled_rows: int,
    pairs: Tensor | None = None,
    alpha: Tensor | None = None,
    first: bool = False,
    look: bool = False,
) -> Points:
    """Draw what is not given of the paths between examples, and make their points, or placeholders for them."""
    device = tensors(batch.inputs)[0].device
    given_pairs, given_alpha = pairs is not None, alpha is not None
    pairs = torch.as_tensor(pairs if given_pairs else settings.draw_pairs(batch.labeled, device), device=device)
    labeled = len(pairs)
    if batch.unlabeled:
        pairs = torch.cat([pairs, settings.draw_pairs(batch.unlabeled, device) + batch.labeled])
    alpha = torch.as_tensor(alpha if given_alpha else settings.draw_alpha(len(pairs), device), device=device)
    if pairs.dim() != 2 or pairs.shape[1] != 2 or alpha.shape != (len(pairs), settings.nodes):
        raise ValueError(
            f"pairs of shape {tuple(pairs.shape)} and alpha of shape {tuple(alpha.shape)} were given; n pairs of 2 "
            f"examples and n paths of {settings.nodes} nodes were expected."
        )
    # Not on a GPU: that would wait for it.
    if not pairs.is_cuda and not is_traced():
        if given_pairs:
            _check_pairs(pairs, batch.size)
        if given_alpha:
            _check_alpha(alpha, settings)
    inner, labels, copies = settings.inner, None, None
    if settings.partners is not None:
        changes, generator, count = read_changes(settings.partners), settings.generator, len(pairs)
        make = partial(make_copies, changes=changes, count=count, generator=generator, first=first, look=look)
        copies = batch.change(pairs[:, 0], make)
    if settings.anchor == "labels":
        labels = batch.labels[pairs[:labeled].to(batch.labels.device)].to(device)
    return Points(
        inputs=batch.points(pairs, alpha[:, inner], between=between, unlabeled_rows=unlabeled_rows, copies=copies),
        pairs=pairs,
        alpha=alpha,
        inner=inner,
        labels=labels,
        batch=batch.labeled,
        unlabeled=batch.unlabeled,
        unlabeled_rows=unlabeled_rows,
        has_copies=copies is not None and not between,
    )


def _check_pairs(pairs: Tensor, batch: int) -> None:
    integers = not pairs.is_floating_point() and pairs.dtype not in (torch.bool, torch.uint8)
    if not integers or bool((pairs < 0).any() or (pairs >= batch).any()):
        raise ValueError(
            f"pairs must hold indices of the batch's examples, integers from 0 to {batch - 1}; they are {pairs.dtype} "
            f"from {pairs.min()} to {pairs.max()}."
        )


def _check_alpha(alpha: Tensor, settings: PenaltySettings) -> None:
    """Raise unless the user's nodes are on the path, in ascending order, and reach the ends where they must."""
    if not bool((alpha.diff() >= 0).all() and (alpha >= 0).all() and (alpha <= 1).all()):
        raise ValueError("alpha must hold ascending positions in [0, 1] on every path.")
    if settings.reaches_ends and bool((alpha[:, 0] != 0).any() or (alpha[:, -1] != 1).any()):
        raise ValueError("alpha must begin with 0 and end with 1, where labels or the batch's outputs are the values.")
