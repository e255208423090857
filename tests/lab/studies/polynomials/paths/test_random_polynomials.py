import math
from itertools import product

import numpy as np
import pytest
import torch

from effdeg.lab.studies.polynomials.paths.random_polynomials import RandomPolynomials, draw_examples


def drawn(count=3, *, variables=3, degree=4, terms=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return RandomPolynomials.draw(count, variables=variables, degree=degree, terms=terms, generator=generator)


def naive(polynomials, number, point):
    """One polynomial at one point, term by term."""
    exponents = polynomials.exponents[min(number, len(polynomials.exponents) - 1)].tolist()
    coefficients = polynomials.coefficients[number].tolist()
    return math.fsum(
        factor * math.prod(x**power for x, power in zip(point, powers, strict=True))
        for factor, powers in zip(coefficients, exponents, strict=True)
    )


@pytest.mark.parametrize("terms", [None, 1, 5])
def test_values_are_sums_of_monomials(terms):
    polynomials, points = drawn(terms=terms), torch.randn(4, 3, dtype=torch.float64)
    expected = [[naive(polynomials, number, point) for number in range(3)] for point in points.tolist()]
    np.testing.assert_allclose(polynomials(points), expected, rtol=1e-12)


@pytest.mark.parametrize(("variables", "degree"), [(1, 3), (2, 10), (3, 4), (4, 1)])
def test_all_terms_are_all_monomials_up_to_the_degree(variables, degree):
    found = [tuple(powers) for powers in drawn(variables=variables, degree=degree).exponents[0].tolist()]
    expected = {powers for powers in product(range(degree + 1), repeat=variables) if sum(powers) <= degree}
    assert len(found) == len(expected) == math.comb(variables + degree, degree)
    assert set(found) == expected


@pytest.mark.parametrize("terms", [1, 2, 20])
def test_some_terms_have_the_degree_and_none_a_higher_one(terms):
    polynomials = drawn(50, variables=10, degree=7, terms=terms)
    totals = polynomials.exponents.sum(-1)
    assert polynomials.exponents.shape == (50, terms, 10)
    assert bool((totals[:, 0] == 7).all())
    assert int(totals.max()) == 7
    assert int(polynomials.exponents.min()) == 0


def test_random_terms_are_all_equally_likely():
    others = drawn(4000, variables=2, degree=2, terms=2).exponents[:, 1]
    _, counts = torch.unique(others, dim=0, return_counts=True)
    assert len(counts) == 6
    assert bool(((counts - 4000 / 6).abs() < 5 * math.sqrt(4000 / 6)).all())


def test_the_leading_part_is_homogeneous_and_what_remains_far_out():
    polynomials, points = drawn(degree=5), torch.randn(3, 3, dtype=torch.float64)
    leading = polynomials.leading_part()
    torch.testing.assert_close(leading(3 * points), 3**5 * leading(points), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(polynomials(1e6 * points) / 1e30, leading(points), rtol=1e-4, atol=1e-4)


def test_scaled_polynomials_have_a_standard_deviation_of_one():
    points = draw_examples("normal", 500, 3, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn().scaled(points)(points).std(0), torch.ones(3, dtype=torch.float64))


def test_sizes_are_the_polynomials_of_the_sizes_of_coefficients():
    points = torch.rand(5, 3, dtype=torch.float64)
    assert bool((drawn().sizes()(points) >= drawn()(points).abs()).all())


def test_examples_lie_where_they_should():
    generator = torch.Generator().manual_seed(0)
    uniform, normal, lattice = (draw_examples(kind, 2000, 2, generator) for kind in ("uniform", "normal", "lattice"))
    assert 0.99 < float(uniform.abs().max()) <= 1
    assert float(normal.std()) == pytest.approx(1, abs=0.05)
    assert set(lattice.flatten().tolist()) == {-1, 0, 1}
    assert {each.dtype for each in (uniform, normal, lattice)} == {torch.float64}
