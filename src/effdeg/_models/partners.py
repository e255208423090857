"""Where paths lead: to another example, or to an example's changed copy or counterpart in a second data set."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from effdeg._models.arguments import ItemReader
from effdeg._models.examples import as_examples, describe_shapes
from effdeg._models.inference import seed_everything
from effdeg._utils.tree import Tree, map_tensors, named_tensors, take, tensors

GENERATOR: ContextVar[torch.Generator | None] = ContextVar("GENERATOR", default=None)
"""What random changes draw from in this thread; None for torch's global generator, which all threads share."""


class Partners:
    """The second end of each path, for given first ends.

    ``partners`` are a function of a batch, several (one is drawn for each path), or a second data set, whose examples
    belong to those of the same index.
    """

    def __init__(self, partners: Any, examples: int, read_item: ItemReader) -> None:
        self._changes, self._others, self._read_item = _read_changes(partners), None, read_item
        if not self._changes:
            with _naming_partners():
                self._others = as_examples(partners)
            if len(self._others) != examples:
                raise ValueError(
                    f"partners= are {len(self._others)} examples, but inputs hold {examples}: each needs its own."
                )

    def fetch(self, first: Tree, indices: Sequence[int], *, seed: int, block: int) -> Tree:
        """Return the partners of a block's examples; random changes depend on the seed and the block alone."""
        if self._others is not None:
            with _naming_partners():
                second = self._read_item(self._others.fetch(indices)).inputs
        else:
            drawn = int(np.random.SeedSequence([seed, 0, block]).generate_state(1, np.uint64)[0]) >> 1
            token = GENERATOR.set(torch.Generator().manual_seed(drawn))
            try:
                with seed_everything(drawn), torch.no_grad():  # a function of the user's may draw as it likes
                    second = self._change(first, len(indices))
            finally:
                GENERATOR.reset(token)
        _check_alike(first, second, "data set" if self._others is not None else "function")
        return second

    def _change(self, first: Tree, count: int) -> Tree:
        changed = []
        chosen = torch.randint(len(self._changes), (count,), generator=GENERATOR.get())
        for number, change in enumerate(self._changes):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                # A copy: the function may work in place.
                part = change(map_tensors(Tensor.clone, take(first, rows)))
                _check_alike(take(first, rows), part, "function")
                changed.append((rows, part))
        order = torch.cat([rows for rows, _ in changed]).argsort()
        return take(map_tensors(lambda *parts: torch.cat(parts), *(part for _, part in changed)), order)


@contextmanager
def _naming_partners() -> Iterator[None]:
    """Add a note to errors in reading a second data set, which call it inputs."""
    try:
        yield
    except Exception as error:
        error.add_note(
            "The inputs that this is about are partners=, which are a function of a batch, a list of them, or a second "
            "data set."
        )
        raise


def _read_changes(partners: Any) -> list[Callable[[Any], Any]]:
    """Return the functions that partners are, or none if they are examples."""
    if callable(partners):
        return [partners]
    several = isinstance(partners, list | tuple) and len(partners) > 0 and all(map(callable, partners))
    return list(partners) if several else []


def name_partners(partners: Any) -> str | None:
    """Return what a measurement records of its partners."""
    if partners is None:
        return None
    changes = _read_changes(partners)
    return " or ".join(map(name_change, changes)) if changes else "a second data set"


def name_change(change: Any) -> str:
    """Return a name for a function of a batch."""
    return str(getattr(change, "name", None) or getattr(change, "__name__", type(change).__name__))


def _check_alike(first: Tree, second: Tree, kind: str) -> None:
    """Raise unless the two ends of paths have tensors of the same names, shapes and types, and finite ones."""
    one, other = ([(name, leaf.shape, leaf.dtype) for name, leaf in named_tensors(end)] for end in (first, second))
    if one != other:
        returned, given = (
            " ".join([describe_shapes(end), *sorted({str(leaf.dtype) for leaf in tensors(end)})])
            for end in (second, first)
        )
        raise ValueError(
            f"the {kind} of partners= returned {returned} for {given}: a straight line joins only tensors of one shape "
            "and type. It must return a batch like the one it is given."
        )
    for name, leaf in named_tensors(second):
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            raise ValueError(
                f"the {kind} of partners= returned NaN or infinite numbers{f' in {name!r}' if name else ''}."
            )
