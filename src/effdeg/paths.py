"""Pairs of examples, the nodes on the path between them, and the points at those nodes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from effdeg._checks import check_count
from effdeg._shapes import Float, Int
from effdeg.functional import chebyshev_nodes, cosine_nodes, uniform_nodes
from effdeg.tree import Tree, named_leaves, named_map

Sampling = Literal["cosine", "chebyshev", "uniform"]

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
    if sampling == "chebyshev":
        return chebyshev_nodes(nodes)
    if sampling == "uniform":
        return uniform_nodes(nodes)
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

    Floating tensors are interpolated, in float32 or better; masks, boolean or of integers 0 and 1, are joined.
    """

    def at_alpha(name: str, one: Any, other: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        if not one.is_floating_point():
            return _joined(name, one, other).repeat_interleave(alpha.shape[1], dim=0)
        dtype = torch.promote_types(one.dtype, torch.float32)
        weight = alpha.to(dtype).to(one.device).view(*alpha.shape, *[1] * (one.dim() - 1))
        return torch.lerp(other.to(dtype)[:, None], one.to(dtype)[:, None], weight).to(one.dtype).flatten(0, 1)

    return named_map(at_alpha, first, second)


def join_masks(first: Tree, second: Tree) -> Tree:
    """Give every path one input: the first end's, with the masks of both ends joined."""

    def join(name: str, one: Any, other: Any) -> Any:
        return _joined(name, one, other) if isinstance(one, Tensor) and not one.is_floating_point() else one

    return named_map(join, first, second)


def _joined(name: str, one: Tensor, other: Tensor) -> Tensor:
    """Join masks so that what either end sees is seen; of integers that are no mask, take the first end's."""
    either = one | other
    # True in a padding mask means what is not to be seen.
    joined = one & other if "pad" in name or "ignore" in name else either
    if one.dtype == torch.bool:
        return joined
    # Whether integers are a mask is left to the device, which need not be waited for.
    return torch.where(((either == 0) | (either == 1)).all(), joined, one)


def check_interpolable(examples: Tree, *, advice: Callable[[], str], look: bool = True) -> None:
    """Raise, with advice, unless straight lines can join the examples: floating tensors, at most masks beside them.

    Args:
        examples: The examples.
        advice: Says what to do instead.
        look: Whether integers may be looked at, which waits for a GPU, to tell masks from other integers.
    """
    leaves = [(name, leaf) for name, leaf in named_leaves(examples) if isinstance(leaf, Tensor)]
    for name, leaf in leaves:
        if look and not leaf.is_floating_point() and not is_mask(leaf):
            raise TypeError(
                f"inputs{f' ({name!r})' if name else ''} hold integers ({leaf.dtype}, from {leaf.min()} to "
                f"{leaf.max()}), and no straight line joins integers. {advice()}"
            )
    if not any(leaf.is_floating_point() for _, leaf in leaves):
        raise TypeError(f"inputs hold no floating-point tensor to walk along. {advice()}")


def is_mask(leaf: Tensor) -> bool:
    """Tell whether a tensor is a mask: boolean, or of integers 0 and 1."""
    if leaf.dtype == torch.bool:
        return True
    return not leaf.is_floating_point() and bool(((leaf == 0) | (leaf == 1)).all())


def _generator(seed: int, stream: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)
