"""Where paths lead: to another example, or to an example's changed copy or counterpart in a second data set."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor

from effdeg._adapters.arguments import ItemReader
from effdeg._adapters.examples import as_examples, describe_shapes, find_broken
from effdeg._adapters.independence import find_largest_change
from effdeg._adapters.inference import seed_everything
from effdeg._utils.tree import Tree, has_rows, map_tensors, named_tensors, take, tensors

Change = Callable[[Any], Any]
"""A function of a batch, such as those of :mod:`effdeg.changes`, that returns one of the same form."""

GENERATOR: ContextVar[torch.Generator | None] = ContextVar("GENERATOR", default=None)
"""What random changes draw from in this thread; None for torch's global generator, which all threads share."""


class Partners:
    """The second end of each path, for given first ends: by a function of a batch, by several, or of a second data set.

    Messages call the functions by the ``option`` that they were given as.
    """

    def __init__(self, partners: Any, examples: int, read_item: ItemReader, option: str = "partners") -> None:
        self._changes, self._others, self._read_item = read_changes(partners), None, read_item
        self._option = option
        if not self._changes:
            with _naming_partners():
                self._others = as_examples(partners)
            if len(self._others) != examples:
                raise ValueError(
                    f"partners= are {len(self._others)} examples, but inputs hold {examples}: each needs its own."
                )

    def fetch(self, first: Tree, indices: Sequence[int], *, seed: int, block: int) -> Tree:
        """Return the partners of a block's examples; random changes depend on the seed and the block alone."""
        if self._others is None:
            return change_examples(self._changes, first, len(indices), seed=seed, block=block, option=self._option)
        with _naming_partners():
            second = self._read_item(self._others.fetch(indices)).inputs
        check_alike(first, second, "data set of partners=")
        check_finite(second, "data set of partners=")
        return second


def change_examples(
    changes: Sequence[Change], examples: Tree, count: int, *, seed: int, block: int, option: str
) -> Tree:
    """Return changed copies of a block of examples, each by one of the functions that were given as ``option``."""
    drawn = int(np.random.SeedSequence([seed, 0, block]).generate_state(1, np.uint64)[0]) >> 1
    generator = torch.Generator().manual_seed(drawn)
    changed = []
    with (
        _draw_from(generator),
        seed_everything(drawn),
        torch.no_grad(),
    ):  # a function of the user's may draw as it likes
        chosen = torch.zeros(count, dtype=torch.int64, device="cpu")
        if len(changes) > 1:
            chosen = torch.randint(len(changes), (count,), generator=generator, device="cpu")
        for number, change in enumerate(changes):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                with _explaining(examples, option):
                    part = change(take(examples, rows))  # a copy: the function may work in place
                check_alike(take(examples, rows), part, f"function of {option}=")
                if block == 0:
                    warn_of_mixed_rows(change, take(examples, rows), len(rows), option)
                check_finite(part, f"function of {option}=")
                changed.append((rows, part))
    order = torch.cat([rows for rows, _ in changed]).argsort()
    return take(map_tensors(lambda *parts: torch.cat(parts), *(part for _, part in changed)), order)


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
    with nullcontext() if generator is None else _draw_from(generator):
        # Of copies: the function may work in place.
        changed = [change(map_tensors(Tensor.clone, examples)) for change in changes]
        for copies in changed:
            check_alike(examples, copies, f"function of {option}=")
            if look:
                check_finite(copies, f"function of {option}=")
        chosen = (draw(tensors(examples)[0].device, count) * len(changes)).long() if len(changes) > 1 else None
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


def warn_of_mixed_rows(change: Change, examples: Tree, count: int, option: str) -> None:
    """Warn if the changed copy of an example depends on the other examples of its batch."""

    def run(rows: Tensor) -> Tree:
        def take_rows(leaf: Tensor) -> Tensor:
            return leaf[rows.to(leaf.device)] if has_rows(leaf, count) else leaf.clone()

        return change(map_tensors(take_rows, examples))

    row = find_dependent_row(run, count)
    if row is not None:
        warnings.warn(
            f"the function of {option}= ({name_change(change)}) does not change each example on its own: what it "
            f"returns for example {row} of a batch depends on the others, and so on how examples are divided into "
            "batches. Usual causes: rows that are permuted or mixed, and statistics over the batch.",
            stacklevel=2,
        )


def find_dependent_row(run: Callable[[Tensor], Tree], count: int) -> int | None:
    """Return an example for which a function of a batch returns something that depends on the others, or None.

    ``run`` calls the function on some of ``count`` examples: the first and the last with the others, and with copies of
    themselves in their place. A function that draws from its own generator, or varies in shape, is not judged.
    """
    every = torch.arange(count, device="cpu")

    def run_seeded(rows: Tensor) -> list[Tensor]:
        with _draw_from(torch.Generator().manual_seed(0)), seed_everything(0), torch.no_grad():
            return [leaf.detach().double() for leaf in tensors(run(rows)) if has_rows(leaf, count)]

    def differ(one: list[Tensor], other: list[Tensor], row: int) -> bool:
        return find_largest_change(one, other, every[[row]], every[[row]], torch.finfo(torch.float32).eps) > 0

    for row in (0, count - 1) if count > 1 else ():
        whole, alone = run_seeded(every), run_seeded(torch.full_like(every, row))
        if differ(whole, alone, row) and not differ(whole, run_seeded(every), row):
            return row
    return None


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


@contextmanager
def _draw_from(generator: torch.Generator) -> Iterator[None]:
    token = GENERATOR.set(generator)
    try:
        yield
    finally:
        GENERATOR.reset(token)


def draw(
    device: torch.device, *shape: int, by: Callable[..., Tensor] = torch.rand, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Draw random numbers on a device; by the generator of this thread, if there is one, the same on every device."""
    generator = None if torch.compiler.is_compiling() else GENERATOR.get()  # which torch.compile cannot follow
    if generator is None:
        return by(shape, device=device, dtype=dtype)
    return by(shape, generator=generator, device=generator.device, dtype=dtype).to(device)


def read_changes(partners: Any) -> list[Change]:
    """Return the functions that partners are, or none if they are examples."""
    if callable(partners):
        return [partners]
    several = isinstance(partners, (list, tuple)) and len(partners) > 0 and all(map(callable, partners))
    return list(partners) if several else []


def check_changes(partners: Any, reason: str, name: str = "partners") -> None:
    """Raise unless partners are functions of a batch; a second data set is refused for this reason."""
    if not read_changes(partners):
        raise TypeError(
            f"{name} must be a function of a batch, such as effdeg.changes.mirror, or several, not a "
            f"{type(partners).__name__}. A second data set is for effdeg.measure: {reason}."
        )


def name_partners(partners: Any) -> str | None:
    """Return what a measurement records of its partners."""
    if partners is None:
        return None
    changes = read_changes(partners)
    return " or ".join(map(name_change, changes)) if changes else "a second data set"


def name_change(change: Any) -> str:
    """Return a name for a function of a batch."""
    return str(getattr(change, "name", None) or getattr(change, "__name__", type(change).__name__))


@contextmanager
def _explaining(examples: Tree, option: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"The function of {option}= was called on a batch of shape {describe_shapes(examples)}.")
        raise


def check_alike(first: Tree, second: Tree, source: str) -> None:
    """Raise unless examples and what belongs to them have tensors of the same names, shapes and types."""
    one, other = ([(name, leaf.shape, leaf.dtype) for name, leaf in named_tensors(end)] for end in (first, second))
    if one != other:
        returned, given = (
            " ".join([describe_shapes(end), *sorted({str(leaf.dtype) for leaf in tensors(end)})])
            for end in (second, first)
        )
        raise ValueError(
            f"the {source} returned {returned} for {given}: a batch of the same shape and type was expected."
        )


def check_finite(second: Tree, source: str) -> None:
    """Raise if examples that belong to others are NaN or infinite."""
    for name, leaf in named_tensors(second):
        if leaf.is_floating_point() and bool(find_broken(leaf, name).any()):
            raise ValueError(f"the {source} returned NaN or infinite numbers{f' in {name!r}' if name else ''}.")
