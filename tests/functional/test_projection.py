import numpy as np
import pytest
import torch

from effdeg.functional import _projection as projection
from effdeg.functional import chebyshev_nodes, effective_degree, fit, project
from effdeg.functional._projection import drop_noise, share_of_components
from tests.oracles import reference

SHAPES = [(4, 1000), (4, 4), (15, 6), (6, 1)]


@pytest.mark.parametrize(("nodes", "outputs"), SHAPES)
@pytest.mark.parametrize("components", [1, 3])
def test_scores_match_an_svd(nodes, outputs, components):
    values = torch.randn(5, nodes, outputs, dtype=torch.float64)
    scores = project(values, components)
    assert scores.shape == (5, nodes, components)
    for path in range(5):
        expected = reference.principal_scores(values[path].numpy(), components)
        found = scores[path].numpy()
        np.testing.assert_allclose(np.abs(found[:, : expected.shape[1]]), np.abs(expected), atol=1e-10)
        np.testing.assert_allclose(found[:, expected.shape[1] :], 0, atol=0)


@pytest.mark.parametrize(("nodes", "outputs"), SHAPES[1:])
def test_gradcheck_where_eigenvalues_are_distinct(nodes, outputs):
    # Signs are arbitrary, so the check is of an even function; singular values are set well apart.
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, nodes, outputs, dtype=torch.float64, generator=generator)
    left, _, right = torch.linalg.svd(values - values.mean(-2, keepdim=True), full_matrices=False)
    rank = min(nodes - 1, outputs)
    singular = torch.zeros(left.shape[-1], dtype=torch.float64)
    singular[:rank] = torch.linspace(3.0, 0.6, rank, dtype=torch.float64)
    values = (left * singular @ right).requires_grad_()
    weights = torch.randn(nodes, dtype=torch.float64, generator=generator)

    def even(v):
        return (torch.einsum("n,pnm->pm", weights, project(v, min(2, nodes - 1)))) ** 2

    assert torch.autograd.gradcheck(even, values, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("factor", [1e200, 1e-200])
def test_values_whose_squares_leave_the_range_of_float64(factor):
    values = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.randn(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = []
    for scale in (1.0, factor):
        leaf = (scale * values).requires_grad_()
        scores = project(leaf, 2)
        (weights * scores).sum().backward()
        found.append((scores.detach().abs() / scale, leaf.grad.abs()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("singular", [(1, 1e-3, 5e-4), (1, 0.9, 1e-4)])
def test_gradients_are_exact_for_small_components_too(singular):
    """Along real paths the components decay fast; those that are kept must still be differentiated exactly."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    left, _ = torch.linalg.qr(left - left.mean(0))
    right, _ = torch.linalg.qr(torch.randn(20, 3, dtype=torch.float64, generator=generator))
    singular = torch.tensor(singular, dtype=torch.float64)
    weights = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    gradients = []
    for scores in (lambda v: project(v, 3), scores_by_svd):
        leaf = (left * singular @ right.T).requires_grad_()
        ((weights * scores(leaf)).sum(0) ** 2 / singular**2).sum().backward()
        gradients.append(leaf.grad)
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 1e-6


def scores_by_svd(values):
    left, singular, _ = torch.linalg.svd(values - values.mean(-2, keepdim=True), full_matrices=False)
    return (left * singular[..., None, :])[..., :3]


STRAIGHT = chebyshev_nodes(4)[:, None] * torch.linspace(-1, 2, 10, dtype=torch.float64)
COINCIDENT = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]]).double() @ torch.eye(2, 10, dtype=torch.float64)
DEGENERATE = {
    "straight": STRAIGHT,  # one singular value, the others vanish
    "coincident": COINCIDENT,  # two equal singular values: the kept components may turn in their plane
    "nearly coincident": COINCIDENT * torch.tensor([1, 1 + 1e-9, *[1] * 8], dtype=torch.float64),
    "constant": torch.ones(4, 10, dtype=torch.float64),
}


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_are_finite_and_bounded_where_eigenvalues_meet_or_vanish(kind, components, dtype):
    values = DEGENERATE[kind].to(dtype, copy=True)[None].requires_grad_()
    scores = project(values, components)
    expected = reference.principal_scores(values[0].detach().double().numpy(), components)
    np.testing.assert_allclose(np.linalg.norm(scores[0].detach().numpy()), np.linalg.norm(expected), atol=1e-5)
    effective_degree(fit(scores, chebyshev_nodes(4), 3)).sum().backward()
    assert bool(values.grad.isfinite().all())
    assert float(values.grad.norm()) < 1e3


def test_a_straight_path_has_the_gradient_of_its_one_component():
    values = STRAIGHT.clone()[None].requires_grad_()
    scores = project(values, 3)
    assert bool((scores[..., 1:] == 0).all())
    (scores[..., 0] ** 2).sum().backward()  # the first eigenvalue: its gradient is 2 Y v vᵀ = 2 Y, for a straight path
    centered = values.detach() - values.detach().mean(-2, keepdim=True)
    torch.testing.assert_close(values.grad, 2 * centered, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_values_are_projected_in_float64(dtype):
    values = torch.randn(3, 4, 50).to(dtype)
    found, expected = project(values, 2).double(), project(values.double(), 2)
    torch.testing.assert_close(found.abs(), expected.abs(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
@pytest.mark.parametrize(("nodes", "outputs"), [(4, 10), (5, 3)])
def test_a_path_that_overflowed_has_no_number_and_the_others_have_theirs(nodes, outputs, broken, captured, monkeypatch):
    """So that a training step is skipped, by a GradScaler or its user, instead of ending the training."""
    monkeypatch.setattr(projection, "_may_not_wait", lambda _: captured)
    values = torch.randn(3, nodes, outputs, generator=torch.Generator().manual_seed(0))
    values[1, 2, 0] = broken
    values.requires_grad_()
    scores = drop_noise(project(values, 2), values)
    assert bool(scores[1].isnan().all())
    torch.testing.assert_close(scores[::2], project(values[::2], 2))
    scores.abs().sum().backward()
    assert bool(values.grad[::2].isfinite().all())
    assert bool(values.grad[1].isnan().any())


@pytest.mark.parametrize(("components", "message"), [(4, "components=4 is too many for nodes=4"), (0, "at least 1")])
def test_bad_input(components, message):
    with pytest.raises(ValueError, match=message):
        project(torch.rand(4, 10), components)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.01, 5.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_the_direction_in_which_probabilities_only_round_is_dropped(classes, scale, dtype):
    """The sum of probabilities is 1 but for rounding, which is alike in all of them where they are divided by a sum."""
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(50, 40, classes, dtype=dtype, generator=generator).cumsum(1) / 6
    values = logits.softmax(-1)
    scores = drop_noise(project(values.double(), classes), values)
    assert bool((share_of_components(scores) == (classes - 1) / classes).all())
    # Nothing of a component that rises above the rounding is changed.
    assert torch.equal(scores[..., : classes - 1], project(values.double(), classes)[..., : classes - 1])


def test_small_values_next_to_large_ones_are_no_noise():
    """A classifier that is sure: one probability is 1 in float32, and the others are tiny, but exact to 7 digits."""
    path = torch.linspace(0, 1, 40)[:, None]
    values = torch.cat([torch.ones(40, 1), 1e-9 * path, 1e-12 * path**2], dim=1)
    scores = drop_noise(project(values.double(), 2), values)
    assert bool((scores != 0).any(0)[0])
    constant = torch.ones(1, 40, 3)
    assert share_of_components(drop_noise(project(constant, 2), constant)).tolist() == [0.5]


def test_small_differences_around_a_large_mean():
    """Values of 1e6 ± 0.1 in float32: their own spacing is 1/16, which the rounding of their mean must not add to."""
    generator = torch.Generator().manual_seed(0)
    values = (1e6 + 0.1 * torch.randn(7, 30, generator=generator)).float()
    exact = values.double() - values.double().mean(0)
    u, s, _ = torch.linalg.svd(exact, full_matrices=False)
    scores = project(values, 3).double()
    assert torch.allclose(scores.abs(), (u * s)[:, :3].abs(), rtol=1e-6, atol=1e-6)
