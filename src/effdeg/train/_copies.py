"""Changed copies of the examples of a batch, to which paths may lead instead of to other examples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.partners import GENERATOR, check_alike, draw
from effdeg._utils.tree import Tree, has_rows, map_tensors, tensors

Change = Callable[[Any], Any]
"""A function of a batch, such as those of :mod:`effdeg.changes`, that returns one of the same form."""


def make_copies(
    examples: Tree, changes: Sequence[Change], count: int, generator: torch.Generator | None, option: str = "partners"
) -> Tree:
    """Return a changed copy of each of ``count`` examples in training; of several changes, one is drawn for each.

    Errors say that the changes were given as ``option``.

    Every change is made to all examples, so that no shape depends on what was drawn: a step can be captured in a graph.

    Raises:
        ValueError: If a change alters names, shapes or types.
    """
    if generator is None:
        return _change_all(examples, changes, count, option)
    token = GENERATOR.set(generator)
    try:
        return _change_all(examples, changes, count, option)
    finally:
        GENERATOR.reset(token)


def _change_all(examples: Tree, changes: Sequence[Change], count: int, option: str) -> Tree:
    # Of copies: the function may work in place.
    first, *others = (change(map_tensors(Tensor.clone, examples)) for change in changes)
    for changed in (first, *others):
        check_alike(examples, changed, f"function of {option}=")
    if not others:
        return first
    chosen = (draw(tensors(examples)[0].device, count) * len(changes)).long()

    def choose(*leaves: Tensor) -> Tensor:
        result = leaves[0]
        for number, leaf in enumerate(leaves[1:], start=1):
            if has_rows(leaf, count):
                mine = (chosen == number).to(leaf.device).view(-1, *[1] * (leaf.dim() - 1))
                result = torch.where(mine, leaf, result)
        return result

    return map_tensors(choose, first, *others)
