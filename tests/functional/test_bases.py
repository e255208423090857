import numpy as np
import pytest
import torch

from effdeg.functional import basis_matrix, evaluate
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
