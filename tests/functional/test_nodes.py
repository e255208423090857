import math

import pytest
import torch

from effdeg.functional import chebyshev_nodes, cosine_nodes, uniform_nodes


@pytest.mark.parametrize("nodes", [1, 2, 4, 15, 200])
def test_chebyshev_nodes_are_the_papers(nodes):
    expected = [0.5 * (1 - math.cos((2 * i - 1) * math.pi / (2 * nodes))) for i in range(1, nodes + 1)]
    torch.testing.assert_close(chebyshev_nodes(nodes), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)


def test_uniform_nodes_include_both_ends():
    assert uniform_nodes(5).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert uniform_nodes(1).tolist() == [0.5]


@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("nodes", [2, 3, 4, 15])
def test_cosine_angles_stay_in_their_strata(nodes, anchored):
    alpha = cosine_nodes(nodes, 500, anchored=anchored, generator=torch.Generator().manual_seed(0))
    assert (alpha.shape, alpha.dtype) == ((500, nodes), torch.float64)
    angles = torch.acos(1 - 2 * alpha) * nodes / math.pi
    strata = torch.arange(nodes, dtype=torch.float64)
    assert bool((angles >= strata - 1e-6).all())
    assert bool((angles <= strata + 1 + 1e-6).all())
    assert bool((alpha.diff(dim=1) >= 0).all())
    if anchored:
        assert bool((alpha[:, 0] == 0).all())
        assert bool((alpha[:, -1] == 1).all())
        within = (angles - strata)[:, 1:-1]
    else:
        within = angles - strata
    if within.numel():
        # Uniform within the stratum: mean 1/2, variance 1/12.
        assert abs(within.mean() - 0.5) < 0.05
        assert abs(within.var() - 1 / 12) < 0.01


def test_cosine_nodes_repeat_with_the_generator():
    draws = [cosine_nodes(6, 3, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(*draws)
    torch.manual_seed(7)
    assert torch.equal(cosine_nodes(6, 3), draws[0])  # without a generator, torch's own is used


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: chebyshev_nodes(0), "nodes=0 is too small"),
        (lambda: uniform_nodes(-1), "nodes=-1 is too small"),
        (lambda: cosine_nodes(1, 3, anchored=True), "nodes=1 is too small: it must be at least 2"),
        (lambda: cosine_nodes(4, 0), "paths=0 is too small"),
    ],
)
def test_bad_counts(make, message):
    with pytest.raises(ValueError, match=message):
        make()
