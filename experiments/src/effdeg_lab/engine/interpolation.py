"""Weights between a pretrained and a fine-tuned model, and means of several fine-tuned models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Point = tuple[float, float]
ALPHAS = tuple(step / 10 for step in range(11))
"""The grid of WiSE-FT."""


def interpolate(start: Weights, end: Weights, alpha: float) -> dict[str, Tensor]:
    """Return (1 − α) start + α end, of state dicts of one model (WiSE-FT; Wortsman et al., 2022).

    Floats are interpolated and returned in float32, or in float64 if either is float64. Those of both ends are exact,
    and so are values that are equal in both, even infinite ones. Integers and booleans, such as the number of batches
    that BatchNorm has seen, are those of ``end``, the fine-tuned model; the running statistics of BatchNorm are
    interpolated.
    """
    if unshared := sorted(start.keys() ^ end.keys()):
        raise ValueError(f"these are not state dicts of one model: only one of them has {', '.join(unshared[:5])}.")
    mixed = dict[str, Tensor]()
    for name, fine_tuned in end.items():
        if fine_tuned.is_floating_point():
            kind = torch.promote_types(torch.promote_types(start[name].dtype, fine_tuned.dtype), torch.float32)
            first, last = start[name].detach().to(fine_tuned.device, kind), fine_tuned.detach().to(kind)
            if alpha in {0, 1}:  # 0 · NaN is NaN
                mixed[name] = (last if alpha else first).clone()
            else:  # infinities, as in masks of attention, would become NaN
                mixed[name] = torch.where(first == last, last, (1 - alpha) * first + alpha * last)
        else:
            mixed[name] = fine_tuned.detach().clone()
    return mixed


def measure_curve(
    start: Weights, end: Weights, evaluate: Callable[[dict[str, Tensor]], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Evaluate the weights between two models: one row for each α, with α under ``alpha`` and what was returned.

    Both ends are copied first, so they may be the ``state_dict()`` of the model that ``evaluate`` loads weights into.
    """
    # At its ends, an interpolation is a copy.
    start, end = interpolate(start, end, 0), interpolate(start, end, 1)
    return [{"alpha": alpha, **evaluate(interpolate(start, end, alpha))} for alpha in ALPHAS]


def covers(curve: Sequence[Point], other: Sequence[Point], *, margin: float = 0.0) -> bool:
    """Return whether a curve of points (x, y), both better if larger, covers all points of another.

    It covers a point if the line through its points, in their order, somewhere reaches at least the same x and the same
    y, to within the margin.
    """
    segments = [*pairwise([*curve, curve[-1]])]
    corners = [(x - margin, y - margin) for x, y in other]
    return all(any(_reaches(*ends, corner) for ends in segments) for corner in corners)


def _reaches(start: Point, end: Point, corner: Point) -> bool:
    """Return whether some point of a straight segment reaches at least both coordinates of a corner."""
    low, high = 0.0, 1.0  # the part of the segment that is left
    for first, last, bound in zip(start, end, corner, strict=True):
        if first < bound and last < bound:
            return False
        if first < bound:
            low = max(low, (bound - first) / (last - first))
        elif last < bound:
            high = min(high, (bound - first) / (last - first))
    return low <= high


def uniform_soup(states: Iterable[Weights]) -> dict[str, Tensor]:
    """Return the mean of state dicts of one model, read one by one; integers and booleans are those of the last."""
    soup = dict[str, Tensor]()
    for count, state in enumerate(states, start=1):
        soup = interpolate(soup or state, state, 1 / count)
    return soup


@dataclass(frozen=True)
class Soup:
    """A greedy soup: the mean of some of the models."""

    state: dict[str, Tensor]
    names: tuple[str, ...]  # of the models in it, in the order in which they were added
    score: float  # on the examples that they were chosen on


def greedy_soup(states: Mapping[str, Weights], score: Callable[[Weights], float]) -> Soup:
    """Return the mean of the models that improve it (model soups; Wortsman et al., 2022).

    Models are tried from the best to the worst, and each stays if the mean with it scores higher than without, on
    held-out examples that are used for nothing else.
    """
    scores = {name: score(state) for name, state in states.items()}
    first, *rest = sorted(scores, key=scores.__getitem__, reverse=True)
    names, best, soup = [first], scores[first], uniform_soup([states[first]])
    for name in rest:
        tried = interpolate(soup, states[name], 1 / (len(names) + 1))
        if (found := score(tried)) > best:
            names, best, soup = [*names, name], found, tried
    return Soup(soup, tuple(names), best)
