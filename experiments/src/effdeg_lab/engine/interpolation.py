"""Weights between a pretrained and a fine-tuned model, and means of several fine-tuned models."""

import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

    Raises:
        ValueError: If the state dicts differ in keys, shapes or kinds or hold more than tensors, or α is not in [0, 1].
        TypeError: If one is not a state dict.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha}: expected a number from 0, the start, to 1, the fine-tuned model.")
    check_same(start, end)
    mixed = dict[str, Tensor]()
    for name, fine_tuned in end.items():
        if _is_mixed(fine_tuned):
            kind = torch.promote_types(torch.promote_types(start[name].dtype, fine_tuned.dtype), torch.float32)
            first, last = start[name].detach().to(fine_tuned.device, kind), fine_tuned.detach().to(kind)
            if alpha in {0, 1}:  # 0 · NaN is NaN
                mixed[name] = (last if alpha else first).clone()
            else:  # infinities, as in masks of attention, would become NaN
                mixed[name] = torch.where(first == last, last, (1 - alpha) * first + alpha * last)
        else:
            mixed[name] = fine_tuned.detach().clone()
    return mixed


def check_same(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Raise unless two state dicts have the same keys, and tensors of the same shapes and kinds under them."""
    _check_state(first)
    _check_state(second)
    problems = [f"{name} is only in the first" for name in first if name not in second]
    problems += [f"{name} is only in the second" for name in second if name not in first]
    for name in first.keys() & second.keys():
        shapes = [tuple(state[name].shape) for state in (first, second)]
        if shapes[0] != shapes[1]:
            problems.append(f"{name} has the shapes {shapes[0]} and {shapes[1]}")
        elif _is_mixed(first[name]) != _is_mixed(second[name]):
            problems.append(f"{name} is {first[name].dtype} and {second[name].dtype}")
    if problems:
        shown = "; ".join(sorted(problems)[:5]) + ("" if len(problems) <= 5 else f"; and {len(problems) - 5} more")
        raise ValueError(f"these are not state dicts of one model: {shown}.")


def _check_state(state: object) -> None:
    if not isinstance(state, Mapping):
        raise TypeError(f"expected a state dict, model.state_dict(), not a {type(state).__name__}.")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ValueError(f"{name} is of type {kind}, not a tensor: give the state dict, not the whole checkpoint.")


def measure_curve(
    start: Weights, end: Weights, evaluate: Callable[[dict[str, Tensor]], Mapping[str, float]]
) -> list[dict[str, float]]:
    """Evaluate the weights between two models: one row for each α, with α under ``alpha`` and what was returned.

    Both ends are copied first, so they may be the ``state_dict()`` of the model that ``evaluate`` loads weights into.
    """
    # At its ends, an interpolation is a copy.
    start, end = interpolate(start, end, 0), interpolate(start, end, 1)
    return [{"alpha": alpha, **_check_row(evaluate(interpolate(start, end, alpha)))} for alpha in ALPHAS]


def _check_row(found: object) -> Mapping[str, float]:
    if not isinstance(found, Mapping):
        raise TypeError(f"evaluate must return a dict, such as {{'test': 0.9}}, not a {type(found).__name__}.")
    return found


def dominates(curve: Iterable[Iterable[float]], other: Iterable[Iterable[float]], *, margin: float = 0.0) -> bool:
    """Return whether a curve of points (x, y), both better if larger, lies above another one everywhere.

    A curve *covers* a point if the line through the curve's points, in their order, somewhere reaches at least the same
    x and the same y, to within the margin. One curve dominates another if it covers all of the other's points, but the
    other does not cover all of its points. At most one of two curves can dominate the other; if neither does, they
    cross, or are equal to within the margin.

    Args:
        curve: By α, the accuracy in distribution and the mean accuracy under shifts, for example; also an N × 2 array.
        other: The points of another method, not necessarily at the same α.
        margin: Differences below this do not count, in both x and y.

    Raises:
        ValueError: If a curve is empty or is not of points of two finite numbers, or the margin is negative.
    """
    if not margin >= 0:
        raise ValueError(f"margin={margin}: expected at least 0.")
    one, two = _as_points(curve), _as_points(other)
    return covers(one, two, margin=margin) and not covers(two, one, margin=margin)


def _as_points(curve: Iterable[Iterable[float]]) -> list[Point]:
    try:
        points = [(float(x), float(y)) for x, y in curve]
    except (TypeError, ValueError):
        points = []
    if not points or not all(math.isfinite(number) for point in points for number in point):
        raise ValueError(
            "expected at least one point (x, y), all finite, such as [(row['test'], row['shifted']) for row in rows]; "
            f"given {reprlib.repr(curve)}."
        )
    return points


def covers(curve: Sequence[Point], other: Sequence[Point], *, margin: float = 0.0) -> bool:
    """Return whether a curve covers all points of another, in the words of :func:`dominates`."""
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


def uniform_soup(states: Iterable[Weights] | Mapping[str, Weights]) -> dict[str, Tensor]:
    """Return the mean of state dicts of one model; integers and booleans are those of the last.

    An iterator is read one by one: if it loads the states, few are in memory.

    Args:
        states: State dicts of one model, by name or not.

    Raises:
        ValueError: If there are none, they are not of one model, have NaN, or share memory with each other.
    """
    soup = dict[str, Tensor]()
    named = (
        states.items() if isinstance(states, Mapping) else ((f"state {n}", s) for n, s in enumerate(states, start=1))
    )
    if isinstance(states, Collection):
        named = _check_apart(dict(named)).items()
    for count, (name, state) in enumerate(named, start=1):
        soup = interpolate(soup or state, _check_numbers(name, state), 1 / count)
    if not soup:
        raise ValueError("a soup needs at least one state dict; given none.")
    return soup


def _check_numbers(name: str, state: Weights) -> Weights:
    _check_state(state)
    if wrong := [weight for weight, value in state.items() if bool(value.isnan().any())]:
        raise ValueError(f"{name} has NaN in {wrong[0]}, and so would the soup: leave it out.")
    return state


def _check_apart(states: dict[str, Weights]) -> dict[str, Weights]:
    """Raise if a model was saved several times without copies: then all its states have the last weights."""
    owners = dict[int, str]()
    for name, state in states.items():
        _check_state(state)
        for weight, value in state.items():
            # The address of an empty tensor is 0.
            if value.numel() and (owner := owners.setdefault(value.data_ptr(), name)) != name:
                raise ValueError(
                    f"{owner} and {name} share the memory of {weight}, so it is the same in both. Copy each when it is "
                    "saved: {key: value.clone() for key, value in model.state_dict().items()}."
                )
    return states


@dataclass(frozen=True)
class Soup:
    """A greedy soup: the mean of some of the models."""

    state: dict[str, Tensor]
    names: tuple[str, ...]  # of the models in it, in the order in which they were added
    score: float  # on the examples that they were chosen on
    scores: dict[str, float]  # of every single model


def greedy_soup(states: Mapping[str, Weights], score: Callable[[Weights], float]) -> Soup:
    """Return the mean of the models that improve it (model soups; Wortsman et al., 2022).

    Models are tried from the best to the worst, and each stays if the mean with it scores higher than without.

    Args:
        states: State dicts of one model, by name. Those of a dict are copied before any is scored; another mapping,
            which loads them on access, keeps few in memory.
        score: Scores a state dict, on held-out examples that are used for nothing else; higher is better.

    Raises:
        ValueError: As :func:`uniform_soup` does, or if a score is not a number.
        TypeError: If the states have no names, or a score is no number at all.
    """
    if not isinstance(states, Mapping):
        raise TypeError(f"states must be a dict of state dicts by name, not a {type(states).__name__}.")
    if not states:
        raise ValueError("a soup needs at least one state dict; given none.")
    kept: Mapping[str, Weights] = states
    if isinstance(states, dict):
        kept = {
            name: {key: value.detach().clone() for key, value in state.items()}
            for name, state in _check_apart(states).items()
        }
    scores = {name: _as_number(score(_check_numbers(name, kept[name]))) for name in kept}
    if wrong := [name for name, value in scores.items() if math.isnan(value)]:
        raise ValueError(f"the score of {', '.join(wrong)} is not a number.")
    first, *rest = sorted(scores, key=scores.__getitem__, reverse=True)
    names, best, soup = [first], scores[first], uniform_soup([kept[first]])
    for name in rest:
        tried = interpolate(soup, kept[name], 1 / (len(names) + 1))
        if (found := _as_number(score(tried))) > best:
            names, best, soup = [*names, name], found, tried
    return Soup(soup, tuple(names), best, scores)


def _as_number(found: Any) -> float:
    try:
        return float(found)
    except (TypeError, ValueError):
        raise TypeError(f"score must return a number; it returned {reprlib.repr(found)}.") from None


def _is_mixed(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
