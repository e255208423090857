"""Changes of examples that should not change a prediction, for ``partners=``: paths from examples to changed copies.

A change is any function of a batch that returns a batch of the same shape. Those here draw anew for every example, by
the ``seed`` of a measurement, the ``generator`` of a training or :func:`torch.manual_seed`. All but :func:`drop_tokens`
are differentiable, and take images N × … × height × width (a tensor, or a tuple or mapping with one of them).
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from effdeg._adapters.examples import check_channels_first, describe_shapes
from effdeg._adapters.partners import draw, name_change
from effdeg._utils.checks import check_count, check_number
from effdeg._utils.tree import Tree, tensors, tree_map

__all__ = ["Change", "compose", "crop", "drop_tokens", "mirror", "noise", "parse", "shift"]


@dataclass(frozen=True, repr=False)
class Change:
    """A function of a batch, with a name for records and tables."""

    name: str
    function: Callable[[Any], Any]

    def __call__(self, examples: Any) -> Any:
        """Return the changed batch."""
        return self.function(examples)

    def __repr__(self) -> str:
        return self.name


def mirror(images: Tree) -> Tree:
    """Mirror images, left to right.

    Raises:
        TypeError: If there are no images.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> changes.mirror(torch.tensor([[[[1.0, 2.0, 3.0]]]])).tolist()
        [[[[3.0, 2.0, 1.0]]]]
    """
    return _change_images(images, lambda x: x.flip(-1))


def shift(pixels: int) -> Change:
    """Return a change that shifts images by up to ``pixels`` each way, at random; the border is repeated.

    Raises:
        ValueError: If ``pixels`` is not at least 1.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> changes.shift(2)(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 3, 8, 8])
    """
    pixels = check_count("pixels", pixels, least=1)

    def change(x: Tensor) -> Tensor:
        rows, columns = (
            (torch.arange(size, device=x.device) + offset[:, None]).clamp(0, size - 1)
            for size, offset in zip(
                x.shape[-2:], (draw(x.device, 2, len(x)) * (2 * pixels + 1)).long() - pixels, strict=True
            )
        )
        examples = torch.arange(len(x), device=x.device)[:, None, None]
        # Indices on both sides of the channels put these last.
        return x[examples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    return Change(f"shift({pixels})", lambda images: _change_images(images, change))


def crop(scale: float) -> Change:
    """Return a change that crops images at random, to at least a share ``scale`` of their area, and enlarges the crop.

    Raises:
        ValueError: If ``scale`` is not between 0 and 1.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> changes.crop(0.5)(torch.zeros(5, 3, 8, 8)).shape
        torch.Size([5, 3, 8, 8])
    """
    scale = _check_share("scale", scale)
    smallest = math.sqrt(scale)

    def change(x: Tensor) -> Tensor:
        drawn = draw(x.device, 3, len(x))
        side = smallest + (1 - smallest) * drawn[0]
        offset = (1 - side) * (2 * drawn[1:] - 1)
        zero = torch.zeros_like(side)
        affine = torch.stack([side, zero, offset[0], zero, side, offset[1]], dim=1).view(-1, 2, 3)
        grid = functional.affine_grid(affine, list(x.shape), align_corners=False)
        return functional.grid_sample(x.float(), grid, padding_mode="border", align_corners=False).to(x.dtype)

    return Change(f"crop({scale:g})", lambda images: _change_images(images, change))


def noise(deviation: float) -> Change:
    """Return a change that adds Gaussian noise of this standard deviation to every number, also to plain vectors.

    Raises:
        ValueError: If ``deviation`` is not positive.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> changes.noise(0.1)(torch.zeros(5, 8)).shape
        torch.Size([5, 8])
    """
    deviation = check_number("deviation", deviation, "0.1 adds noise of that standard deviation")

    def change(x: Tensor) -> Tensor:
        return x + deviation * draw(x.device, *x.shape, by=torch.randn, dtype=x.dtype)

    return Change(f"noise({deviation:g})", lambda x: _change_images(x, change, vectors=True))


def compose(*changes: Callable[[Any], Any]) -> Change:
    """Return a change that makes several changes, one after another.

    Raises:
        TypeError: If one of them is not a function.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> changes.compose(changes.mirror, changes.shift(2))
        mirror + shift(2)
    """
    for each in changes:
        if not callable(each):
            raise TypeError(f"compose takes functions of a batch, such as changes.mirror, not {each!r}.")
    name = " + ".join(map(name_change, changes)) or "nothing"
    return Change(name, lambda examples: reduce(lambda changed, change: change(changed), changes, examples))


def drop_tokens(share: float, token: int = 0) -> Change:
    """Return a change that replaces a share of the tokens of each text by ``token``, such as that of a mask.

    The first token stays, which is often special, and so does padding on either side, where there is an
    ``attention_mask``. Paths lie at the embeddings:
    ``measure(model, tokens, at=…, partners=drop_tokens(0.1, tokenizer.mask_token_id))``.

    Raises:
        ValueError: If ``share`` is not between 0 and 1, or ``token`` is negative; where it is used, if the mask is one
            that is added to scores.

    Example:
        >>> import torch
        >>> from effdeg import changes
        >>> ids = torch.arange(1, 101).repeat(5, 1)
        >>> (changes.drop_tokens(0.2)(ids) == 0).sum(1).tolist()
        [20, 20, 20, 20, 20]
    """
    share, token = _check_share("share", share), check_count("token", token, least=0)

    def change(examples: Any) -> Any:
        by_name = isinstance(examples, Mapping)
        ids = examples.get("input_ids") if by_name else examples
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dim() != 2:
            raise TypeError(
                "drop_tokens takes token ids, integers of shape texts × length, alone or as 'input_ids' of a "
                f"dictionary, not {describe_shapes(examples)}."
            )
        shown = examples.get("attention_mask") if by_name else None
        shown = torch.ones_like(ids) if shown is None else shown
        if shown.is_floating_point() and shown.is_cpu and bool((shown < 0).any()):
            raise ValueError(
                "drop_tokens takes an attention_mask of 0 and 1, not one that is added to scores. Give booleans."
            )
        order = draw(ids.device, *ids.shape).masked_fill(shown == 0, 2.0)
        # The first token may come after padding.
        order.scatter_(1, (shown != 0).int().argmax(1, keepdim=True), 2.0)
        # Of every text, the tokens with the smallest random numbers.
        count = (share * (shown != 0).sum(1, keepdim=True).float()).round()
        dropped = ids.masked_fill((order.argsort(1).argsort(1) < count) & (order < 1), token)
        return {**examples, "input_ids": dropped} if by_name else dropped

    return Change(f"drop_tokens({share:g}, {token})", change)


def parse(text: str) -> Callable[[Any], Any]:
    """Return the change of a name such as ``mirror``, ``shift(4)`` or ``mirror+shift(4)``, as records have it.

    Raises:
        ValueError: If a name is not known, or the numbers in its brackets are not those it takes.

    Example:
        >>> from effdeg import changes
        >>> changes.parse("mirror+shift(4)")
        mirror + shift(4)
    """
    parts = [_parse_one(part.strip(), text) for part in re.split(r"\+(?![^()]*\))", text)]
    return parts[0] if len(parts) == 1 else compose(*parts)


def _parse_one(part: str, text: str) -> Callable[[Any], Any]:
    matched = re.fullmatch(r"(\w+)\s*(?:\(([^()]*)\))?", part)
    name = matched[1] if matched else part
    if matched is None or name not in _BY_NAME:
        examples = ", ".join(example for example, *_ in _BY_NAME.values())
        raise ValueError(f"{text!r}: {name!r} is not a change. Choose from: {examples}.")
    example, change, types = _BY_NAME[name]
    numbers = matched[2].split(",") if matched[2] else []
    try:
        if any("_" in number for number in numbers):  # Python reads 1_0 as 10
            raise ValueError(part)
        given = [kind(number) for kind, number in zip(types, numbers, strict=True)]
    except ValueError:
        raise ValueError(f"{text!r}: {part!r} is not of the form {example}.") from None
    return change(*given) if types else change


def _check_share(name: str, value: float) -> float:
    value = check_number(name, value, "0.5 is a half")
    if value >= 1:
        raise ValueError(f"{name}={value:g} must lie between 0 and 1.")
    return value


def _change_images(examples: Tree, change: Callable[[Tensor], Tensor], *, vectors: bool = False) -> Tree:
    """Change the one floating-point tensor that the examples hold; raise unless it holds images, or also vectors."""
    floating = [leaf for leaf in tensors(examples) if leaf.is_floating_point()]
    if len(floating) != 1 or floating[0].dim() < (2 if vectors else 4):
        expected = "vectors, N × D, or images" if vectors else "images, N × channels × height × width"
        raise TypeError(f"expected one floating-point tensor of {expected}, not {describe_shapes(examples)}.")
    images = floating[0]
    if vectors:
        changed = change(images)
    else:
        check_channels_first(images)
        # Frames of a video are channels: all change alike.
        changed = change(images.flatten(1, -3)).reshape(images.shape)
    return tree_map(lambda leaf: changed if leaf is images else leaf, examples)


# An example of each, and the types of its numbers.
_BY_NAME: dict[str, tuple[str, Callable[..., Any], tuple[Callable[[str], float], ...]]] = {
    "mirror": ("mirror", mirror, ()),
    "shift": ("shift(4)", shift, (int,)),
    "crop": ("crop(0.5)", crop, (float,)),
    "noise": ("noise(0.1)", noise, (float,)),
    "drop_tokens": ("drop_tokens(0.1, 103)", drop_tokens, (float, int)),
}
