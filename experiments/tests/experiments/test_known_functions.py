"""Closed forms of Chebyshev coefficients against quadrature."""

import math
from functools import partial

import pytest
import torch

from effdeg_lab.experiments.estimator import make_kinks, make_polynomial, make_sine

FUNCTIONS = {
    "polynomial": make_polynomial,
    "sine": partial(make_sine, frequency=16.0),
    "kinks": partial(make_kinks, units=3),
}


def integrate(function, first, second, degree, points):
    """Compute Chebyshev coefficients by the midpoint rule in the angle."""
    angles = (torch.arange(points, dtype=torch.float64) + 0.5) * (math.pi / points)
    weights = torch.cos(torch.arange(degree + 1)[:, None] * angles) * (2 / points)
    weights[0] /= 2
    alpha = (1 + torch.cos(angles)[:, None]) / 2
    return torch.stack([
        weights @ function(torch.lerp(two, one, alpha)) for one, two in zip(first, second, strict=True)
    ])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_coefficients_are_those_of_a_dense_quadrature(name):
    inputs, evaluate, expand = FUNCTIONS[name](30, torch.Generator().manual_seed(2), torch.device("cpu"))
    first, second = inputs.chunk(2)
    # With a kink the error of the quadrature falls only as the square of its step.
    points, close = (40_000, 1e-8) if name == "kinks" else (512, 1e-12)
    found = expand(first, second, 45)
    expected = integrate(evaluate, first, second, 45, points)
    torch.testing.assert_close(found, expected, rtol=0, atol=close)
    torch.testing.assert_close(expand(first, second, 2), found[:, :3], rtol=0, atol=1e-15)
