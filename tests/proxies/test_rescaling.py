"""Scaling a ReLU layer up and the next down changes no output: what a measure of the function must not notice."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg import proxies

ROUTE = {"paths": 30, "nodes": 20, "degree": 8}
NAMES = [name for name in proxies.names() if name != "distance" and not name.startswith("hessian")]
FUNCTION = {
    *("effective_degree", "effective_degree_normalized", "path_norm", "margin@10", "margin@50", "mixup_margin"),
    *("jacobian_norm", "decision_regions", "linear_regions", "total_variation"),
}
PRODUCTS = {"frobenius_product", "spectral_product", "spectral_margin@10", "spectral_margin@50"}
ADAPTIVE = {name for name in NAMES if name.startswith("adaptive")}


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    x = torch.randn(60, 5, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    model = nn.Sequential(nn.Linear(5, 12, bias=False), nn.ReLU(), nn.Linear(12, 3, bias=False)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, (x, y)


def rescaled(model, scales):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.mul_(scales[:, None])
        other[2].weight.div_(scales)
    return other


def values(model, data, names=NAMES):
    return proxies.evaluate(model, data, cross_entropy, names=names, **ROUTE).row()


@pytest.mark.parametrize("kind", ["whole layer", "each unit"])
def test_what_notices(trained, kind):
    model, data = trained
    torch.manual_seed(1)
    scales = torch.full((12,), 4.0).double() if kind == "whole layer" else torch.exp(torch.randn(12)).double() * 2
    other = rescaled(model, scales)
    assert torch.allclose(model(data[0]), other(data[0]), rtol=1e-12)
    before, after = values(model, data), values(other, data)
    # One factor for a whole layer cancels out of a product of norms, one for each unit does not.
    unmoved = FUNCTION | (PRODUCTS if kind == "whole layer" else set())
    for name in NAMES:
        change = abs(after[name] / before[name] - 1)
        if name in unmoved:
            # A spectral norm is found to 1e-4.
            assert change < (1e-3 if name in PRODUCTS else 1e-8), (name, change)
        elif name in ADAPTIVE:
            assert change < 0.2, (name, change)
        else:
            assert change > 0.02, (name, change)


@pytest.mark.parametrize("rho", [0.01, 0.5])
def test_adaptive_sharpness_is_unmoved_but_for_eta(trained, rho):
    model, data = trained
    other = rescaled(model, torch.exp(torch.randn(12, generator=torch.Generator().manual_seed(0))).double() * 2)
    changes = []
    for eta in (0.1, 0.01, 1e-6):
        one, two = (
            proxies.sharpness(each, data, cross_entropy, rho=rho, adaptive=True, eta=eta).value
            for each in (model, other)
        )
        changes.append(abs(two / one - 1))
    assert changes[0] > changes[1] > changes[2]
    assert changes[2] < 1e-4


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_adaptive_sharpness_without_eta_is_unmoved_only_without_biases(bias, steps):
    torch.manual_seed(0)
    x, y = torch.randn(40, 5).double(), torch.arange(40) % 3
    model = nn.Sequential(nn.Linear(5, 12, bias=bias), nn.ReLU(), nn.Linear(12, 3, bias=bias)).double()
    other = rescaled(model, torch.full((12,), 0.1).double())
    if bias:
        with torch.no_grad():
            other[0].bias.mul_(0.1)
    assert torch.allclose(model(x), other(x), rtol=1e-12)
    one, two = (
        proxies.sharpness(each, (x, y), cross_entropy, rho=0.5, adaptive=True, eta=0, steps=steps).value
        for each in (model, other)
    )
    if bias:
        assert two > 1.2 * one  # the first layer's biases move ten times as far in units of the layer
    else:
        assert two == pytest.approx(one, rel=1e-10)
