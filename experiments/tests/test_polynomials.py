"""Polynomials of known degree: closed forms, integrals, naive algebra and the library agree."""

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

import effdeg
from effdeg.functional import evaluate, fit
from effdeg_lab.studies.polynomials import (
    COLUMNS,
    DEGREES,
    RandomPolynomials,
    compute_closed_forms,
    compute_columns,
    compute_map,
    compute_path_coefficients,
    draw_inputs,
    integrate_columns,
)

FACTORS = {column.name: column.factor for column in COLUMNS}


def draw_ends(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return draw_inputs(count, generator), draw_inputs(count, generator)


def draw_polynomials(count=3, *, variables=3, degree=4, terms=None):
    generator = torch.Generator().manual_seed(0)
    return RandomPolynomials.draw(count, variables=variables, degree=degree, terms=terms, generator=generator)


def make_polynomial(*terms):
    """Make a polynomial of terms: a factor and the exponents."""
    factors, exponents = zip(*terms, strict=True)
    degree = max(map(sum, exponents))
    return RandomPolynomials(torch.tensor([exponents]), torch.tensor([factors], dtype=torch.float64), degree)


@pytest.fixture(scope="module")
def integrals():
    return {task: integrate_columns(task, pairs=2**14, seed=0) for task in DEGREES}


@pytest.mark.parametrize("task", [1, 2, 3])
def test_coefficients_are_those_of_naive_algebra_in_each_basis(task):
    first, second = draw_ends(5)
    found = compute_path_coefficients(task, first, second)
    columns = compute_columns(found)
    for path, (one, other) in enumerate(zip(first.numpy(), second.numpy(), strict=True)):
        x1, x2, x3 = (np.polynomial.Polynomial([(a + b) / 2, (a - b) / 2]) for a, b in zip(one, other, strict=True))
        outputs = {
            1: (x3 + 2, x2 + 3, x1 + 1),
            2: (x1 * x2, x2 * x3, x1 * x3),
            3: (x1 * x2 * x3, x1**2 * x2 * x3**2, x1**2 * x2 * x3 + x2**2 * x3),
        }[task]
        legendre = 0.0
        for output, polynomial in enumerate(outputs):
            chebyshev = polynomial.convert(kind=np.polynomial.Chebyshev).coef
            expected = np.pad(chebyshev, (0, 6 - len(chebyshev)))
            np.testing.assert_allclose(found[path, :, output], expected, rtol=1e-12, atol=1e-12)
            coefficients = polynomial.convert(kind=np.polynomial.Legendre).coef
            legendre += np.abs(coefficients) @ np.arange(len(coefficients)) / 3
        assert columns["legendre"][path] == pytest.approx(legendre, rel=1e-12)


@pytest.mark.parametrize("task", DEGREES)
def test_integrals_agree_with_closed_forms(task, integrals):
    for name, value in compute_closed_forms(task).items():
        found = integrals[task][name]
        assert found["stderr"] < 2e-3 * value
        assert abs(found["value"] - value) < 5 * found["stderr"]


def test_closed_forms_are_those_of_hand_calculations():
    one, two = compute_closed_forms(1), compute_closed_forms(2)
    assert one["chebyshev"] == one["legendre"] == pytest.approx(2 / 3)
    assert two == pytest.approx({"chebyshev": 32 / 27, "legendre": 4 / 3})
    # The mean distance between points of a cube, to the digits that everyone quotes; a line has one component.
    assert one["pca-1"] == pytest.approx(2 * 0.6617071822)
    assert one["pca-2"] == one["pca-1"] / 2
    assert compute_closed_forms(3) == compute_closed_forms(6) == {}


def test_maps_are_ordered_by_degree_and_doubled_in_every_column(integrals):
    for name, factor in FACTORS.items():
        values = [integrals[task][name]["value"] for task in DEGREES]
        assert values[0] < values[1] < values[2]
        assert values[3:] == pytest.approx([factor * value for value in values[:3]], rel=1e-12)


@pytest.mark.parametrize("task", [1, 2, 3])
def test_the_library_measures_the_same_path_by_path(task):
    inputs = torch.cat(draw_ends(20, seed=1))
    trace = effdeg.trace(partial(compute_map, task), inputs, paths=30, nodes=16, sampling="chebyshev")
    pairs = inputs[trace.pairs]
    expected = compute_columns(compute_path_coefficients(task, pairs[:, 0], pairs[:, 1]))
    for column in COLUMNS:
        found = trace.fit(degree=10, basis=column.basis, output="identity", components=column.components)
        sample = found.sample(normalized=column.normalized)
        torch.testing.assert_close(sample, expected[column.name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("task", "degree"), DEGREES.items())
def test_maps_have_their_degrees(task, degree):
    alpha = torch.linspace(0, 1, 12, dtype=torch.float64)
    first, second = draw_ends(1, seed=2)
    values = compute_map(task, alpha[:, None] * first + (1 - alpha[:, None]) * second)
    exact, too_low = (evaluate(fit(values, alpha, each, damping=0.0), alpha) for each in (degree, degree - 1))
    torch.testing.assert_close(exact, values, rtol=1e-9, atol=1e-9)
    assert float((too_low - values).abs().max()) > 1e-3


@pytest.mark.parametrize("terms", [None, 1, 5])
def test_values_are_sums_of_monomials(terms):
    polynomials, points = draw_polynomials(terms=terms), torch.randn(4, 3, dtype=torch.float64)
    exponents = polynomials.exponents.expand(3, -1, -1).tolist()
    expected = [
        [
            math.fsum(c * math.prod(np.power(point, powers)) for c, powers in zip(*polynomial, strict=True))
            for polynomial in zip(polynomials.coefficients.tolist(), exponents, strict=True)
        ]
        for point in points.tolist()
    ]
    np.testing.assert_allclose(polynomials(points), expected, rtol=1e-12)


@pytest.mark.parametrize(("variables", "degree"), [(1, 3), (2, 10), (4, 1)])
def test_all_terms_are_all_monomials_up_to_the_degree(variables, degree):
    found = [tuple(powers) for powers in draw_polynomials(variables=variables, degree=degree).exponents[0].tolist()]
    expected = {powers for powers in product(range(degree + 1), repeat=variables) if sum(powers) <= degree}
    assert len(found) == len(expected) == math.comb(variables + degree, degree)
    assert set(found) == expected


def test_random_terms_are_all_equally_likely():
    others = draw_polynomials(4000, variables=2, degree=2, terms=2).exponents[:, 1]
    _, counts = torch.unique(others, dim=0, return_counts=True)
    assert len(counts) == 6
    assert bool(((counts - 4000 / 6).abs() < 5 * math.sqrt(4000 / 6)).all())


def test_the_leading_coefficient_is_that_of_naive_algebra():
    polynomial = make_polynomial((2.0, (2, 1)), (-3.0, (1, 2)), (5.0, (1, 1)), (7.0, (0, 0)))
    first, second = np.array([0.3, -0.7]), np.array([-0.2, 0.9])
    x, y = (np.polynomial.Polynomial([(a + b) / 2, (a - b) / 2]) for a, b in zip(first, second, strict=True))
    path = 2 * x**2 * y - 3 * x * y**2 + 5 * x * y + 7
    found, vanishing = polynomial.compute_leading_coefficients(torch.tensor(first - second)[None])
    np.testing.assert_allclose(found, [[path.convert(kind=np.polynomial.Chebyshev).coef[3]]], rtol=1e-12)
    assert vanishing.tolist() == [[False]]


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([(1.0, (1, 1)), (4.0, (1, 0))], [True, True, False, True]),
        ([(1.0, (2, 0)), (-1.0, (0, 2))], [False, False, True, True]),  # x² - y²: its zeros are no zeros of its terms
    ],
)
def test_the_leading_coefficient_vanishes_where_the_leading_part_does(terms, expected):
    directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    _, vanishing = make_polynomial(*terms).compute_leading_coefficients(directions)
    assert vanishing[:, 0].tolist() == expected
