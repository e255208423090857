"""Lanczos' method against matrices with known eigenvalues."""

import pytest
import torch

from effdeg.proxies._lanczos import MOST, largest_eigenvalue


def spectrum(values, seed=0):
    size = len(values)
    basis = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)).double())[0]
    return basis * values @ basis.T, basis


@pytest.mark.parametrize("memory", [20 * 400, 2**27])
@pytest.mark.parametrize(
    "values",
    [
        torch.linspace(-9, 1, 400),  # the largest is not the one of largest size
        torch.linspace(0, 1, 400) ** 0.25,  # many close to the largest
        torch.cat([torch.zeros(399), torch.ones(1)]),
        torch.linspace(-2, -1, 400),
        torch.ones(400),
    ],
)
def test_with_much_and_with_little_memory(monkeypatch, values, memory):
    monkeypatch.setattr("effdeg.proxies._lanczos._WORKING_SET", memory)
    matrix, _ = spectrum(values.double())
    start = torch.randn(400, generator=torch.Generator().manual_seed(1)).double()
    value, vector = largest_eigenvalue(lambda x: matrix @ x, start, tolerance=1e-6, what="it")
    assert value == pytest.approx(float(values.max()), rel=1e-6)
    assert float((matrix @ vector - value * vector).norm()) < 2e-6 * abs(value)
    assert float(vector.norm()) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_of_small_matrices(size):
    matrix, basis = spectrum(torch.arange(size) - 3.0)
    value, vector = largest_eigenvalue(lambda x: matrix @ x, torch.ones(size).double(), tolerance=1e-3, what="it")
    assert value == pytest.approx(size - 4, abs=1e-12)
    assert abs(float(vector @ basis[:, -1])) == pytest.approx(1, abs=1e-12)


def test_eigenvalues_whose_squares_leave_the_range_of_float64():
    matrix, _ = spectrum(torch.linspace(1, 9, 40).double())
    for factor in (1e200, 1e-200):
        value, _ = largest_eigenvalue(lambda x: factor * (matrix @ x), torch.ones(40).double(), 1e-6, "it")  # noqa: B023
        assert value == pytest.approx(9 * factor, rel=1e-6)


def test_it_says_when_it_has_not_converged(monkeypatch):
    monkeypatch.setattr("effdeg.proxies._lanczos._WORKING_SET", 0)
    values = 1 - torch.linspace(0, 1, 2000).double() ** 8  # flat at the top
    with pytest.warns(UserWarning, match=rf"it has not converged after {MOST} products.* may be off by"):
        largest_eigenvalue(lambda x: values * x, torch.ones(2000).double(), tolerance=1e-13, what="it")
