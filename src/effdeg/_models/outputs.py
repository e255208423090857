"""From what a model returned to the values that are fitted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from effdeg._utils.checks import check_choice
from effdeg._utils.tree import Tree, named_tensors, tensors, tree_map

IGNORED = -100
"""The label that torch's cross entropy leaves out by default."""

_TOLERANCE = 0.01
"""How far soft labels may be from a distribution. Labels mixed or smoothed in bfloat16, which has eight bits, or
written with three decimals sum to 1 within this; logits, percentages and several labels per example do not. An error of
this size changes the effective degree by about as little."""

_FEATURES = {"last_hidden_state", "hidden_states", "encoder_last_hidden_state", "pooler_output"}
"""What Hugging Face's models without a head call what they return."""

Output = Literal["softmax", "sigmoid", "identity"] | Callable[[Any], Tensor]
"""What is fitted: probabilities of classes, independent probabilities, the output as it is, or any function of it."""


class Picked(NamedTuple):
    """The tensor of a model's output that is fitted.

    Attributes:
        tensor: The tensor.
        name: Its name: ``"output"`` if the model returned nothing else, ``"logits"``, a key of a dict, ``"[0]"`` …;
            None if a function, ``output=``, made it.
        others: The names of tensors that could have been meant as well, where it was chosen for coming first.
    """

    tensor: Tensor
    name: str | None
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Described:
    """What was fitted, for a record of the settings: see :class:`effdeg.Settings`."""

    tensor: str | None = None
    other_tensors: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()
    dtype: str | None = None


class OutputReader:
    """Reads the values that are fitted from what a model returned, and remembers what they were."""

    def __init__(self, output: Output) -> None:
        check_output(output)
        self._output = output
        self.described = Described()

    def __call__(self, returned: Any, points: int) -> Tensor:
        """Return one row of values per point."""
        picked = _pick(returned, self._output, (points,))
        values = _transform(picked, self._output, (points,))
        if self.described.dtype is None:
            if self._output == "softmax":
                _check_no_probabilities(picked.tensor)
            dtype = str(picked.tensor.dtype).removeprefix("torch.")
            self.described = Described(picked.name, picked.others, tuple(values.shape[1:]), dtype)
        return values.reshape(len(values), -1)


def check_output(output: Output) -> None:
    """Raise unless the output is one of the known names or a function."""
    if not callable(output):
        check_choice("output", output, ("softmax", "sigmoid", "identity"))


def output_name(output: Output) -> str:
    """Name the output for a record of the settings."""
    return output if isinstance(output, str) else getattr(output, "__name__", repr(output))


def as_values(returned: Any, output: Output, *, points: int | tuple[int, ...]) -> Tensor:
    """Return one row of values for each of the points, of which there may be any of the given numbers."""
    values = shaped_values(returned, output, points=points)
    return values.reshape(len(values), -1)


def shaped_values(
    returned: Any, output: Output, *, points: int | tuple[int, ...], check_logits: bool = False
) -> Tensor:
    """Do as :func:`as_values` does and leave the outputs in their shape.

    With ``check_logits``, raise if softmax is asked for and the outputs are probabilities already. That reads their
    values, which waits for a GPU.
    """
    possible = (points,) if isinstance(points, int) else points
    picked = _pick(returned, output, possible)
    values = _transform(picked, output, possible)
    if check_logits and output == "softmax":
        _check_no_probabilities(picked.tensor)
    return values


def _transform(picked: Picked, output: Output, possible: tuple[int, ...]) -> Tensor:
    """Check the tensor that was picked, and turn it into what is fitted."""
    values = picked.tensor
    if values.dim() == 0 or not _one_of(len(values), possible):
        raise ValueError(
            f"the model returned a tensor of shape {tuple(values.shape)} for a batch of {possible[0]}; its first "
            "dimension must be the batch. If it reduces over the batch (a loss, a mean), give the part before that."
        )
    if values.numel() == 0:
        raise ValueError(f"the model returned no outputs: a tensor of shape {tuple(values.shape)}.")
    _check_real(values)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if output == "softmax":
        _check_classes(values, picked.name)
        return values.softmax(-1)
    if output == "sigmoid":
        return values.sigmoid()
    # A copy: some models write every batch's output into the same memory.
    return values.clone()


def _check_real(values: Tensor) -> None:
    """Raise unless the outputs are real: torch would drop imaginary parts, and class ids are names, not amounts."""
    if values.is_complex():
        raise TypeError(
            f"the model's outputs are complex ({values.dtype}), and only real values are fitted. Say which: "
            "output=torch.view_as_real for both parts, output=torch.abs for the magnitude (or a function that first "
            "takes the tensor out of what the model returns)."
        )
    if not values.is_floating_point():
        raise TypeError(
            f"the model's outputs are integers or flags ({values.dtype}), such as predicted classes. Let the model "
            "return the scores that these come from, or, if the numbers are amounts, use output=lambda y: y.float()."
        )


def _check_classes(values: Tensor, name: str | None) -> None:
    if name is not None and name.split(".")[-1].split("[")[0] in _FEATURES:
        raise ValueError(
            f"output='softmax' makes probabilities of logits, but the model returned {name} of shape "
            f"{tuple(values.shape[1:])} per example, which are features. Use output='identity', or a model with a head."
        )
    if values.dim() == 1 or values.shape[-1] == 1:
        raise ValueError(
            f"output='softmax' of a single output (shape {tuple(values.shape)}) is always 1. Use output='identity' "
            "for a regression, output='sigmoid' for one logit."
        )
    if values.dim() > 3:
        raise ValueError(_maps(values.shape[1:]))


def _check_no_probabilities(values: Tensor) -> None:
    """Raise if outputs are distributions already, of which softmax would make nearly uniform ones."""
    rounding = min(16 * torch.finfo(values.dtype).eps, _TOLERANCE)
    sums = values.double().sum(-1)
    if bool((values >= 0).all() & ((sums - 1).abs() <= rounding).all()):
        raise ValueError(
            "output='softmax' makes probabilities of logits, but the model's outputs are probabilities already: none "
            "is negative, and they sum to 1. Use output='identity'."
        )


def _maps(shape: torch.Size) -> str:
    return (
        f"output='softmax' is over the last dimension, but outputs of shape {tuple(shape)} per example look like maps "
        "with the classes first. Say which it is: output=lambda returned: returned.softmax(1), or of returned.logits."
    )


def _one_of(rows: int, possible: tuple[int, ...]) -> bool:
    # Not `in`: under torch.compile rows may be symbolic, and are then found in no tuple.
    return any(rows == each for each in possible)


def check_rows_of_labels(y: object, batch: int) -> None:
    """Raise unless the labels are a tensor with one row per example."""
    if not isinstance(y, Tensor) or y.dim() == 0 or len(y) != batch:
        given = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(
            f"the labels (y) are {given}; a batch of {batch} (the first dimension of x) needs a tensor with {batch} "
            "rows."
        )


def check_class_ids(ids: Tensor, classes: int, described: str, *, ignored: bool = True) -> None:
    """Raise unless all are classes, or, if they may be, marked as to be left out. This waits for a GPU."""
    known = (ids >= 0) & (ids < classes)
    if not bool((known | (ids == IGNORED) if ignored else known).all()):
        raise ValueError(
            f"labels from {ids.min()} to {ids.max()} do not match {described}. Mark those that are to be left out by "
            f"{IGNORED}."
        )


def check_soft_labels(labels: Tensor, output: Output) -> None:
    """Raise unless soft labels or targets can be values of the output. This reads them, which waits for a GPU.

    Args:
        labels: The labels, one row per example; for softmax with the classes in the last dimension.
        output: What is fitted: distributions (softmax), probabilities (sigmoid), or anything finite.
    """
    if labels.numel() == 0:
        return
    rows = labels.reshape(len(labels), *_squeezed(labels.shape[1:])).double()
    if not bool(rows.isfinite().all()):
        raise ValueError("the labels (y) hold NaN or infinite numbers, which cannot be the values at a path's ends.")
    least, most = float(rows.min()), float(rows.max())
    if output == "sigmoid" and (least < -_TOLERANCE or most > 1 + _TOLERANCE):
        raise ValueError(
            f"the labels (y) are from {least:.3g} to {most:.3g}, but output='sigmoid' fits probabilities: give labels "
            "from 0 to 1, or use output='identity' for the targets of a regression."
        )
    if output == "softmax" and rows.dim() > 1:
        sums = rows.sum(-1)
        if least < -_TOLERANCE or not bool(((sums - 1).abs() <= _TOLERANCE).all()):
            raise ValueError(
                f"the labels (y) are from {least:.3g} to {most:.3g} and sum to {float(sums.min()):.3g} to "
                f"{float(sums.max()):.3g} over the classes, but output='softmax' fits distributions: give class ids or "
                "soft labels that are not negative and sum to 1, or use output='sigmoid' for several labels per "
                "example, output='identity' for other targets."
            )


def as_targets(
    labels: Tensor, shape: torch.Size, *, output: Output, missing: Tensor | None = None, look: bool = True
) -> Tensor:
    """Return labels in the form of the outputs: class ids become one-hot, anything of the outputs' shape stays.

    Args:
        labels: Class ids of any integer type, or soft labels or targets, one row per example.
        shape: The shape of an example's outputs. Classes are in its last dimension, or, if the output is not softmax,
            in its first, as torch's cross entropy has it.
        output: What was made of the model's output.
        missing: What stands where there is no label, which integers mark by -100.
        look: Whether to check the values of integer labels, which waits for a GPU. If not, an id that is no class
            counts as missing.

    Returns:
        Targets, one flat row per example, in float32 or better.
    """
    each = labels.shape[1:]
    if _squeezed(each) == _squeezed(shape):
        # Rows of these values, so that integers of any type, unsigned ones too, can be compared with -100.
        targets = labels.reshape(len(labels), -1).to(torch.promote_types(labels.dtype, torch.float32))
        if labels.is_floating_point():
            return targets
        known = targets != IGNORED
        if look:
            rows = targets.reshape(-1, shape[-1] if shape else 1)
            check_soft_labels(rows[(rows != IGNORED).all(-1)], output)
        return _known(targets, known, missing)
    ids = labels.reshape(len(labels), *_squeezed(each)).long()
    last, first = ids.shape[1:] == shape[:-1], len(shape) > 1 and ids.shape[1:] == shape[1:]
    if labels.is_floating_point() or not (last or first):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} ({labels.dtype}) do not match outputs of shape {tuple(shape)} per "
            "example: give class ids, or soft labels of the outputs' shape."
        )
    if output == "identity":
        raise ValueError(
            f"the labels (y) are class ids, but output='identity' fits outputs of shape {tuple(shape)} as they are, "
            "among which a one-hot label would stand as logits of 0 and 1. Use output='softmax' to fit probabilities, "
            "or give targets of the outputs' shape."
        )
    if output == "softmax" and not last:
        raise ValueError(_maps(shape))
    if output != "softmax" and last and first:
        raise ValueError(
            f"class ids of shape {tuple(labels.shape)} may have their classes in the first or in the last dimension of "
            f"outputs of shape {tuple(shape)} per example. Give one-hot labels of that shape."
        )
    classes = shape[-1] if last else shape[0]
    if look:
        check_class_ids(ids, classes, f"{classes} classes among the outputs", ignored=missing is not None)
    targets = one_hot(ids, classes).float()
    known = ((ids >= 0) & (ids < classes))[..., None].expand_as(targets)
    if not last:
        targets, known = targets.movedim(-1, 1), known.movedim(-1, 1)
    return _known(targets.flatten(1), known.flatten(1), missing)


def one_hot(ids: Tensor, classes: int) -> Tensor:
    """Return flags with the classes in a last dimension, all False for an id that is no class."""
    return ids[..., None] == torch.arange(classes, device=ids.device)


def _known(targets: Tensor, known: Tensor, missing: Tensor | None) -> Tensor:
    # Without anything to stand for a missing label, better no number than a wrong one.
    return torch.where(known, targets, torch.nan if missing is None else missing.to(targets.dtype))


def _squeezed(shape: torch.Size) -> torch.Size:
    return torch.Size([size for size in shape if size != 1])


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


def _pick(returned: Any, output: Output, points: tuple[int, ...]) -> Picked:
    """Find the tensor that is fitted: what ``output`` makes, a lone tensor, ``logits``, or the first with a batch."""
    if callable(output):
        values = output(returned)
        if not isinstance(values, Tensor):
            raise TypeError(f"output={output_name(output)!r} gave {type(values).__name__}; a tensor was expected.")
        return Picked(values, None)
    if isinstance(returned, Tensor):
        return Picked(returned, "output")
    if isinstance(getattr(returned, "logits", None), Tensor):
        return Picked(returned.logits, "logits")
    if isinstance(returned, Mapping) and isinstance(returned.get("logits"), Tensor):
        return Picked(returned["logits"], "logits")
    found = named_tensors(returned)
    if not found:
        raise TypeError(
            f"the model returned {type(returned).__name__}, in which there is no tensor. Say where the values are with "
            "output=…, a function of what the model returns."
        )
    # A loss may come first, and predicted classes.
    rows = [(name, leaf) for name, leaf in found if leaf.dim() > 0 and _one_of(len(leaf), points)]
    candidates = [(name, leaf) for name, leaf in rows if leaf.is_floating_point() or leaf.is_complex()] or rows or found
    (name, tensor), *others = candidates
    return Picked(tensor, name, tuple(name for name, _ in others))
