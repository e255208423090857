"""The exact expansions, against dense quadrature and against one another."""

import math

import numpy as np
import pytest
import torch
from scipy import special

from effdeg.functional import evaluate
from effdeg.lab.studies.estimator.kinks import relu_coefficients
from effdeg.lab.studies.estimator.known import exact_degrees, known_function
from effdeg.lab.studies.estimator.settings import Estimation
from effdeg.lab.studies.estimator.sine import bessel

FUNCTIONS = {
    "polynomial": Estimation(),
    "sine": Estimation(function="sine", frequency=16.0),
    "kinks": Estimation(function="kinks", units=5),
}


def paths_of(settings, count=12):
    generator = torch.Generator().manual_seed(3)
    function = known_function(settings, generator, torch.device("cpu"))
    x = function.inputs(2 * count, generator)
    return function, x[:count], x[count:]


def by_quadrature(function, first, second, degree, points):
    """Chebyshev coefficients by the midpoint rule in the angle."""
    angles = (torch.arange(points, dtype=torch.float64) + 0.5) * (math.pi / points)
    weights = torch.cos(torch.arange(degree + 1)[:, None] * angles) * (2 / points)
    weights[0] /= 2
    t = torch.cos(angles)[:, None]
    ends = zip(first, second, strict=True)
    return torch.stack([weights @ function((one + two) / 2 + t * (one - two) / 2) for one, two in ends])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_coefficients_are_those_of_a_dense_quadrature(name):
    function, first, second = paths_of(FUNCTIONS[name])
    # A kink makes the quadrature converge as the square of its step only.
    points, close = (40_000, 1e-8) if name == "kinks" else (512, 1e-12)
    expected = by_quadrature(function, first, second, 45, points)
    torch.testing.assert_close(function.coefficients(first, second, 45), expected, rtol=0, atol=close)


@pytest.mark.parametrize("name", ["polynomial", "sine"])
def test_the_expansion_is_the_function(name):
    function, first, second = paths_of(FUNCTIONS[name])
    alpha = torch.rand(len(first), 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points = alpha[..., None] * first[:, None] + (1 - alpha[..., None]) * second[:, None]
    values = evaluate(function.coefficients(first, second, 60), alpha)
    torch.testing.assert_close(values, function(points.flatten(0, 1)).view_as(values), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_lower_degree_is_the_beginning_of_a_higher_one(name):
    function, first, second = paths_of(FUNCTIONS[name])
    low, high = (function.coefficients(first, second, degree) for degree in (2, 100))
    torch.testing.assert_close(low, high[:, :3], rtol=0, atol=1e-15)


def test_a_polynomial_has_no_more_than_its_degree():
    function, first, second = paths_of(FUNCTIONS["polynomial"])
    exact = exact_degrees(function.coefficients(first, second, 20))
    assert torch.equal(exact[:, 5], exact[:, 20])
    assert (exact[:, 5] > exact[:, 4]).all()


def test_bessel_functions_are_scipy_s():
    x = torch.cat([
        torch.linspace(-16, 16, 401, dtype=torch.float64),
        torch.tensor([0.0, 1e-9, 2.404825557695773], dtype=torch.float64),  # the last is a zero of J_0
    ])
    expected = special.jv(np.arange(77), x.numpy()[:, None])
    np.testing.assert_allclose(bessel(x, 76).numpy(), expected, rtol=0, atol=2e-15)


@pytest.mark.parametrize(("constant", "slope", "expected"), [(3.0, 2.0, (3.0, 2.0, 0.0)), (-3.0, 2.0, (0.0, 0.0, 0.0))])
def test_a_unit_that_is_always_on_or_off_is_a_line_or_nothing(constant, slope, expected):
    for sign in (1, -1):
        found = relu_coefficients(torch.tensor([constant]).double(), torch.tensor([sign * slope]).double(), 2)
        turned = torch.tensor([expected[0], sign * expected[1], expected[2]], dtype=torch.float64)
        torch.testing.assert_close(found[0], turned, rtol=0, atol=1e-15)


def test_a_kink_grows_with_the_logarithm_of_the_degree():
    slope, angle = 1.7, 1.0
    constant = torch.tensor([-slope * math.cos(angle)], dtype=torch.float64)
    found = relu_coefficients(constant, torch.tensor([slope], dtype=torch.float64), 40_000)
    exact = exact_degrees(found[..., None])[0]
    # c_k tends to -(2/π) w sin θ cos(kθ) / k², and |cos| is 2/π on average.
    doubling = 4 / math.pi**2 * slope * math.sin(angle) * math.log(2)
    for degree in (2500, 5000, 20_000):
        assert float(exact[2 * degree] - exact[degree]) == pytest.approx(doubling, rel=2e-3)


def test_exact_degrees_add_up():
    coefficients = torch.tensor([[[5.0, 1.0], [-1.0, 0.0], [2.0, -4.0]]], dtype=torch.float64)
    assert exact_degrees(coefficients).tolist() == [[0.0, 0.5, 0.5 + 2 * 3.0]]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"frequency": 0.0}, "constant"),
        ({"paths": 1}, "paths=1"),
        ({"draws": 1}, "draws=1"),
        ({"units": 0}, "units=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        Estimation(**changes)
