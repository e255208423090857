"""Labels of a batch: checked, and turned into the values that a model should return."""

import numpy as np
import torch
from torch import Tensor

from effdeg._adapters.outputs import TOLERANCE, Output, output_name, softmax_axis_error

IGNORED = -100
"""The label that torch's cross entropy ignores by default."""


def check_rows_of_labels(y: object, batch: int) -> None:
    """Raise unless the labels are a tensor with one row per example."""
    if not isinstance(y, Tensor) or y.dim() == 0 or y.size(0) != batch:
        given = f"of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"of type {type(y).__name__}"
        advice = " Write torch.as_tensor(y)." if isinstance(y, (list, tuple, np.ndarray)) else ""
        raise ValueError(
            f"the labels (y) are {given}; a batch of {batch} (the first dimension of x) needs a tensor of {batch} rows."
            f"{advice}"
        )


def read_class_ids(labels: object, what: str, *, floats: bool = False) -> Tensor:
    """Return class ids on the CPU, one per example, also of ``floats``, as binary losses take them, or raise."""
    expected = f"{what} must be class ids, one whole number per example, not"
    try:
        ids = labels.cpu() if isinstance(labels, Tensor) else torch.as_tensor(np.asarray(labels), device="cpu")
    except (TypeError, ValueError):
        raise ValueError(f"{expected} {labels!r:.80}.") from None
    whole = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    whole |= floats and not ids.is_complex() and torch.equal(ids.long().to(ids.dtype), ids)
    if not whole or ids.dim() == 0 or ids.numel() == 0 or ids.numel() != len(ids):
        raise ValueError(f"{expected} {ids.dtype} of shape {tuple(ids.shape)}.")
    return ids.reshape(-1).long()


def check_range(ids: Tensor, what: str, classes: int | None = None) -> None:
    """Raise unless class ids begin at 0 and, if their number is known, are among the classes."""
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or (classes is not None and most >= classes):
        known = " or more" if classes is None else f" to {classes - 1}, of {classes} classes"
        single = " Models with a single logit are not supported here." if classes == 1 else ""
        raise ValueError(f"{what} go from {least} to {most}, but class ids are 0{known}.{single}")


def check_class_ids(ids: Tensor, classes: int, described: str, *, ignored: bool = True) -> None:
    """Raise unless all are classes, or, if allowed, :data:`IGNORED`. This waits for a GPU."""
    missing = ids == IGNORED
    if not bool(((ids >= 0) & (ids < classes) | missing).all()):
        raise ValueError(
            f"labels from {ids.min()} to {ids.max()} do not match {described}. Mark examples to ignore by {IGNORED}."
        )
    if not ignored and bool(missing.any()):
        raise ValueError(
            f"some labels are {IGNORED}, in whose place the model's own outputs are used, but only those of the points "
            "were given. Give those of the batch too: penalty.degree(model(points.append_to(x)), points)."
        )


def check_soft_labels(labels: Tensor, output: Output) -> None:
    """Raise unless soft labels or targets, a row per example, can be values of the output. This waits for a GPU."""
    if labels.numel() == 0:
        return
    rows = labels.reshape(len(labels), *_squeeze(labels.shape[1:])).double()
    if not bool(rows.isfinite().all()):
        raise ValueError("the labels (y) hold NaN or infinite numbers, which cannot be the values at a path's ends.")
    least, most = float(rows.min()), float(rows.max())
    if output == "sigmoid" and (least < -TOLERANCE or most > 1 + TOLERANCE):
        raise ValueError(
            f"the labels (y) are from {least:.3g} to {most:.3g}, but output='sigmoid' fits probabilities: pass labels "
            "from 0 to 1, or use output='identity' for the targets of a regression."
        )
    if output == "softmax" and rows.dim() > 1:
        sums = rows.sum(-1)
        if least < -TOLERANCE or not bool(((sums - 1).abs() <= TOLERANCE).all()):
            raise ValueError(
                f"the labels (y) are from {least:.3g} to {most:.3g} and sum to {float(sums.min()):.3g} to "
                f"{float(sums.max()):.3g} over the classes, but output='softmax' fits distributions: pass class ids or "
                "soft labels that are not negative and sum to 1, or use output='sigmoid' for several labels per "
                "example, output='identity' for other targets."
            )


def check_fitted_by_ids(values: Tensor, labels: Tensor, output: Output) -> None:
    """Raise if labels are class ids, which become 0 and 1, but values are no probabilities. This waits for a GPU."""
    if not callable(output) or labels.is_floating_point() or _squeeze(labels.shape[1:]) == _squeeze(values.shape[1:]):
        return
    least, most = (float(each) for each in values.detach().aminmax())
    if least < -TOLERANCE or most > 1 + TOLERANCE:
        raise ValueError(
            f"the labels (y) are class ids, which become 0 and 1, but output={output_name(output)!r} returned values "
            f"from {least:.3g} to {most:.3g}, such as logits. Let it return probabilities, for example with "
            ".softmax(-1), or pass targets of the outputs' shape."
        )


def as_targets(labels: Tensor, shape: torch.Size, *, output: Output, missing: Tensor | None, look: bool) -> Tensor:
    """Return labels in the form of the outputs, a flat row per example: class ids become one-hot, other labels stay.

    Classes are in the last dimension of ``shape``, that of an example's outputs, or in the first if the output is not
    softmax. Where the label is -100, the values are those of ``missing``. Integer labels are checked if ``look``, which
    waits for a GPU; if not, an id that is no class counts as missing.
    """
    each = labels.shape[1:]
    if _squeeze(each) == _squeeze(shape):
        # In floating point, so that integers of any type, unsigned ones too, can be compared with -100.
        targets = labels.reshape(len(labels), -1).to(torch.promote_types(labels.dtype, torch.float32))
        if labels.is_floating_point():
            return targets
        if look:
            rows = targets.reshape(-1, shape[-1] if shape else 1)
            check_soft_labels(rows[(rows != IGNORED).all(-1)], output)
        return _fill_missing(targets, targets != IGNORED, missing)
    ids = labels.reshape(len(labels), *_squeeze(each)).long()
    last = _classes_last(ids, labels, shape, output)
    classes = shape[-1] if last else shape[0]
    if look:
        check_class_ids(ids, classes, f"{classes} classes among the outputs", ignored=missing is not None)
    targets = one_hot(ids, classes).float()
    known = ((ids >= 0) & (ids < classes))[..., None].expand_as(targets)
    if not last:
        targets, known = targets.movedim(-1, 1), known.movedim(-1, 1)
    return _fill_missing(targets.flatten(1), known.flatten(1), missing)


def _classes_last(ids: Tensor, labels: Tensor, shape: torch.Size, output: Output) -> bool:
    """Return whether the classes are in the last or the first dimension of the outputs; raise if it is neither."""
    last, first = (ids.shape[1:] == _squeeze(positions) for positions in (shape[:-1], shape[1:]))
    first &= len(shape) > 1
    if labels.is_floating_point() or not (last or first):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} ({labels.dtype}) do not match outputs of shape {tuple(shape)} per "
            "example: pass class ids, or soft labels of the outputs' shape."
        )
    if output == "identity":
        raise ValueError(
            f"the labels (y) are class ids, but output='identity' fits outputs of shape {tuple(shape)} as they are, "
            "where a one-hot label would mean logits of 0 and 1. Use output='softmax' to fit probabilities, or pass "
            "targets of the outputs' shape: one-hot labels, if the model returns probabilities."
        )
    if output == "softmax" and not last:
        raise softmax_axis_error(shape)
    if output != "softmax" and last and first:
        raise ValueError(
            f"class ids of shape {tuple(labels.shape)} may have their classes in the first or in the last dimension of "
            f"outputs of shape {tuple(shape)} per example. Pass one-hot labels of that shape."
        )
    return last


def one_hot(ids: Tensor, classes: int) -> Tensor:
    """Return flags with the classes in a last dimension, all False for an id that is no class."""
    return ids[..., None] == torch.arange(classes, device=ids.device)


def _fill_missing(targets: Tensor, known: Tensor, missing: Tensor | None) -> Tensor:
    # NaN rather than a wrong number where nothing is given for a missing label.
    return torch.where(known, targets, torch.nan if missing is None else missing.to(targets.dtype))


def _squeeze(shape: torch.Size) -> torch.Size:
    return torch.Size([size for size in shape if size != 1])
