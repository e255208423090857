"""Anchors: the values at the ends of paths, which are labels, what a teacher returned or the model's own outputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.inference import check_has_values, first_floating
from effdeg._adapters.labels import as_targets, check_rows_of_labels
from effdeg._adapters.layers import as_module
from effdeg._adapters.outputs import Output, shaped_values
from effdeg._utils.device import is_traced
from effdeg._utils.tree import check_plain, map_tensors
from effdeg.train._batch import TrainingBatch
from effdeg.train._points import Points
from effdeg.train._settings import PenaltySettings

OWN = "own"
"""In place of what a teacher returned: the model's own outputs are the values at the ends of paths."""


def check_labels(batch: TrainingBatch, settings: PenaltySettings) -> None:
    """Raise unless labels belong to the examples of the batch and, if they are anchored, can be values at ends."""
    labels = batch.labels
    if labels is None and settings.anchor == "labels":
        raise ValueError(
            "anchor='labels' puts labels at the outer nodes of each path, but none were given: call "
            "penalty(model, x, y), or use Penalty(anchor='self') or Penalty(anchor=None)."
        )
    if settings.anchor == "labels" or isinstance(labels, Tensor):
        check_rows_of_labels(labels, batch.labeled)
    if settings.anchor != "labels":
        return
    if batch.unlabeled:
        settings.check_ends("unlabeled")
    check_plain("the labels (y)", labels)
    if labels.is_complex():
        raise TypeError(f"the labels (y) are complex ({labels.dtype}); give class ids or labels in floating point.")


def check_teacher(settings: PenaltySettings, unlabeled: int, teacher: object = None) -> None:
    """Raise unless there is something to do for a teacher, and it can be called if it is given."""
    if teacher is not None and not callable(teacher):
        raise TypeError(f"the teacher is a {type(teacher).__name__}, which cannot be called.")
    check_has_values(teacher, "teacher")
    anchor = settings.anchor
    if anchor is None or (anchor == "labels" and not unlabeled):
        raise ValueError(
            f"a teacher gives the values at the ends of paths, but with anchor={anchor!r} "
            f"{'there are none' if anchor is None else 'and no unlabeled examples the labels do'}. "
            "Use Penalty(anchor='self'), or leave out the teacher."
        )


def run_teacher(teacher: Callable[..., Any], arguments: Any, keywords: Any) -> Any:
    """Run a teacher, without gradients and in its own precision."""
    weight = None if is_traced() else first_floating(as_module(teacher))

    def convert(leaf: Tensor) -> Tensor:
        # A copy of the user's batch: the teacher may work in place.
        return leaf.to(weight.dtype if weight is not None and leaf.is_floating_point() else leaf.dtype, copy=True)

    with torch.no_grad():
        arguments, keywords = map_tensors(convert, (arguments, keywords))
        return teacher(*arguments, **keywords)


def find_ends(
    rows: Tensor,
    points: Points,
    settings: PenaltySettings,
    returned: Any,
    *,
    look_at_labels: bool,
    look_at_teacher: bool,
) -> Tensor:
    """Return the values at the outer nodes, the first example's first: labels, a teacher's or the model's outputs."""
    labeled = 0 if points.labels is None else len(points.labels)
    own = rows[: points.examples] if len(rows) == points.total else None
    if own is not None and settings.anchor is not None:
        own = own.detach()
    parts = [] if points.labels is None else [_label_values(points, rows, own, settings, look=look_at_labels)]
    if labeled < len(points.pairs):
        source = own
        if returned is not OWN:
            asked = points.unlabeled + (points.batch if points.labels is None else 0)
            source = teacher_values(returned, settings.output, like=rows, examples=asked, look=look_at_teacher)
        if source is None:
            raise ValueError(
                f"values have {len(rows)} rows, without those of the batch, whose outputs are the values at the "
                f"ends of each path (anchor={settings.anchor!r}, sampling={settings.sampling!r}): give all "
                f"{points.total} rows."
            )
        # With anchored labels a teacher is asked about the last examples only, those without.
        places = points.pairs[labeled:] - (points.batch + points.unlabeled - len(source))
        parts.append(source[places].reshape(len(places), 2, -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _label_values(points: Points, rows: Tensor, own: Tensor | None, settings: PenaltySettings, *, look: bool) -> Tensor:
    """Return labels as values, and the model's own output where there is none."""
    assert points.labels is not None
    count = len(points.labels)
    missing = None if own is None else own[points.pairs[:count]].reshape(2 * count, -1)
    labels = points.labels.flatten(0, 1)
    targets = as_targets(labels, rows.shape[1:], output=settings.output, missing=missing, look=look)
    return targets.to(rows.dtype).view(count, 2, -1)


def teacher_values(returned: Any, output: Output, *, like: Tensor, examples: int, look: bool) -> Tensor:
    """Return what a teacher returned as values like those of the model; ``look`` is as in ``shaped_values``."""
    if returned is None:
        raise TypeError("the teacher returned None. Does it lack `return`? Its outputs are the targets of the model.")
    values = shaped_values(returned, output, points=examples, look=look, whose="teacher").detach()
    if values.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"the teacher's outputs are of shape {tuple(values.shape[1:])} per example, the model's of "
            f"{tuple(like.shape[1:])}. Both must have the same outputs."
        )
    return values.to(like.dtype)
