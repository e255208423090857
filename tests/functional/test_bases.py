from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

import effdeg
from effdeg._utils.checks import check_degree_weights
from effdeg.cli._options import FitOptions
from effdeg.functional import BASES, basis_matrix, effective_degree, evaluate
from tests.oracles import reference


@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
@pytest.mark.parametrize("degree", [0, 1, 2, 40, 100])
def test_matches_numpy(basis, degree):
    alpha = torch.linspace(0, 1, 57, dtype=torch.float64)
    expected = reference.VANDER[basis](2 * alpha.numpy() - 1, degree)
    np.testing.assert_allclose(basis_matrix(alpha, degree, basis).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
def test_batched_and_differentiable(basis):
    alpha = torch.rand(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert basis_matrix(alpha, 4, basis).shape == (2, 3, 5, 5)
    assert torch.autograd.gradcheck(lambda a: basis_matrix(a, 4, basis), alpha)


@pytest.mark.parametrize("basis", ["chebyshev", "legendre"])
def test_evaluate_matches_numpy(basis):
    rng = np.random.default_rng(0)
    coefficients, alpha = rng.standard_normal((3, 8, 2)), rng.random((3, 11))
    expected = [reference.EVALUATE[basis](2 * a - 1, c).T for a, c in zip(alpha, coefficients, strict=True)]
    values = evaluate(torch.tensor(coefficients), torch.tensor(alpha), basis)
    np.testing.assert_allclose(values.numpy(), np.stack(expected), atol=1e-12)


def test_unknown_basis_names_the_close_one():
    with pytest.raises(ValueError, match=r"basis='legendr' is not known\. Did you mean 'legendre'\?"):
        basis_matrix(torch.rand(3), 2, "legendr")


@pytest.mark.parametrize("normalized", [False, True])
def test_effective_degree_matches_the_definition(normalized):
    coefficients = torch.randn(2, 3, 6, 4, dtype=torch.float64)
    expected = [[reference.effective_degree(path.numpy(), normalized) for path in group] for group in coefficients]
    found = effective_degree(coefficients, normalized=normalized)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("normalized", [False, True])
def test_an_output_that_is_zero_has_degree_zero_and_no_gradient(normalized):
    coefficients = torch.randn(4, 3, dtype=torch.float64)
    coefficients[:, 1] = 0
    coefficients.requires_grad_()
    value = effective_degree(coefficients, normalized=normalized)
    others = effective_degree(coefficients[:, [0, 2]], normalized=normalized) * 2 / 3
    torch.testing.assert_close(value, others)
    value.backward()
    assert bool(coefficients.grad.isfinite().all())
    assert bool((coefficients.grad[:, 1] == 0).all())


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 3e38), (torch.float64, 1e307), (torch.float32, 1e-44)])
def test_normalized_the_effective_degree_neither_overflows_nor_underflows(dtype, size):
    coefficients = torch.full((41, 2), size, dtype=dtype).requires_grad_()
    value = effective_degree(coefficients, normalized=True)
    assert float(value.detach()) == pytest.approx(20, rel=1e-6)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("weights", ["degree", "square", [0, 0, 1, 2.5, 0.5, 7], (3.0, 0, 0, 0, 0, 0)])
def test_weights_against_a_loop(weights, normalized):
    coefficients = torch.randn(2, 6, 3, dtype=torch.float64)
    each = {"degree": range(6), "square": [k * k for k in range(6)]}.get(weights if isinstance(weights, str) else "")
    expected = torch.zeros(2, dtype=torch.float64)
    for path in range(2):
        for output in range(3):
            sizes = [abs(float(c)) for c in coefficients[path, :, output]]
            weighted = sum(w * size for w, size in zip(each or weights, sizes, strict=True))
            expected[path] += (weighted / sum(sizes) if normalized else weighted) / 3
    torch.testing.assert_close(effective_degree(coefficients, weights=weights, normalized=normalized), expected)


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ("squares", ValueError, "Did you mean 'square'"),
        (2.0, TypeError, "must be 'degree', 'square', or a list of 3 numbers"),
        ([1, 2], ValueError, "are 2 numbers; polynomials of degree 2 need 3"),
        ([0, 0, -1], ValueError, "must be zero or positive and finite"),
        ([0, 0, float("nan")], ValueError, "must be zero or positive and finite"),
        ([0, 0, "1"], TypeError, "must be a number"),
        ([0, 0, 0], ValueError, "all zero"),
    ],
)
def test_bad_weights_are_refused(weights, error, message):
    # Not through effective_degree, whose types are checked before it in these tests.
    with pytest.raises(error, match=message):
        check_degree_weights(weights, degree=2)


def test_another_basis_is_one_entry(monkeypatch):
    """Chebyshev's polynomials of the second kind, U_k = 2 t U_{k-1} − U_{k-2}, which the library does not have."""
    monkeypatch.setitem(BASES, "second", lambda _: (2.0, 1.0))
    angle = torch.linspace(0.1, 3.0, 40, dtype=torch.float64)
    alpha, degrees = (torch.cos(angle) + 1) / 2, torch.arange(9)
    expected = torch.sin((degrees + 1) * angle[:, None]) / torch.sin(angle)[:, None]
    torch.testing.assert_close(basis_matrix(alpha, 8, "second"), expected)
    # A straight line is (t + 1) / 2 = U_0 / 2 + U_1 / 4, and T_1 / 2: half the effective degree.
    ends, options = torch.tensor([[0.0], [1.0]]).double(), {"output": "identity", "paths": 5, "nodes": 12, "degree": 4}
    second, first = (effdeg.measure(nn.Identity(), ends, basis=basis, **options) for basis in ("second", "chebyshev"))
    assert second.value == pytest.approx(first.value / 2)
    penalty = effdeg.Penalty(basis="second", output="identity", sampling="chebyshev", damping=0.0)
    assert penalty(nn.Identity(), ends)[1].item() == pytest.approx(0.25)


def test_the_command_line_offers_every_basis():
    assert get_args(get_type_hints(FitOptions)["basis"]) == tuple(BASES)
