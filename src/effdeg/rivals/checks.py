"""Errors for people about the settings that several rivals have."""

import math
from numbers import Real
from typing import Any

import torch


def check_number(name: str, value: Any, meaning: str, *, zero: bool = False) -> None:
    """Raise unless a setting is a positive number, or zero where that makes sense, and finite."""
    expected = "zero or positive" if zero else "positive"
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real:
        raise TypeError(f"{name}={value!r} must be a number, {expected}: {meaning}.")
    if not (0 <= value < math.inf if zero else 0 < value < math.inf):
        raise ValueError(f"{name}={value!r} must be {expected} and finite: {meaning}.")


def check_generator(generator: object) -> None:
    """Raise unless one can draw from it, or it is None for torch's own."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator={generator!r} must be a torch.Generator or None. For a seed: "
            "generator=torch.Generator().manual_seed(0)."
        )
