import inspect

import numpy as np
import pytest
import torch

from effdeg.functional import (
    DAMPING,
    basis_matrix,
    chebyshev_nodes,
    condition_number,
    cosine_nodes,
    effective_degree,
    evaluate,
    fit,
    fit_operator,
    project,
    uniform_nodes,
)
from effdeg.functional import _bases as bases
from effdeg.functional import _fitting as fitting
from tests.oracles import reference

BASES = ["chebyshev", "legendre"]


def draw(scheme, nodes, paths, seed=0):
    if scheme == "cosine":
        return cosine_nodes(nodes, paths, generator=torch.Generator().manual_seed(seed))
    make = {"chebyshev": chebyshev_nodes, "uniform": uniform_nodes}[scheme]
    return make(nodes).expand(paths, -1).contiguous()


@pytest.mark.parametrize("function", [fit, effective_degree, project, evaluate])
def test_complex_numbers_are_refused(function):
    more = {fit: (chebyshev_nodes(5), 2), effective_degree: (), project: (1,), evaluate: (chebyshev_nodes(5),)}
    with pytest.raises(TypeError, match=r"are complex numbers \(torch.complex64\); real ones were expected"):
        inspect.unwrap(function)(1j * torch.rand(5, 1), *more[function])


@pytest.mark.parametrize("function", [fit, effective_degree, project])
def test_what_is_no_tensor_of_outputs_is_told(function):
    own, more = inspect.unwrap(function), {fit: (chebyshev_nodes(5), 2), effective_degree: (), project: (1,)}[function]
    with pytest.raises(ValueError, match=r"of shape \(5,\) have no dimension of outputs.*\[:, None\]"):
        own(torch.rand(5), *more)
    with pytest.raises(TypeError, match=r"are a ndarray; a tensor was expected"):
        own(np.ones((5, 1)), *more)


@pytest.mark.parametrize("damping", [0, DAMPING])
@pytest.mark.parametrize("scheme", ["cosine", "chebyshev", "uniform"])
@pytest.mark.parametrize("basis", BASES)
def test_degree_40_on_200_nodes_agrees_with_numpy(basis, scheme, damping):
    alpha = draw(scheme, 200, 5)
    values = torch.randn(5, 200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = [reference.FIT[basis](2 * a - 1, y, 40) for a, y in zip(alpha.numpy(), values.numpy(), strict=True)]
    expected = torch.tensor(np.stack(expected))
    for coefficients in (fit(values, alpha, 40, basis, damping), fit_operator(alpha, 40, basis, damping) @ values):
        assert float((coefficients - expected).norm() / expected.norm()) < 1e-9


@pytest.mark.parametrize("damping", [0.0, 1e-9, 1.0])
@pytest.mark.parametrize(("nodes", "degree"), [(3, 2), (15, 7), (15, 14)])
@pytest.mark.parametrize("scheme", ["cosine", "chebyshev", "uniform"])
@pytest.mark.parametrize("basis", BASES)
def test_small_fits_agree_with_the_oracle(basis, scheme, nodes, degree, damping):
    alpha = draw(scheme, nodes, 20)
    values = torch.randn(20, nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = [
        reference.damped_fit(y, a, degree, basis, damping) for a, y in zip(alpha.numpy(), values.numpy(), strict=True)
    ]
    expected = torch.tensor(np.stack(expected))
    torch.testing.assert_close(fit(values, alpha, degree, basis, damping), expected, rtol=1e-6, atol=1e-8)
    operator = fit_operator(alpha, degree, basis, damping)
    torch.testing.assert_close(operator @ values, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("nodes", "degree", "damping", "bound"),
    [(200, 40, 0.0, 1e-13), (60, 40, 0.0, 5e-11), (60, 40, DAMPING, 5e-11), (41, 40, DAMPING, 2e-10)],
)
def test_ill_conditioned_fits_agree_with_lstsq_on_the_stacked_system(nodes, degree, damping, bound, shared, basis):
    """Uniform nodes, with condition numbers from 6 to 4e9: the normal equations alone would be off by up to 2e-6."""
    alpha = uniform_nodes(nodes)
    values = torch.randn(nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    design = reference.VANDER[basis](2 * alpha.numpy() - 1, degree)
    stacked = np.vstack([design, damping**0.5 * np.eye(degree + 1)])
    right = np.vstack([values.numpy(), np.zeros((degree + 1, 2))])
    expected = torch.tensor(np.linalg.lstsq(stacked, right, rcond=None)[0])
    found = (
        fit(values, alpha, degree, basis, damping)
        if shared
        else fit(values[None], alpha[None], degree, basis, damping)[0]
    )
    assert float((found - expected).abs().max() / expected.abs().max()) < bound


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_too_few_nodes_that_differ(few, shared):
    alpha = torch.tensor([0.1, 0.9], dtype=torch.float64).repeat(2 if few else 15)
    values = torch.randn(len(alpha), 1, dtype=torch.float64)
    if not shared:
        other = chebyshev_nodes(len(alpha))  # one path that is well posed does not hide the one that is not
        alpha, values = torch.stack([other, alpha]), values.expand(2, -1, -1)
    with pytest.raises(ValueError, match=r"only 2 nodes .* distinct.*degree=3.*damping=DAMPING.*degree=1 or less"):
        fit(values, alpha, 3, damping=0.0)
    line = fit(values, alpha, 1, damping=0.0)
    assert bool(line.isfinite().all())
    # With damping it is the solution of least norm.
    last = fit(values, alpha, 3).reshape(-1, 4, 1)[-1]
    design = basis_matrix(alpha if shared else alpha[1], 3)
    nearest = torch.linalg.pinv(design) @ (values if shared else values[1])
    # In directions that the nodes do not determine, the rounding of sums over nodes is divided by the damping.
    rounding = values.shape[-2] * torch.finfo(torch.float64).eps * float(values.abs().max()) / DAMPING
    torch.testing.assert_close(last, nearest, rtol=1e-6, atol=rounding)


BROADCAST = [((9, 2), (5,)), ((1, 9, 2), (5,)), ((3, 5, 9, 2), (5,)), ((3, 1, 9, 2), (1, 5)), ((9, 2), (3, 5))]


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize(("values", "alpha"), BROADCAST)
def test_values_and_nodes_broadcast_as_in_a_product_with_the_operator(values, alpha, basis):
    values = torch.randn(values, dtype=torch.float64)
    alpha = draw("cosine", 9, int(np.prod(alpha))).view(*alpha, 9)
    expected = fit_operator(alpha, 4, basis) @ values
    torch.testing.assert_close(fit(values, alpha, 4, basis), expected, rtol=1e-8, atol=1e-10)


def test_nodes_that_all_but_coincide_are_fitted_as_accurately_as_qr_can():
    # Two nodes 1e-7 apart: the normal equations would lose every digit, the QR route keeps about nine.
    alpha = torch.tensor([[0.1, 0.4, 0.4 + 1e-7, 0.9]], dtype=torch.float64)
    truth = torch.tensor([[0.3], [-1.0], [0.5], [0.25]], dtype=torch.float64)
    values = basis_matrix(alpha, 3) @ truth
    assert float((fit(values, alpha, 3, damping=0.0) - truth).abs().max()) < 1e-7


@pytest.mark.parametrize("gap", [1e-2, 1e-6, 0.0])
def test_refinement_solves_the_damped_problem_however_close_two_nodes_come(gap):
    """What a GPU does instead of asking how well posed the problem is."""
    alpha = torch.tensor([[0.1, 0.4, 0.4 + gap, 0.9]], dtype=torch.float64)
    values = torch.randn(1, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    rows = bases.basis_rows(alpha, 3, "chebyshev")
    factor = torch.linalg.cholesky(rows @ rows.mT + DAMPING * torch.eye(4, dtype=torch.float64))
    refined = fitting._solve_and_refine(rows, values, rows @ values, factor, DAMPING)
    exact = fit_operator(alpha, 3) @ values
    # Nodes that coincide leave a condition number of sqrt(4 / damping), whose square the rounding errors feel.
    assert float((refined - exact).norm() / exact.norm()) < 1e-6


@pytest.mark.parametrize(("nodes", "degree", "damping"), [(6, 4, 0.01), (40, 20, 1e-6)])
@pytest.mark.parametrize("basis", BASES)
def test_gradient_is_the_closed_form(basis, nodes, degree, damping):
    """The paper's Proposition 5.1, damped: T (TᵀT + eps I)⁻¹ (sign(c) ⊙ d)."""
    alpha = draw("cosine", nodes, 4)
    values = torch.randn(4, nodes, 1, dtype=torch.float64, requires_grad=True)
    coefficients = fit(values, alpha, degree, basis, damping)
    effective_degree(coefficients).sum().backward()
    for path in range(4):
        design = reference.VANDER[basis](2 * alpha[path].numpy() - 1, degree)
        inner = np.linalg.inv(design.T @ design + damping * np.eye(degree + 1))
        signs = np.sign(coefficients[path, :, 0].detach().numpy())
        expected = design @ inner @ (signs * np.arange(degree + 1))
        np.testing.assert_allclose(values.grad[path, :, 0].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize(
    ("given", "back"), [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.float16, torch.float32)]
)
def test_dtypes(given, back):
    values = torch.randn(3, 8, 2).to(given)
    coefficients = fit(values, chebyshev_nodes(8), 5)
    assert coefficients.dtype == back
    expected = fit(values.double(), chebyshev_nodes(8), 5)
    torch.testing.assert_close(coefficients.double(), expected, rtol=1e-6, atol=1e-6)
    assert fit_operator(chebyshev_nodes(8).float(), 5).dtype == torch.float64


def test_autocast_does_not_touch_the_fit():
    values, alpha = torch.randn(3, 8, 2), draw("cosine", 8, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fit(values, alpha, 5)
    assert torch.equal(inside, fit(values, alpha, 5))


def test_theorem_3_1_the_degree_along_a_path_is_the_total_degree():
    """A random polynomial of total degree D in 4 variables has degree exactly D along random paths."""
    generator = torch.Generator().manual_seed(3)
    alpha = draw("cosine", 200, 50)
    for total in (1, 2, 3, 5, 8):
        first, second = torch.randn(2, 50, 1, 4, dtype=torch.float64, generator=generator)
        points = alpha[..., None] * first + (1 - alpha[..., None]) * second
        # A sum of products of `total` affine forms has total degree `total` and every lower-degree part.
        weights = torch.randn(3, total, 4, dtype=torch.float64, generator=generator)
        shifts = torch.randn(3, total, dtype=torch.float64, generator=generator)
        values = (torch.einsum("pnx,stx->pnst", points, weights) + shifts).prod(-1).sum(-1, keepdim=True)
        coefficients = fit(values, alpha, 40, damping=0.0).squeeze(-1)
        size = coefficients.abs().amax(1)
        assert bool((coefficients[:, total].abs() > 1e-10 * size).all())
        assert bool((coefficients[:, total + 1 :].abs().amax(1) < 1e-13 * size).all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit_operator(chebyshev_nodes(4), 4), "nodes=4 cannot determine a polynomial of degree=4"),
        (lambda: fit_operator(chebyshev_nodes(4), 3, damping=-1.0), "damping=-1.0 must be zero"),
        (lambda: fit_operator(chebyshev_nodes(4), -1), "degree=-1 is too small"),
        (lambda: fit_operator(2 * chebyshev_nodes(4) - 1, 3), r"nodes go from -0.924 to 0.924, .* give \(t \+ 1\) / 2"),
        (lambda: fit(torch.rand(2, 4, 2), torch.tensor([[0.0, 0.3, 0.6, 1.1]] * 2), 3), "positions in \\[0, 1\\]"),
        (lambda: inspect.unwrap(fit)(torch.rand(5, 2), chebyshev_nodes(4), 3), "5 nodes .* has 4"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("basis", BASES)
def test_the_condition_number_is_numpys_and_that_of_the_worst_path(basis):
    rows = torch.stack([uniform_nodes(15), chebyshev_nodes(15)])
    expected = [np.linalg.cond(reference.VANDER[basis](2 * alpha.numpy() - 1, 14)) for alpha in rows]
    assert condition_number(rows[0], 14, basis) == pytest.approx(expected[0], rel=1e-9)
    assert condition_number(rows, 14, basis) == pytest.approx(max(expected), rel=1e-9)
    assert condition_number(chebyshev_nodes(15), 14) == pytest.approx(2**0.5)  # columns of norm √r and √(r/2)
