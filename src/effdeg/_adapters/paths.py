"""Pairs of examples, the nodes on the path between them, and the points at those nodes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from effdeg._utils.shapes import Float, Int
from effdeg._utils.tree import Tree, check_plain, entry, named_leaves, named_map, named_tensors
from effdeg.functional import chebyshev_nodes, cosine_nodes, uniform_nodes

Sampling = Literal["cosine", "chebyshev", "uniform"]

FIXED: dict[str, Callable[..., Tensor]] = {"chebyshev": chebyshev_nodes, "uniform": uniform_nodes}
"""The samplings whose nodes are the same on every path."""

_HIDES = -1e3
"""Scores below this, added to others, leave nothing of their exponential."""
_HIDES_ALONE = -10.0
"""Where 0 and a number below this are the only values, they are a mask."""

BLOCK = 16
"""Paths per block. Each has its own random stream, so that no result depends on the batch size or on processes."""


def draw_pairs(examples: int, paths: int, *, seed: int, with_itself: bool = False) -> Int[Tensor, "paths 2"]:
    """Draw the ends of each path, two different examples; ``with_itself``, the first ones are their own partners."""
    if examples < 2 and not with_itself:
        raise ValueError(f"a path joins two examples, but inputs hold {examples}. Pass at least two, better hundreds.")
    # Row by row, so that the first of more paths are the same.
    share = torch.rand(paths, 2, dtype=torch.float64, device="cpu", generator=_generator(seed, 0))
    first = (share[:, 0] * examples).long()
    offset = 0 if with_itself else 1 + (share[:, 1] * (examples - 1)).long()
    return torch.stack([first, (first + offset) % examples], dim=1)


def draw_nodes(sampling: Sampling, nodes: int, block: slice, *, seed: int) -> Float[Tensor, "*paths nodes"]:
    """Return the nodes of a block's paths: one row per path if they are random, one for all if they are fixed."""
    if sampling in FIXED:
        return FIXED[sampling](nodes, device="cpu")
    generator = _generator(seed, 1 + block.start // BLOCK)
    return cosine_nodes(nodes, BLOCK, generator=generator)[: block.stop - block.start]


def draw_pairs_of_batch(
    examples: int, pairs: int, *, device: torch.device, generator: torch.Generator | None
) -> Int[Tensor, "pairs 2"]:
    """Draw pairs of different examples of a batch, uniformly; a batch of one is paired with itself."""
    draw = partial(torch.randint, size=(pairs,), **_draw_from(generator, device))
    first = draw(0, examples)
    second = (first + draw(1, examples)) % examples if examples > 1 else first
    return torch.stack([first, second], dim=1).to(device)


def draw_examples_of_batch(
    examples: int, pairs: int, *, device: torch.device, generator: torch.Generator | None
) -> Int[Tensor, "pairs 2"]:
    """Draw examples of a batch, each paired with itself; none twice before all were drawn once."""
    order = torch.rand(examples, **_draw_from(generator, device)).argsort().to(device)
    drawn = order[torch.arange(pairs, device=device) % examples]
    return torch.stack([drawn, drawn], dim=1)


def _draw_from(generator: torch.Generator | None, device: torch.device) -> dict[str, Any]:
    # With a generator argument, even None, torch.compile cannot draw a varying number of pairs.
    return {"device": device} if generator is None else {"device": generator.device, "generator": generator}


def interpolate(first: Tree, second: Tree, alpha: Float[Tensor, "paths nodes"]) -> Tree:
    """Return the points α x₁ + (1 − α) x₂, path after path, in float32 or better; masks of both ends are joined."""

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
    """Return one input per path: that of the first end, with the masks of both ends joined."""
    return named_map(_join, first, second)


def exchange_masks(first: Tree, second: Tree) -> Tree:
    """Return the inputs of the first end with the masks of the second."""

    def choose(name: str, one: Any, other: Any) -> Any:
        return other if isinstance(one, Tensor) and (is_mask(name, one) or is_floating_mask(name, one)) else one

    return named_map(choose, first, second)


def is_mask(name: str, leaf: Tensor) -> bool:
    """Return whether a tensor is a mask: booleans, or integers named so; token types are 0 and 1 as well."""
    integers = not leaf.is_floating_point() and not leaf.is_complex()
    return leaf.dtype == torch.bool or (integers and "mask" in innermost_key(name))


def is_floating_mask(name: str, leaf: Any) -> bool:
    """Return whether an input is a mask in floating point, by its name: no input to be moved or differentiated."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and "mask" in innermost_key(name)


def floating_inputs(examples: Tree) -> list[Tensor]:
    """Return the floating tensors of examples that are no masks, by their names; all if there is nothing else."""
    floating = [(name, leaf) for name, leaf in named_tensors(examples) if leaf.is_floating_point()]
    inputs = [leaf for name, leaf in floating if not is_floating_mask(name, leaf)]
    return inputs or [leaf for _, leaf in floating]


def _join(name: str, one: Any, other: Any) -> Any:
    """Join masks, also in floating point, so that what either end sees is seen; return anything else of the first end.

    Maximum and minimum are OR and AND for 0 and 1, and right for masks that are added to attention scores, too.
    """
    floating = is_floating_mask(name, one)
    if not isinstance(one, Tensor) or not (floating or is_mask(name, one)):
        return one
    largest = torch.maximum(one, other)
    if not hides_ones(name):
        return largest
    # A padding mask is True where it hides; one that is added to scores is negative there.
    smallest = torch.minimum(one, other)
    return torch.where(smallest < 0, largest, smallest) if floating else smallest


def hides_ones(name: str) -> bool:
    """Return whether a mask hides where it is 1, as a padding mask does, by its name."""
    return "pad" in innermost_key(name) or "ignore" in innermost_key(name)


def innermost_key(name: str) -> str:
    """Return the last key of a name such as ``tokens.attention_mask[0]`` or ``[0].attention_mask``, in lower case."""
    # Without a regular expression: torch.compile would trace how Python compiles it.
    return name.rpartition(".")[2].partition("[")[0].lower()


def check_interpolable(examples: Tree, *, advice: Callable[[], str]) -> None:
    """Raise, with advice, unless the examples can be interpolated: floating tensors, and masks next to them."""
    check_real(examples)
    leaves = named_tensors(examples)
    for name, leaf in leaves:
        if not leaf.is_floating_point() and not is_mask(name, leaf):
            alone = len(leaves) == 1 and re.fullmatch(r"(\.?\[0\])+", name)  # in tuples, which may not be the caller's
            what = entry("inputs", "" if alone else name)
            mixed = any(each.is_floating_point() and "mask" not in innermost_key(key) for key, each in leaves)
            others = " There the other inputs stay those of one example along the whole path." if mixed else ""
            raise TypeError(
                f"{what} hold integers ({leaf.dtype}), and no straight line joins integers. {advice()}{others} If they "
                "are a mask, pass booleans: .bool(). If they are labels, take them out of the inputs."
            )
    if not any(leaf.is_floating_point() for _, leaf in leaves):
        held = sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for _, leaf in named_leaves(examples)})
        hint = "Of texts, pass what the model is called with, such as a tokenizer's output."
        raise TypeError(
            f"inputs hold no floating-point tensor to interpolate, only {', '.join(held) or 'nothing'}. "
            f"{hint if 'str' in held else advice()}"
        )


def check_masks(examples: Tree, what: str = "inputs") -> None:
    """Raise if a floating mask is added to scores: far below 0 it hides, and so does all of the line to there.

    This reads what is a mask by its name and, unless a GPU has to be waited for, what has no name and is not the first.
    """
    for place, (name, leaf) in enumerate(named_tensors(examples)):
        mask = "mask" in innermost_key(name) or hides_ones(name)
        may_be_mask = place > 0 and not innermost_key(name) and not leaf.is_cuda
        if not leaf.is_floating_point() or not leaf.numel() or not (mask or may_be_mask):
            continue
        least, most = (float(bound) for bound in leaf.aminmax())
        alone = least <= _HIDES_ALONE and most == 0 and bool(((leaf == 0) | (leaf == least)).all())
        if least == -torch.inf or (least < _HIDES and most <= 0) or alone:
            raise ValueError(
                f"{what} ({name!r}) hold {least:.3g}, as a mask that is added to scores does, which cannot "
                "be interpolated. Give booleans for a mask."
            )


def check_integer_masks(examples: Tree, what: str = "inputs") -> None:
    """Raise if a mask of integers holds more levels than positions, as token ids do. This waits for a GPU."""
    for name, leaf in named_tensors(examples):
        if leaf.dtype == torch.bool or not is_mask(name, leaf) or not leaf.numel():
            continue
        least, most = (int(bound) for bound in leaf.aminmax())
        if least < 0 or most > leaf.shape[-1]:
            raise ValueError(
                f"{what} ({name!r}) hold integers from {least} to {most}, as token ids do; a mask is usually 0 and 1. "
                "Are the arguments of the model in another order? If it is no mask, wrap the model in a function that "
                "takes it under another name."
            )


def check_real(examples: Tree, what: str = "inputs") -> None:
    """Raise if examples are complex numbers, which can be neither interpolated nor joined, or no plain tensors."""
    for name, leaf in named_tensors(examples):
        check_plain(entry(what if what == "inputs" else f"the examples in {what}", name), leaf)
        if leaf.is_complex():
            raise TypeError(
                f"{entry(what, name)} {'hold' if what == 'inputs' else 'holds'} complex numbers ({leaf.dtype}), which "
                "are not interpolated. Pass their real and imaginary parts, torch.view_as_real(x), and combine them in "
                "the model: lambda x: model(torch.view_as_complex(x))."
            )


def _generator(seed: int, stream: int) -> torch.Generator:
    state = np.random.SeedSequence([seed, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)
