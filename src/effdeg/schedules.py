"""How the weight of the penalty moves during training. Any function of the step will do; these are the paper's."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Schedule = Callable[[int], Any]
"""The weight at a step."""


@dataclass(frozen=True)
class Constant:
    """The same weight at every step: for fine-tuning and other short trainings.

    Attributes:
        weight: The weight (the paper's lambda).
    """

    weight: float

    def __call__(self, step: int | Tensor) -> float:  # noqa: ARG002
        """Give the weight at a step."""
        return self.weight


@dataclass(frozen=True)
class SineRamp:
    """Rise along a quarter of a sine from 0 to the full weight, so that the task is learnt first, and stay there.

    The paper ramps over the first third of training: ``SineRamp(7.0, steps=total_steps // 3)``.

    Attributes:
        weight: The full weight (the paper's lambda).
        steps: How many steps the rise takes.
    """

    weight: float
    steps: int

    def __post_init__(self) -> None:
        if not self.steps >= 0:
            raise ValueError(f"steps={self.steps!r} must be zero (the full weight at once) or more.")

    def __call__(self, step: int | Tensor) -> Any:
        """Give the weight at a step; of a step in a tensor a tensor, so that a captured step can count by itself."""
        if isinstance(step, Tensor):
            share = (step / self.steps).clamp(0, 1) if self.steps else torch.ones_like(step, dtype=torch.float32)
            return self.weight * torch.sin(share * (math.pi / 2))
        return self.weight * math.sin(min(max(step / self.steps, 0), 1) * math.pi / 2) if self.steps else self.weight


def as_schedule(weight: float | Schedule) -> Schedule:
    """Take a number for a constant weight."""
    return weight if callable(weight) else Constant(float(weight))
