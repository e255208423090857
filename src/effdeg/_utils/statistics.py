"""Means, their standard errors and their intervals."""

import math
from statistics import NormalDist

import torch
from torch import Tensor

_FEW = 100
"""Up to this many degrees of freedom the distribution is a short sum; beyond, its expansion is exact to 1e-7."""


def mean_and_stderr(sample: Tensor) -> tuple[float, float]:
    """Return the mean of independent draws and its standard error, which is infinite for a single draw."""
    unit = find_unit(sample)
    sample = sample / unit
    stderr = float(sample.std()) / math.sqrt(len(sample)) if len(sample) > 1 else math.inf
    return float(sample.mean()) * unit, stderr * unit


def find_unit(values: Tensor) -> float:
    """Return :func:`power_of_two` of the largest number, by which all can be divided before they are squared."""
    return float(power_of_two(torch.linalg.vector_norm(values.detach(), math.inf))) if values.numel() else 1.0


def power_of_two(largest: Tensor) -> Tensor:
    """Return a power of two of the size of a number, 1 if that is zero or not finite. This does not wait for a GPU.

    Division by it is exact, and the squares of numbers up to the largest do not leave the range of the precision.
    """
    mantissa = torch.frexp(largest).mantissa
    regular = (largest > 0) & largest.isfinite()
    return torch.where(regular, largest / 2 / mantissa, 1.0).clamp(min=torch.finfo(largest.dtype).tiny)


def interval(mean: float, stderr: float, *, count: int, level: float = 0.95) -> tuple[float, float]:
    """Return the interval that covers the true mean with probability ``level``, by Student's t."""
    margin = student_quantile((1 + level) / 2, count - 1) * stderr if count > 1 else math.inf
    return mean - margin, mean + margin


def format_estimate(mean: float, stderr: float | None) -> str:
    """Format a mean with its standard error, if it has one."""
    return f"{mean:.4g} ± {stderr:.2g}" if stderr is not None and math.isfinite(stderr) else f"{mean:.4g}"


def format_interval(low: float, high: float) -> str:
    """Format an interval, or note that a single path has none."""
    return f"{low:.4g} to {high:.4g}" if math.isfinite(high - low) else "none from a single path"


def student_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t distribution.

    Up to 100 degrees of freedom by bisection of the distribution (Abramowitz and Stegun 26.7.3 and 26.7.4), beyond by
    the expansion 26.7.5.
    """
    if freedom > _FEW:
        z = NormalDist().inv_cdf(probability)
        terms = (
            z,
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return math.fsum(term / freedom**power for power, term in enumerate(terms))
    low, high = -math.pi / 2, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _probability_within(middle, freedom) < 2 * probability - 1 else (low, middle)
    return math.sqrt(freedom) * math.tan(middle)


def _probability_within(angle: float, freedom: int) -> float:
    """Return the probability that Student's t lies within ± √freedom tan(angle)."""
    odd = freedom % 2
    total, term = 0.0, math.cos(angle) if odd else 1.0
    for number in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (number - 1) / number
    within = math.sin(angle) * total
    return 2 / math.pi * (angle + within) if odd else within
