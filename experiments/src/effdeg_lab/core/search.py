"""Random search: points that are drawn once, by a seed, so that a recipe has the same ones for everybody."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any


class Draws:
    """Random values of hyperparameters. Numbers have three digits, as one would write them into a table."""

    def __init__(self, seed: int) -> None:
        # Python promises the same numbers for a seed from this one function alone, on all machines and versions.
        self._draw = random.Random(seed).random

    def uniform(self, low: float, high: float) -> float:
        return _round(low + (high - low) * self._draw())

    def log_uniform(self, low: float, high: float) -> float:
        """Draw a number between two others, every order of magnitude alike."""
        if not 0 < low <= high:
            raise ValueError(f"log_uniform({low:g}, {high:g}): expected 0 < low <= high.")
        return _round(math.exp(math.log(low) + math.log(high / low) * self._draw()))

    def choice(self, *values: Any) -> Any:
        return values[int(self._draw() * len(values))]

    def zero_or_uniform(self, low: float, high: float) -> float:
        """Draw zero in about half of all cases, and otherwise a number between two others."""
        drawn = self.uniform(low, high)
        return drawn if self._draw() < 0.5 else 0.0


def draw_points(draw: Callable[[Draws], Mapping[str, Any]], count: int, *, seed: int) -> tuple[Mapping[str, Any], ...]:
    """Draw the points of a :class:`~effdeg_lab.core.recipe.Recipe`'s search; more points begin with the same ones."""
    draws = Draws(seed)
    return tuple(draw(draws) for _ in range(count))


def _round(value: float) -> float:
    return float(f"{value:.3g}")
