import math

import pytest
import torch
from torch import nn

from effdeg.proxies import NotApplicable, margin, mixup_margin, spectral_product
from effdeg.proxies._margins import _draw_pairs_of_one_class
from tests.batches import X, Y, tokens
from tests.models import Tokens, mlp


def test_percentiles_of_the_margin():
    logits = torch.tensor([[3.0, 1, 0], [0, 1, 5], [2, 2.5, 0], [1, 0, 0], [0, 4, 1]])
    labels = torch.tensor([0, 1, 0, 0, 1])
    # The margins are 3 - 1, 1 - 5, 2 - 2.5, 1 - 0 and 4 - 1.
    for percentile, expected in ((0, -4), (25, -0.5), (50, 1), (100, 3)):
        assert margin(nn.Identity(), (logits, labels), percentile=percentile).value == expected
    assert margin(nn.Identity(), (logits, labels), percentile=50).stderr > 0
    assert margin(nn.Identity(), (logits[:1], labels[:1])).stderr == math.inf  # as of any mean of one


def test_the_error_bar_of_a_median_covers():
    # The standard error of the median of n normal draws is sqrt(pi / 2 n).
    draws = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    logits = torch.stack([draws, torch.zeros(4000)], dim=1)
    found = margin(nn.Identity(), (logits, torch.zeros(4000, dtype=torch.long)), percentile=50)
    assert found.stderr == pytest.approx((torch.pi / 2 / 4000) ** 0.5, rel=0.25)


def test_divided_by_spectral_norms():
    model = mlp()
    plain, divided = (margin(model, (X.float(), Y), spectral=spectral) for spectral in (False, True))
    assert divided.value == pytest.approx(plain.value / spectral_product(model).value)


def test_pairs_are_of_one_class_and_different():
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 1, 0])
    pairs = _draw_pairs_of_one_class(labels, 2000, seed=0)
    assert torch.equal(labels[pairs[:, 0]], labels[pairs[:, 1]])
    alone = labels[pairs[:, 0]] == 2
    assert bool((pairs[alone, 0] == pairs[alone, 1]).all())
    assert bool((pairs[~alone, 0] != pairs[~alone, 1]).all())
    # Every ordered pair of class 0 is drawn about equally often.
    zero = pairs[labels[pairs[:, 0]] == 0]
    _, counts = torch.unique(zero, dim=0, return_counts=True)
    assert len(counts) == 12
    assert float(counts.float().std() / counts.float().mean()) < 0.25


def test_the_mixup_margin_of_a_linear_model_is_the_distance_to_its_boundary():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x = torch.randn(40, 3, dtype=torch.float64)
    labels = (torch.arange(40) % 2).long()
    pairs = _draw_pairs_of_one_class(labels, 500, seed=0)
    midpoints = x[pairs].mean(1)
    direction = (model.weight[0] - model.weight[1]).detach()
    signed = (midpoints @ direction + (model.bias[0] - model.bias[1]).detach()) / direction.norm()
    expected = torch.where(labels[pairs[:, 0]] == 0, signed, -signed)
    found = mixup_margin(model, (x, labels), pairs=500, batch_size=64)
    assert found.value == pytest.approx(float(expected.mean()), rel=1e-9)
    assert found.stderr == pytest.approx(float(expected.std() / 500**0.5), rel=1e-6)


def test_a_mixup_margin_is_no_distance_in_a_mask():
    model, ones = mlp(), torch.ones(12, 6)

    def masked(x, mask):
        return model(x * mask)

    expected = mixup_margin(masked, ({"x": X.float(), "mask": ones.bool()}, Y))
    with pytest.warns(UserWarning, match=r"'mask'\) are a mask in floating point, which is interpolated"):
        assert mixup_margin(masked, ({"x": X.float(), "mask": ones}, Y)) == expected


def test_a_mixup_margin_at_a_layer():
    model, batch = Tokens(), tokens()
    labels = torch.arange(10) % 2
    found = mixup_margin(model, {**batch, "labels": labels}, at="embed", pairs=50)
    assert 0 < abs(found.value) < 100
    with pytest.raises(NotApplicable, match="at='embed'"):
        mixup_margin(model, {**batch, "labels": labels}, pairs=50)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.rand(12), "must be class ids, one whole number per example"),
        (torch.randint(3, (12, 2)), "must be class ids, one whole number per example"),
        (torch.full((12,), 9), "go from 9 to 9, but class ids are 0 to 3"),
        (torch.full((12,), -1), "from -1"),
    ],
)
def test_labels_that_are_no_classes(labels, message):
    for proxy in (margin, mixup_margin):
        with pytest.raises((TypeError, ValueError), match=message):
            proxy(mlp(), (X.float(), labels))


@pytest.mark.parametrize("proxy", [margin, mixup_margin])
def test_outputs_that_are_no_logits(proxy):
    for model, message in (
        (lambda x: x * torch.nan, "NaN or infinite at example"),
        (lambda x: x.softmax(1), "the outputs are probabilities already"),
        (lambda x: x[:, :1], "a margin compares two logits"),
    ):
        with pytest.raises(ValueError, match=message):
            proxy(model, (X, Y))
    with pytest.raises(ValueError, match="not outputs of shape"):
        margin(lambda x: x.view(12, 2, 3), (X, Y))


def test_midpoints_without_a_slope_have_no_distance():
    class Dead(nn.Module):
        """Constant where the first input is negative."""

        def forward(self, x):
            return torch.cat([torch.relu(x[:, :1]) * x[:, 1:2], 2 * torch.ones_like(x[:, :1])], dim=1)

    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    found = mixup_margin(Dead(), (x, torch.arange(40) % 2))
    assert 0 < found.settings["without slope"] < 1000
    assert abs(found.value) < 100
    with pytest.raises(ValueError, match="do not change with the inputs"):
        mixup_margin(Dead(), (-x.abs(), torch.arange(40) % 2))


def test_an_input_that_the_outputs_do_not_use():
    def model(x, unused):
        return x[:, :3]

    x = torch.randn(10, 4)
    assert mixup_margin(model, ((x, x), torch.arange(10) % 3)).value != 0
