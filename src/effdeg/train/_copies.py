"""Changed copies of the examples of a batch, to which paths may lead instead of to other examples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.partners import GENERATOR, check_alike, check_finite, draw, warn_of_mixed_rows
from effdeg._utils.tree import Tree, has_rows, map_tensors, tensors

Change = Callable[[Any], Any]
"""A function of a batch, such as those of :mod:`effdeg.changes`, that returns one of the same form."""


def make_copies(
    examples: Tree,
    changes: Sequence[Change],
    count: int,
    generator: torch.Generator | None,
    option: str = "partners",
    *,
    first: bool = False,
    look: bool = False,
) -> Tree:
    """Return a changed copy of each of ``count`` examples in training; of several changes, one is drawn for each.

    With ``look``, which waits for a GPU, copies are checked for NaN; in the ``first`` call, whether one depends on
    other examples. Every change is made to all examples, so that no shape depends on what was drawn, for CUDA graphs.
    """
    token = GENERATOR.set(generator) if generator is not None else None
    try:
        # Of copies: the function may work in place.
        changed = [change(map_tensors(Tensor.clone, examples)) for change in changes]
        for copies in changed:
            check_alike(examples, copies, f"function of {option}=")
            if look:
                check_finite(copies, f"function of {option}=")
        chosen = (draw(tensors(examples)[0].device, count) * len(changes)).long() if len(changes) > 1 else None
    finally:
        if token is not None:
            GENERATOR.reset(token)
    for change in changes if first and look else ():
        warn_of_mixed_rows(change, examples, count, option)
    if chosen is None:
        return changed[0]

    def choose(*leaves: Tensor) -> Tensor:
        result = leaves[0]
        for number, leaf in enumerate(leaves[1:], start=1):
            if has_rows(leaf, count):
                mine = (chosen == number).to(leaf.device).view(-1, *[1] * (leaf.dim() - 1))
                result = torch.where(mine, leaf, result)
        return result

    return map_tensors(choose, *changed)
