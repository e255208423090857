"""From what a model returned to the values that are fitted."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from effdeg._checks import check_choice
from effdeg._shapes import Float
from effdeg.tree import Tree, tensors, tree_map

Output = Literal["softmax", "sigmoid", "identity"] | Callable[[Any], Tensor]
"""What is fitted: probabilities of classes, independent probabilities, the output as it is, or any function of it."""


def check_output(output: Output) -> None:
    """Raise unless the output is one of the known names or a function."""
    if not callable(output):
        check_choice("output", output, ("softmax", "sigmoid", "identity"))


def output_name(output: Output) -> str:
    """Name the output for a record of the settings."""
    return output if isinstance(output, str) else getattr(output, "__name__", repr(output))


def as_values(returned: Any, output: Output, *, points: int | tuple[int, ...]) -> Tensor:
    """Reduce what a model returned for so many points, or for one of so many, to one row of numbers per point."""
    possible = (points,) if isinstance(points, int) else points
    values = output(returned) if callable(output) else _logits(returned, possible)
    if not isinstance(values, Tensor):
        raise TypeError(f"output={output_name(output)!r} gave {type(values).__name__}; a tensor was expected.")
    if values.dim() == 0 or len(values) not in possible:
        raise ValueError(
            f"the model returned a tensor of shape {tuple(values.shape)} for a batch of {possible[0]}; its first "
            "dimension must be the batch. If it reduces over the batch (a loss, a mean), give the part before that."
        )
    if values.numel() == 0:
        raise ValueError(f"the model returned no outputs: a tensor of shape {tuple(values.shape)}.")
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if output == "softmax":
        if values.dim() == 1 or values.shape[-1] == 1:
            raise ValueError(
                f"output='softmax' of a single output (shape {tuple(values.shape)}) is always 1. Use output='identity' "
                "for a regression, output='sigmoid' for one logit."
            )
        return values.softmax(-1).flatten(1)
    if output == "sigmoid":
        return values.sigmoid().reshape(len(values), -1)
    # A copy: some models write every batch's output into the same memory.
    return values.reshape(len(values), -1).clone()


def as_targets(labels: Tensor, outputs: int) -> Float[Tensor, "rows outputs"]:
    """Give labels the form of the outputs: class ids become one-hot rows, anything of the outputs' size stays.

    Args:
        labels: Class ids of any integer type, or soft labels or targets, one row per example.
        outputs: How many outputs there are per example.

    Returns:
        Targets, in float32 or better.
    """
    each = labels.shape[1:].numel()
    if each == outputs:
        return labels.reshape(-1, outputs).to(torch.promote_types(labels.dtype, torch.float32))
    if labels.is_floating_point() or each == 0 or outputs % each:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} ({labels.dtype}) do not match {outputs} outputs per example: give "
            "class ids, or soft labels of the outputs' shape."
        )
    classes = outputs // each
    ids = labels.reshape(len(labels), each, 1).long()
    # A GPU is not asked, which would be to wait for it; cross entropy stops at such labels anyway.
    if not ids.is_cuda and not torch.compiler.is_compiling() and bool(((ids < 0) | (ids >= classes)).any()):
        raise ValueError(f"labels from {ids.min()} to {ids.max()} do not match {classes} classes among the outputs.")
    return (ids == torch.arange(classes, device=ids.device)).flatten(1).float()


def per_point(returned: Any, *, points: int) -> Tree:
    """Keep of what a model returned the tensors that have one row per point, on the CPU; the rest becomes None."""

    def keep(leaf: Any) -> Any:
        one_each = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == points
        return leaf.to("cpu", copy=True) if one_each else None

    kept = tree_map(keep, returned)
    if kept is None and isinstance(getattr(returned, "logits", None), Tensor):
        kept = {"logits": keep(returned.logits)}
    if not tensors(kept):
        as_values(returned, "identity", points=points)  # says what is wrong with it
    return kept


def _logits(returned: Any, points: tuple[int, ...]) -> Any:
    if isinstance(returned, Tensor):
        return returned
    if isinstance(getattr(returned, "logits", None), Tensor):
        return returned.logits
    if isinstance(returned, Mapping) and isinstance(returned.get("logits"), Tensor):
        return returned["logits"]
    found = tensors(returned)
    if not found:
        raise TypeError(
            f"the model returned {type(returned).__name__}, in which there is no tensor. Say where the values are with "
            "output=…, a function of what the model returns."
        )
    # A loss may come first.
    return next((tensor for tensor in found if tensor.dim() > 0 and len(tensor) in points), found[0])
