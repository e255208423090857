"""From what a model returned to the values that are fitted."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from effdeg._checks import check_choice
from effdeg.tree import Tree, tensors, tree_map

IGNORED = -100
"""The label that torch's cross entropy leaves out by default."""

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
    values = shaped_values(returned, output, points=points)
    return values.reshape(len(values), -1)


def shaped_values(returned: Any, output: Output, *, points: int | tuple[int, ...]) -> Tensor:
    """Do as :func:`as_values` does and leave the outputs in their shape."""
    possible = (points,) if isinstance(points, int) else points
    values = output(returned) if callable(output) else _logits(returned, possible)
    if not isinstance(values, Tensor):
        raise TypeError(f"output={output_name(output)!r} gave {type(values).__name__}; a tensor was expected.")
    if values.dim() == 0 or not _one_of(len(values), possible):
        raise ValueError(
            f"the model returned a tensor of shape {tuple(values.shape)} for a batch of {possible[0]}; its first "
            "dimension must be the batch. If it reduces over the batch (a loss, a mean), give the part before that."
        )
    if values.numel() == 0:
        raise ValueError(f"the model returned no outputs: a tensor of shape {tuple(values.shape)}.")
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if output == "softmax":
        _check_classes(values)
        return values.softmax(-1)
    if output == "sigmoid":
        return values.sigmoid()
    # A copy: some models write every batch's output into the same memory.
    return values.clone()


def _check_classes(values: Tensor) -> None:
    if values.dim() == 1 or values.shape[-1] == 1:
        raise ValueError(
            f"output='softmax' of a single output (shape {tuple(values.shape)}) is always 1. Use output='identity' "
            "for a regression, output='sigmoid' for one logit."
        )
    if values.dim() > 3:
        raise ValueError(
            f"output='softmax' is over the last dimension, but outputs of shape {tuple(values.shape)} look like maps "
            "with the classes in the second. Say which it is: output=lambda returned: returned.softmax(1)."
        )


def _one_of(rows: int, possible: tuple[int, ...]) -> bool:
    # Not `in`: under torch.compile rows may be symbolic, and are then found in no tuple.
    return any(rows == each for each in possible)


def as_targets(labels: Tensor, shape: torch.Size, missing: Tensor | None = None) -> Tensor:
    """Give labels the form of the outputs: class ids become one-hot, anything of the outputs' shape stays.

    Args:
        labels: Class ids of any integer type, or soft labels or targets, one row per example.
        shape: The shape of an example's outputs. Classes are in its last dimension, or, as torch's cross entropy has
            it, in its first.
        missing: What stands where there is no label, which is marked by -100.

    Returns:
        Targets, one flat row per example, in float32 or better.
    """
    each = labels.shape[1:]
    one_each = each.numel() == shape.numel() == 1
    if each == shape or one_each or (each.numel() == shape.numel() and labels.is_floating_point()):
        return labels.reshape(len(labels), -1).to(torch.promote_types(labels.dtype, torch.float32))
    last, first = each in (shape[:-1], torch.Size([*shape[:-1], 1])), each == shape[1:] and len(shape) > 1
    if labels.is_floating_point() or not (last or first):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} ({labels.dtype}) do not match outputs of shape {tuple(shape)} per "
            "example: give class ids, or soft labels of the outputs' shape."
        )
    classes = shape[-1] if last else shape[0]
    ids = labels.reshape(len(labels), *(shape[:-1] if last else shape[1:])).long()
    allowed = (ids >= 0) & (ids < classes)
    if missing is not None:
        allowed = allowed | (ids == IGNORED)
    # A GPU is not asked, which would be to wait for it; cross entropy stops at such labels anyway.
    if not ids.is_cuda and not torch.compiler.is_compiling() and not bool(allowed.all()):
        raise ValueError(f"labels from {ids.min()} to {ids.max()} do not match {classes} classes among the outputs.")
    targets = (ids[..., None] == torch.arange(classes, device=ids.device)).float()
    known = (ids != IGNORED)[..., None].expand_as(targets)
    if not last:
        targets, known = targets.movedim(-1, 1), known.movedim(-1, 1)
    targets, known = targets.flatten(1), known.flatten(1)
    return targets if missing is None else torch.where(known, targets.to(missing.dtype), missing)


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
    return next((tensor for tensor in found if tensor.dim() > 0 and _one_of(len(tensor), points)), found[0])
