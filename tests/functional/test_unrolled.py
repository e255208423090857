import jaxtyping
import numpy as np
import pytest
import torch

from effdeg.functional import _projection as projection
from effdeg.functional import basis_matrix, chebyshev_nodes, cosine_nodes, effective_degree, fit, project, uniform_nodes
from effdeg.functional._unrolled import eigenvectors, least_squares_operator

# What is left off the diagonal in the worst case, relative to the largest eigenvalue.
ACCURACY = {1: 0.0, 2: 1e-14, 3: 1e-14, 5: 1e-10, 16: 1e-7}


def spectra(size):
    generator = torch.Generator().manual_seed(size)
    square = torch.randn(300, size, size, dtype=torch.float64, generator=generator)
    orthogonal = torch.linalg.qr(square)[0]
    close = torch.ones(size, dtype=torch.float64) + 1e-9 * torch.arange(size)
    return {
        "random": square,
        "of low rank": square[..., : max(1, size // 2)],
        "graded": square * torch.logspace(0, -8, size, dtype=torch.float64),
        "all but equal": orthogonal * close,
        "equal": orthogonal,
        "diagonal": torch.diag_embed(square[..., 0]),
        "zero": torch.zeros_like(square),
    }


@pytest.mark.parametrize("size", ACCURACY)
@pytest.mark.parametrize("kind", list(spectra(1)))
def test_eigenvectors_of_every_kind_of_spectrum(size, kind):
    factor = spectra(size)[kind]
    matrix = factor @ factor.mT
    values, vectors = eigenvectors(matrix)
    scale = torch.linalg.eigvalsh(matrix)[..., -1:].clamp(min=1e-300)
    assert (values.diff(dim=-1) >= 0).all()
    residual = (matrix @ vectors - vectors * values[:, None, :]).abs().amax((-2, -1)) / scale[:, 0]
    assert float(residual.max()) <= max(ACCURACY[size], 1e-14)
    # One zero column more than there should be, if the size is odd; otherwise an orthonormal basis.
    torch.testing.assert_close(vectors @ vectors.mT, torch.eye(size, dtype=torch.float64).expand_as(matrix))
    expected = torch.linalg.eigvalsh(matrix)
    largest = values[:, values.shape[-1] - size :]
    assert float(((largest - expected).abs() / scale).max()) < max(ACCURACY[size], 1e-14)


@pytest.mark.parametrize("damping", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize(("nodes", "degree"), [(2, 1), (15, 7), (16, 15)])
@pytest.mark.parametrize("sampling", ["cosine", "uniform"])
def test_the_operator_is_that_of_least_squares(sampling, nodes, degree, damping):
    alpha = (
        cosine_nodes(nodes, 50, generator=torch.Generator().manual_seed(0))
        if sampling == "cosine"
        else uniform_nodes(nodes)
    )
    design = basis_matrix(alpha, degree)
    operator = least_squares_operator(design, damping)
    for one, found in zip(
        design.reshape(-1, nodes, degree + 1).numpy(), operator.reshape(-1, degree + 1, nodes).numpy(), strict=True
    ):
        stacked = np.vstack([one, damping**0.5 * np.eye(degree + 1)])
        expected = np.linalg.pinv(stacked)[:, :nodes]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(7, 15, 40), (7, 9, 3), (2, 5, 5, 8)])
def test_components_without_a_library_call_are_the_same(shape, monkeypatch):
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    results = []
    for unrolled in (False, True):
        monkeypatch.setattr(projection, "_may_not_wait", lambda _, unrolled=unrolled: unrolled)
        leaf = values.clone().requires_grad_()
        scores = project(leaf, 2)
        scores.abs().sum().backward()
        results.append((scores.detach().abs(), leaf.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-8)


def make_paths(sharpness):
    """Draw label-anchored paths of probabilities of 1,000 classes, which are flat or, for 3, as of a trained network.

    Were they all but sure, paths between four classes would have three equal components, which may turn.
    """
    generator = torch.Generator().manual_seed(0)
    inner = (sharpness * torch.randn(16, 2, 1000, generator=generator)).softmax(-1)
    ends = torch.eye(1000)[torch.randint(1000, (16, 2), generator=generator)]
    return torch.cat([ends[:, :1], inner, ends[:, 1:]], dim=1)


def differentiate(run, values):
    leaf = values.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        scores = run(leaf, 3)
    degree = effective_degree(fit(scores, chebyshev_nodes(4), 3)).mean()
    degree.backward()
    return degree.detach(), leaf.grad


@pytest.mark.parametrize("sharpness", [0.1, 3.0])
def test_three_components_of_a_thousand_classes_without_a_library_call(sharpness, monkeypatch):
    values = make_paths(sharpness)
    expected = differentiate(project, values)
    monkeypatch.setattr(projection, "_may_not_wait", lambda _: True)
    assert_same(differentiate(project, values), expected)


@pytest.mark.filterwarnings("ignore")
def test_three_components_of_a_thousand_classes_compiled(monkeypatch):
    """Under autocast the derivative stays in float32: bf16 would be wrong by a hundredth."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the checks of `make test` cannot be compiled
    values = make_paths(3.0)
    expected = differentiate(project, values)
    monkeypatch.setattr(projection, "_may_not_wait", lambda _: True)
    compiled = torch.compile(project, fullgraph=True, dynamic=False, backend="aot_eager")
    assert_same(differentiate(compiled, values), expected)


def assert_same(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=0)
    assert float((found[1] - expected[1]).norm()) <= 1e-5 * float(expected[1].norm())
