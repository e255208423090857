"""Add the points of paths to the calls of a model inside a framework's training loop."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._utils.checks import check_number
from effdeg._utils.tree import Tree, tensors
from effdeg.train._penalty import Penalty
from effdeg.train._schedules import Schedule

_COMPARED = 4
"""Rows that are looked for among the others of a batch."""

_TELLING = 4
"""Numbers in a row that tell it from others."""


def check_parts(penalty: object, **functions: object) -> None:
    """Raise unless the penalty is one, and the functions can be called or are None."""
    if not isinstance(penalty, Penalty):
        raise TypeError(f"penalty={penalty!r} must be a penalty, such as effdeg.Penalty(anchor='labels').")
    for name, function in functions.items():
        if function is not None and (not callable(function) or isinstance(function, type)):
            raise TypeError(f"{name}={function!r} must be a function or None.")


def weight_at(schedule: Schedule, step: int) -> Any:
    """Return the weight at a step; raise unless it is a tensor, or a number that is zero or positive."""
    weight = schedule(step)
    if not isinstance(weight, Tensor):
        check_number(f"weight({step})", weight, "it is how much the penalty counts", zero=True)
    return weight


@contextmanager
def replace_attribute(owner: object, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute on this one object; afterwards restore the object's own, or its class's."""
    had, own = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, own)
        else:
            delattr(owner, name)


@contextmanager
def join_calls(
    model: nn.Module,
    penalty: Penalty,
    labels: Tensor | None,
    *,
    batch: Any = None,
    unlabeled: Tree = None,
    teacher: Callable[..., Any] | None = None,
) -> Iterator[list[Tensor]]:
    """Let calls of the model run the points too; they return what they always do, and the list collects the degrees.

    ``forward`` is replaced on this one object, below its hooks: wrappers such as DDP, FSDP and mixed precision work.
    Calls without gradients are left as they are. Unlabeled examples and a teacher are as in a call of the penalty.
    ``batch`` is what the labels are of: the model must get its examples in the same order.

    Raises:
        ValueError: If labels are to be anchored and a batch has none.
    """
    if labels is None and penalty.settings.anchor == "labels":
        raise ValueError(
            "anchor='labels' puts labels at the outer nodes of each path, but the batch has none: a Trainer needs an "
            "entry 'labels', a PenaltyCallback labels=lambda batch: …. Or use Penalty(anchor='self') or anchor=None."
        )
    degrees: list[Tensor] = []
    run = model.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        if not torch.is_grad_enabled():  # for a metric, say
            return run(*arguments, **keywords)
        if penalty.settings.anchor == "labels":
            _check_order(batch, (arguments, keywords), lambda leaf: penalty._may_look(leaf, model))
        outputs, degree = penalty.joined(run, model, arguments, keywords, labels, unlabeled=unlabeled, teacher=teacher)
        degrees.append(degree)
        return outputs

    with replace_attribute(model, "forward", forward):
        yield degrees


def _check_order(batch: Any, call: Tree, may_look: Callable[[Tensor], bool]) -> None:
    """Raise if a model gets the examples of a batch in another order than that of its labels; warn if none is known."""
    known = False
    for leaf in tensors(call):
        form = leaf.shape, leaf.dtype, leaf.device
        alike = [own for own in tensors(batch) if (own.shape, own.dtype, own.device) == form]
        # The tensor of the batch itself need not be read.
        itself = any(own.data_ptr() == leaf.data_ptr() for own in alike) or not may_look(leaf)
        if itself or any(torch.equal(own, leaf) for own in alike):
            known = True
        elif any(_is_permuted(own, leaf) for own in alike):
            raise ValueError(
                "the model got the examples of the batch in another order than that of the labels, so that those at "
                "the ends of a path would not be its examples'. Keep the order, or use effdeg.Penalty in the training "
                "step itself."
            )
    if not known:
        warnings.warn(
            "the training step changes examples before the model gets them, so that it could not be checked whether "
            "they are in the order of their labels. If it permutes or mixes them, use effdeg.Penalty in the step "
            "itself.",
            stacklevel=2,
        )


def _is_permuted(own: Tensor, other: Tensor) -> bool:
    """Return whether rows that differ are other rows of the same batch; few numbers may be equal by chance."""
    if own.dim() < 2 or own[0].numel() < _TELLING:
        return False
    rows, moved = own.flatten(1), other.flatten(1)
    moved = moved[(rows != moved).any(1)][:_COMPARED]
    return len(moved) > 0 and all(bool((rows == row).all(1).any()) for row in moved)


def get_only(degrees: list[Tensor], what: str) -> Tensor:
    """Return the effective degree of the one call that there should have been."""
    if len(degrees) != 1:
        advice = "Use effdeg.Penalty in the step itself." if degrees else "Name the module that is called, model='…'."
        raise RuntimeError(f"{what} was called {len(degrees)} times in one training step, not once. {advice}")
    return degrees[0]
