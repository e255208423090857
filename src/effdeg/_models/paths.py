"""Pairs of examples, the nodes on the path between them, and the points at those nodes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from effdeg._utils.checks import check_count
from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, entry, named_map, named_tensors
from effdeg.functional import chebyshev_nodes, cosine_nodes, uniform_nodes

Sampling = Literal["cosine", "chebyshev", "uniform"]

FIXED: dict[str, Callable[..., Tensor]] = {"chebyshev": chebyshev_nodes, "uniform": uniform_nodes}
"""The samplings whose nodes are the same on every path."""

BLOCK = 16
"""Paths are drawn, run and shared out in blocks of this many, each block from a random stream of its own, so that no
result depends on the batch size, on the number of processes or on how many blocks come after."""


def draw_pairs(examples: int, paths: int, *, seed: int) -> Int[Tensor, "paths 2"]:
    """Draw the two ends of each path, two different examples, uniformly and independently of the other paths."""
    if examples < 2:
        raise ValueError(f"a path joins two examples, but inputs hold {examples}. Give at least two, better hundreds.")
    paths = check_count("paths", paths, least=1)
    # Row by row, so that more paths are the same paths and some more.
    share = torch.rand(paths, 2, dtype=torch.float64, generator=_generator(seed, 0))
    first = (share[:, 0] * examples).long()
    offset = 1 + (share[:, 1] * (examples - 1)).long()
    return torch.stack([first, (first + offset) % examples], dim=1)


def blocks(paths: int) -> Iterator[slice]:
    """Divide paths into blocks."""
    return (slice(start, min(start + BLOCK, paths)) for start in range(0, paths, BLOCK))


def draw_nodes(sampling: Sampling, nodes: int, block: slice, *, seed: int) -> Float[Tensor, "*paths nodes"]:
    """Place the nodes on the paths of a block: one row per path if they are random, one for all if they are fixed."""
    if sampling in FIXED:
        return FIXED[sampling](nodes)
    generator = _generator(seed, 1 + block.start // BLOCK)
    return cosine_nodes(nodes, BLOCK, generator=generator)[: block.stop - block.start]


def draw_pairs_of_batch(
    examples: int, pairs: int, *, device: torch.device, generator: torch.Generator | None
) -> Int[Tensor, "pairs 2"]:
    """Draw pairs of different examples of a batch, uniformly; a batch of one is paired with itself."""
    home = device if generator is None else generator.device
    # torch.compile cannot draw a number of pairs that varies if a generator, even none, is named.
    given: dict[str, Any] = {} if generator is None else {"generator": generator}
    draw = partial(torch.randint, size=(pairs,), device=home, **given)
    first = draw(0, examples)
    second = (first + draw(1, examples)) % examples if examples > 1 else first
    return torch.stack([first, second], dim=1).to(device)


def interpolate(first: Tree, second: Tree, alpha: Float[Tensor, "paths nodes"]) -> Tree:
    """Walk from the second examples (alpha = 0) to the first (alpha = 1): alpha x1 + (1 - alpha) x2, path after path.

    Floating tensors are interpolated, in float32 or better. Of other tensors masks (:func:`is_mask`) are joined.
    """

    def at_alpha(name: str, one: Any, other: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        if not one.is_floating_point():
            return _join(name, one, other).repeat_interleave(alpha.shape[1], dim=0)
        dtype = torch.promote_types(one.dtype, torch.float32)
        weight = alpha.to(dtype).to(one.device).view(*alpha.shape, *[1] * (one.dim() - 1))
        return torch.lerp(other.to(dtype)[:, None], one.to(dtype)[:, None], weight).to(one.dtype).flatten(0, 1)

    return named_map(at_alpha, first, second)


def join_masks(first: Tree, second: Tree) -> Tree:
    """Return one input for every path: the first end's, with the masks of both ends joined."""
    return named_map(_join, first, second)


def is_mask(name: str, leaf: Tensor) -> bool:
    """Return whether a tensor is a mask: boolean, or of integers under a name that says ``mask``.

    Values do not count: token types and binary labels are 0 and 1 as well, and a part of the examples may be.
    """
    integers = not leaf.is_floating_point() and not leaf.is_complex()
    return leaf.dtype == torch.bool or (integers and "mask" in _entry(name))


def _join(name: str, one: Any, other: Any) -> Any:
    """Join masks so that what either end sees is seen; of everything else, take the first end's.

    Also masks in floating point, which a path at the inputs would interpolate. By maximum and minimum, which are OR and
    AND for 0 and 1, and right for masks of more levels and for those that are added to scores.
    """
    floating = isinstance(one, Tensor) and one.is_floating_point() and "mask" in _entry(name)
    if not isinstance(one, Tensor) or not (floating or is_mask(name, one)):
        return one
    largest = torch.maximum(one, other)
    if "pad" not in _entry(name) and "ignore" not in _entry(name):
        return largest
    # True in a padding mask means what is not to be seen; what is added to scores is negative there.
    smallest = torch.minimum(one, other)
    return torch.where(smallest < 0, largest, smallest) if floating else smallest


def _entry(name: str) -> str:
    """Return the innermost key of a name such as ``tokens.attention_mask[0]``."""
    return name.partition("[")[0].rpartition(".")[2].lower()


def check_interpolable(examples: Tree, *, advice: Callable[[], str]) -> None:
    """Raise, with advice, unless straight lines can join the examples: floating tensors, and masks next to them."""
    check_real(examples)
    leaves = named_tensors(examples)
    for name, leaf in leaves:
        if not leaf.is_floating_point() and not is_mask(name, leaf):
            raise TypeError(
                f"{entry('inputs', name)} hold integers ({leaf.dtype}), and no straight line joins integers. "
                f"{advice()} If they are a mask, give booleans: .bool()."
            )
    if not any(leaf.is_floating_point() for _, leaf in leaves):
        raise TypeError(f"inputs hold no floating-point tensor to walk along. {advice()}")


def check_real(examples: Tree, what: str = "inputs") -> None:
    """Raise if examples are complex numbers, which are neither interpolated nor joined as masks are."""
    for name, leaf in named_tensors(examples):
        if leaf.is_complex():
            raise TypeError(
                f"{entry(what, name)} {'hold' if what == 'inputs' else 'holds'} complex numbers ({leaf.dtype}), which "
                "are not interpolated. Give their real and imaginary parts, torch.view_as_real(x), and put them "
                "together in the model: lambda x: model(torch.view_as_complex(x))."
            )


def _generator(seed: int, stream: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)
