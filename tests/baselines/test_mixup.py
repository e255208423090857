"""Mixup at the inputs, against its formula."""

import copy

import numpy as np
import pytest
import torch
from scipy.special import expit
from scipy.stats import beta, kstwo
from torch.nn.functional import one_hot

from effdeg.baselines import mixup
from effdeg.baselines._mixup import Mixing, draw_shares
from tests.batches import X, Y
from tests.models import Pair


def drawn(examples=12, alpha=1.0, generator=None, seed=3):
    """Draw what the next call after the same seed draws."""
    torch.manual_seed(seed)
    mixing = Mixing.draw(examples, alpha, device=torch.device("cpu"), generator=generator)
    torch.manual_seed(seed)
    return mixing.share[0, 0], mixing.partners


def test_the_formula():
    share, partners = drawn()
    x, y = mixup(X, Y, classes=4)
    torch.testing.assert_close(x, share * X + (1 - share) * X[partners])
    torch.testing.assert_close(y, share * one_hot(Y, 4) + (1 - share) * one_hot(Y, 4)[partners])
    assert 0 < share < 1
    assert partners.sort().values.tolist() == list(range(12))


@pytest.mark.parametrize("alpha", [1e-4, 0.2, 5.0])
def test_lambda_is_beta(alpha):
    """Kolmogorov and Smirnov's test, on a grid: for a small alpha most of Beta is so near 0 or 1 as to be rounded."""
    shares = draw_shares(4000, alpha, device=X.device, generator=torch.Generator().manual_seed(0)).numpy()
    assert abs(np.corrcoef(shares[1:], shares[:-1])[0, 1]) < 0.06
    grid = expit(np.concatenate([np.linspace(-700, -30, 50), np.linspace(-30, 30, 400)]))
    found = np.searchsorted(np.sort(shares), grid, side="right") / len(shares)
    assert np.abs(found - beta.cdf(grid, alpha, alpha)).max() < kstwo.isf(1e-4, len(shares))
    assert abs(shares.mean() - 0.5) < 5 * beta.std(alpha, alpha) / len(shares) ** 0.5


def test_a_generator_draws_what_the_global_one_does():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        one, other = (Mixing.draw(5, 0.3, device=X.device, generator=each) for each in (None, generator))
        assert torch.equal(one.share, other.share)
        assert torch.equal(one.partners, other.partners)


@pytest.mark.parametrize(("alpha", "expected"), [(1e-320, {0.0, 1.0}), (1e300, {0.5}), (np.float32(2), 0), (3, 0)])
def test_any_positive_number_is_an_alpha(alpha, expected):
    torch.manual_seed(0)
    shares = {Mixing.draw(1, alpha, device=X.device, generator=None).share.item() for _ in range(50)}
    assert shares == expected if expected else all(0 < share < 1 for share in shares)


def test_trees_masks_and_what_is_shared():
    shared, flag = torch.randn(3, 5), "note"
    mask = torch.arange(6) < torch.arange(12)[:, None] % 7
    share, partners = drawn()
    x, _ = mixup({"pair": Pair(X, X.float()), "mask": mask, "pad_mask": mask.long(), "rest": (shared, flag)}, X[:, 0])
    expected = share * X + (1 - share) * X[partners]
    torch.testing.assert_close(x["pair"].left, expected)
    torch.testing.assert_close(x["pair"].right, expected.float())
    assert torch.equal(x["mask"], mask | mask[partners])
    assert torch.equal(x["pad_mask"], mask.long() & mask[partners].long())
    assert x["rest"][0] is shared
    assert x["rest"][1] is flag


@pytest.mark.parametrize("x", [{"x": X, "attention_mask": -1e9 * (X > 0)}, (X, -1e9 * (X > 0))])
def test_masks_that_are_added_to_scores_are_refused(x):
    """The middle of 0 and -1e9 hides as much as -1e9."""
    with pytest.raises(ValueError, match=r"hold -1e\+09, as a mask that is added to scores does"):
        mixup(x, Y, classes=4)


@pytest.mark.parametrize(
    ("labels", "classes", "shape"),
    [
        (Y, 4, (12, 4)),
        (Y.int(), 4, (12, 4)),
        (Y > 1, 2, (12, 2)),
        (Y.view(3, 4).expand(12, 3, 4) % 3, 3, (12, 3, 4, 3)),
        (torch.stack([Y, Y], 1), 5, (12, 2, 5)),
    ],
)
def test_ids_of_any_shape_become_soft_labels_that_sum_to_one(labels, classes, shape):
    _, soft = mixup(X.float(), labels, classes=classes)
    assert (soft.shape, soft.dtype) == (shape, torch.float32)
    torch.testing.assert_close(soft.sum(-1), torch.ones(shape[:-1]))


def test_labels_that_are_left_out_weigh_nothing():
    share, partners = drawn()
    labels = torch.where(torch.arange(12) % 3 == 0, -100, Y)
    _, soft = mixup(X, labels, classes=4)
    known = (labels >= 0).double()
    torch.testing.assert_close(soft.sum(-1), share * known + (1 - share) * known[partners])


def test_floating_labels_mix_as_they_are():
    share, partners = drawn()
    for labels in (X[:, 0], X.view(12, 2, 3).float()):
        torch.manual_seed(3)
        _, soft = mixup(X, labels)
        expected = share * labels.double() + (1 - share) * labels[partners].double()
        torch.testing.assert_close(soft, expected.to(labels.dtype))
        assert soft.dtype == labels.dtype


def test_half_precision_is_mixed_in_single_and_kept():
    (share, partners), dtype = drawn(), torch.bfloat16
    halves = X.to(dtype)
    x, y = mixup(halves, Y, classes=4)
    assert (x.dtype, y.dtype) == (dtype, torch.float32)
    exact = share * halves.double() + (1 - share) * halves[partners].double()
    torch.testing.assert_close(x.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_nothing_is_changed_in_place_and_gradients_flow():
    x, y = X.clone(), Y.clone()
    mixup(x, y, classes=4)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    leaf, targets = X.clone().requires_grad_(), torch.ones(12, 2, requires_grad=True)
    mixed, soft = mixup(leaf, targets)
    (mixed.sum() + soft.sum()).backward()
    torch.testing.assert_close(leaf.grad, torch.ones_like(leaf))
    torch.testing.assert_close(targets.grad, torch.ones(12, 2))


@pytest.mark.parametrize(
    ("arguments", "settings", "kind", "message"),
    [
        ((X, Y), {"classes": 4, "alpha": float("inf")}, ValueError, "alpha=inf must be positive and finite"),
        (({"a": X, "b": X.cdouble()}, Y), {"classes": 4}, TypeError, r"x \('b'\) holds complex numbers"),
        ((X, Y.cfloat()), {"classes": 4}, TypeError, r"labels \(y\) are complex"),
        ((torch.randint(255, (12, 3)), Y), {"classes": 4}, TypeError, "for token ids use embedding_mixup"),
        (("text", Y), {"classes": 4}, TypeError, "first dimension"),
    ],
)
def test_bad_input(arguments, settings, kind, message):
    with pytest.raises(kind, match=message):
        mixup(*copy.copy(arguments), **settings)


@pytest.mark.parametrize("y", [torch.arange(8.0) % 4, torch.eye(5)[torch.arange(8) % 5]])
def test_floating_labels_that_are_not_of_the_classes_are_refused(y):
    with pytest.raises(ValueError, match=r"in floating point, and so mixed as they are, but classes=4.*y\.long\(\)"):
        mixup(torch.rand(8, 6), y, classes=4)
