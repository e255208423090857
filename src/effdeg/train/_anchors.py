"""Anchors: the values at the ends of paths, which are labels, what a teacher returned or the model's own outputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from effdeg._models.labels import as_targets, check_rows_of_labels
from effdeg._models.outputs import shaped_values
from effdeg.train._batch import TrainingBatch
from effdeg.train._points import Points
from effdeg.train._settings import PenaltySettings


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
    if labels.is_complex():
        raise TypeError(f"the labels (y) are complex ({labels.dtype}); give class ids or labels in floating point.")


def check_teacher(settings: PenaltySettings, unlabeled: int, teacher: object = None) -> None:
    """Raise unless there is something to do for a teacher, and it can be called if it is given."""
    if teacher is not None and not callable(teacher):
        raise TypeError(f"the teacher is a {type(teacher).__name__}, which cannot be called.")
    anchor = settings.anchor
    if anchor is None or (anchor == "labels" and not unlabeled):
        raise ValueError(
            f"a teacher gives the values at the ends of paths, but with anchor={anchor!r} "
            f"{'there are none' if anchor is None else 'and no unlabeled examples the labels do'}. "
            "Use Penalty(anchor='self'), or leave out the teacher."
        )
    if settings.end_gradients:
        raise ValueError("end_gradients=True has no effect with a teacher, which runs without gradients.")


def run_teacher(teacher: Callable[..., Any], batch: TrainingBatch, settings: PenaltySettings) -> Any:
    """Run a teacher on the examples whose outputs are the values at ends of paths."""
    arguments, keywords = batch.inputs if settings.anchor == "self" else batch.take_unlabeled()
    with torch.no_grad():
        return teacher(*arguments.values(), **keywords)


def find_ends(rows: Tensor, points: Points, settings: PenaltySettings, *, returned: Any, look: bool) -> Tensor:
    """Return the values at the outer nodes, the first example's first: labels, a teacher's or the model's outputs."""
    labeled = 0 if points.labels is None else len(points.labels)
    own = rows[: points.examples] if len(rows) == points.total else None
    if own is not None and settings.anchor is not None and not settings.end_gradients:
        own = own.detach()
    parts = [] if points.labels is None else [_label_values(points, rows, own, settings, look=look)]
    if labeled < len(points.pairs):
        source = own if returned is None else _teacher_values(returned, points, rows, settings)
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


def _teacher_values(returned: Any, points: Points, rows: Tensor, settings: PenaltySettings) -> Tensor:
    """Return what a teacher returned as values, one row for each example that it was asked about."""
    asked = points.unlabeled + (points.batch if points.labels is None else 0)
    values = shaped_values(returned, settings.output, points=asked).detach()
    if values.shape[1:] != rows.shape[1:]:
        raise ValueError(
            f"the teacher's outputs are of shape {tuple(values.shape[1:])} per example, the model's of "
            f"{tuple(rows.shape[1:])}. Both must have the same outputs."
        )
    return values.to(rows.dtype)
