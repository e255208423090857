"""How the weight of the penalty changes during training. Any function of the step will do; these are the paper's."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._utils.checks import check_count, check_weight

Schedule = Callable[[int], Any]
"""The weight at a step."""


@dataclass(frozen=True)
class Constant:
    """The same weight at every step: for fine-tuning and other short training runs.

    Attributes:
        weight: The weight (the paper's λ), zero or positive.

    Raises:
        TypeError: If the weight is not a number.
        ValueError: If it is negative or not finite.

    Example:
        >>> import effdeg
        >>> weight = effdeg.Constant(0.5)
        >>> weight(0), weight(1000)
        (0.5, 0.5)
    """

    weight: float

    def __post_init__(self) -> None:
        check_weight(self.weight)

    def __call__(self, step: int | Tensor) -> float:  # noqa: ARG002
        """Return the weight at a step."""
        return self.weight


@dataclass(frozen=True)
class SineRamp:
    """Rise from 0 to the full weight along a quarter of a sine, then stay there: the task is learned first.

    weight(step) = weight · sin(π/2 · min(step/steps, 1)). The paper says "increasing sinusoidally from 0 to λ" and
    ramps over the first third of training; we read this as a quarter of a sine, not as the S-shaped
    (1 − cos(π · step/steps))/2.

    Attributes:
        weight: The full weight (the paper's λ), zero or positive.
        steps: The number of steps that the rise takes; with 0 the full weight holds from the start.

    Raises:
        TypeError: If the weight is not a number, or the number of steps is not an integer.
        ValueError: If one of them is negative or not finite.

    Example:
        >>> import effdeg
        >>> weight = effdeg.SineRamp(7.0, steps=300 // 3)
        >>> [round(weight(step), 2) for step in (0, 50, 100, 299)]
        [0.0, 4.95, 7.0, 7.0]
    """

    weight: float
    steps: int

    def __post_init__(self) -> None:
        check_weight(self.weight)
        check_count("steps", self.steps, least=0)

    def __call__(self, step: int | Tensor) -> Any:
        """Return the weight at a step; a tensor if the step is one, so that a captured step can count by itself."""
        if isinstance(step, Tensor):
            share = (step / self.steps).clamp(0, 1) if self.steps else torch.ones_like(step, dtype=torch.float32)
            return self.weight * torch.sin(share * (math.pi / 2))
        return self.weight * math.sin(min(max(step / self.steps, 0), 1) * math.pi / 2) if self.steps else self.weight


def as_schedule(weight: float | Schedule) -> Schedule:
    """Return a schedule as it is, and a number as a constant weight."""
    if callable(weight) and not isinstance(weight, type):
        return weight
    varying = "is a function of the step, such as weight=effdeg.SineRamp(7.0, steps=1000)"
    return Constant(check_weight(weight, varying=varying))
