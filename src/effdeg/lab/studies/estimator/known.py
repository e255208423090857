"""Functions whose effective degree along every path is known exactly."""

from typing import Protocol

import torch
from torch import Tensor

from effdeg._utils.shapes import Float
from effdeg.lab.studies.estimator.kinks import Kinks
from effdeg.lab.studies.estimator.polynomial import Polynomial
from effdeg.lab.studies.estimator.settings import Estimation
from effdeg.lab.studies.estimator.sine import Sine


class KnownFunction(Protocol):
    """A function of float64 with its expansion along paths."""

    def inputs(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw examples, on the function's device."""

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate the function at points, one row each."""

    def coefficients(self, first: Tensor, second: Tensor, degree: int) -> Tensor:
        """Return the exact Chebyshev coefficients in t = 2 alpha - 1, with alpha = 1 at the first ends."""


def known_function(settings: Estimation, generator: torch.Generator, device: torch.device) -> KnownFunction:
    """Make the function that the settings name."""
    if settings.function == "polynomial":
        return Polynomial(generator, device)
    if settings.function == "sine":
        return Sine(settings.frequency, device)
    return Kinks(settings.units, generator, device)


def exact_degrees(coefficients: Float[Tensor, "paths degrees outputs"]) -> Float[Tensor, "paths degrees"]:
    """Return the exact effective degree at every degree K: the sum of k |c_k| over k up to K, averaged over outputs."""
    degrees = torch.arange(coefficients.shape[1], dtype=torch.float64, device=coefficients.device)
    return (degrees[:, None] * coefficients.abs()).mean(-1).cumsum(-1)
