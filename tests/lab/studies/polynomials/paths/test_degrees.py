import numpy as np
import torch

from effdeg.lab.studies.polynomials.paths.degrees import degree_found, leading_coefficients
from effdeg.lab.studies.polynomials.paths.random_polynomials import RandomPolynomials


def single(*terms):
    """A polynomial given by terms: a factor and the exponents."""
    factors, exponents = zip(*terms, strict=True)
    degree = max(map(sum, exponents))
    return RandomPolynomials(torch.tensor([exponents]), torch.tensor([factors], dtype=torch.float64), degree)


def test_the_degree_is_that_of_the_highest_coefficient_above_the_threshold():
    coefficients = torch.tensor([[1.0, 2.0, 0.1, 0.0, 1e-8]], dtype=torch.float64).mT
    assert degree_found(coefficients, 1e-9).tolist() == [4]
    assert degree_found(coefficients, 1e-3).tolist() == [2]
    assert degree_found(coefficients, 0.4).tolist() == [1]
    assert degree_found(torch.zeros(5, 1), 1e-9).tolist() == [0]


def test_the_leading_coefficient_is_that_of_naive_algebra():
    polynomial = single((2.0, (2, 1)), (-3.0, (1, 2)), (5.0, (1, 1)), (7.0, (0, 0)))
    first, second = np.array([0.3, -0.7]), np.array([-0.2, 0.9])
    x, y = (np.polynomial.Polynomial([(a + b) / 2, (a - b) / 2]) for a, b in zip(first, second, strict=True))
    path = 2 * x**2 * y - 3 * x * y**2 + 5 * x * y + 7
    expected = path.convert(kind=np.polynomial.Chebyshev).coef[3]
    found, vanishing = leading_coefficients(polynomial, torch.tensor(first - second)[None])
    np.testing.assert_allclose(found, [[expected]], rtol=1e-12)
    assert vanishing.tolist() == [[False]]


def test_it_vanishes_where_the_leading_part_does():
    directions = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.0, 0.0]], dtype=torch.float64)
    product = single((1.0, (1, 1)), (4.0, (1, 0)))
    assert leading_coefficients(product, directions)[1].tolist() == [[True], [True], [False], [True]]
    # x² - y², whose zeros are no zeros of its terms.
    difference = single((1.0, (2, 0)), (-1.0, (0, 2)))
    assert leading_coefficients(difference, directions)[1].tolist() == [[False], [False], [True], [True]]
