"""Sharpness against closed forms on a quadratic loss, and against a perturbation written out by hand."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg.proxies import NotApplicable, average_sharpness, sharpness
from tests.batches import X, Y
from tests.models import mlp


class Point(nn.Module):
    """A model that is only its weights: every example gets them as its outputs."""

    def __init__(self, start):
        super().__init__()
        self.weight = nn.Parameter(start.clone())

    def forward(self, x):
        return self.weight.expand(len(x), -1)


def quadratic(seed=0, size=5):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, dtype=torch.float64, generator=generator)
    hessian, start = root @ root.T, torch.randn(size, dtype=torch.float64, generator=generator)
    linear = torch.randn(size, dtype=torch.float64, generator=generator)

    def loss(outputs, labels):
        w = outputs.mean(0)
        return linear @ w + w @ hessian @ w / 2

    gradient = linear + hessian @ start
    data = torch.zeros(7, 1, dtype=torch.float64), torch.zeros(7)
    return Point(start), data, loss, gradient, hessian


def test_one_adaptive_step_on_a_quadratic():
    model, data, loss, g, h = quadratic()
    scale = model.weight.detach().abs() + 0.01
    step = 0.5 * scale**2 * g / (scale * g).norm()
    found = sharpness(model, data, loss, rho=0.5, adaptive=True)
    assert found.value == pytest.approx(float(g @ step + step @ h @ step / 2), rel=1e-10)


def written_out(model, x, y, rho, *, adaptive=False):
    """The rise after one step, by changing a copy of the model in place as the official implementations do."""
    model = copy.deepcopy(model).eval()
    before = cross_entropy(model(x), y)
    before.backward()
    scaled = {}
    for name, parameter in model.named_parameters():
        scale = parameter.detach().abs() + 0.01 if adaptive and "weight" in name else torch.ones_like(parameter)
        scaled[name] = (scale, scale * parameter.grad)
    norm = torch.sqrt(sum((each**2).sum() for _, each in scaled.values()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale, gradient = scaled[name]
            parameter += rho * scale * gradient / norm
        return float(cross_entropy(model(x), y) - before.detach())


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("batch_size", [5, 100])
def test_against_a_perturbation_written_out(adaptive, batch_size):
    model = nn.Sequential(mlp(outputs=8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    model(X)  # running statistics that are not the initial ones
    found = sharpness(model, (X, Y), cross_entropy, rho=0.3, adaptive=adaptive, batch_size=batch_size)
    assert found.value == pytest.approx(written_out(model, X, Y, 0.3, adaptive=adaptive), rel=1e-9)


def test_frozen_weights_do_not_move_unless_all_are():
    model = mlp().double()
    whole = sharpness(model, (X, Y), cross_entropy).value
    model[0].requires_grad_(False)
    assert sharpness(model, (X, Y), cross_entropy).value < whole
    model.requires_grad_(False)
    assert sharpness(model, (X, Y), cross_entropy).value == whole


def test_average_sharpness_of_a_quadratic_is_half_the_trace():
    model, data, loss, _, h = quadratic()
    expected = 0.1**2 / 2 * float(h.trace())
    found = average_sharpness(model, data, loss, sigma=0.1, samples=400)
    assert abs(found.value - expected) < 4 * found.stderr < 0.5 * expected


@pytest.mark.parametrize(
    ("measure", "settings", "error", "message"),
    [
        *[(sharpness, {"rho": rho}, ValueError, "rho=.* must be positive.*such as 0.05") for rho in (0, math.nan)],
        (average_sharpness, {"sigma": "0.05"}, TypeError, "sigma=.* must be .*positive.*how far the weights move"),
    ],
)
def test_bad_settings(measure, settings, error, message):
    with pytest.raises(error, match=message):
        measure(nn.Linear(6, 1).double(), (X, X[:, :1]), nn.functional.mse_loss, **settings)


@pytest.mark.parametrize("measure", [sharpness, average_sharpness])
def test_a_better_precision_can_be_asked_for(measure):
    model = mlp()
    double = measure(copy.deepcopy(model).double(), (X, Y), cross_entropy).value
    assert measure(model, (X.float(), Y), cross_entropy, dtype=torch.float64).value == pytest.approx(double, rel=1e-6)
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(("factor", "dtype"), [(1e25, None), (1e-25, None), (1e200, torch.float64)])
def test_large_and_tiny_gradients_have_a_direction(factor, dtype):
    model, data = mlp(), (X.float(), Y)

    def scaled(outputs, labels):
        return factor * cross_entropy(outputs, labels)

    expected = sharpness(model, data, cross_entropy, dtype=torch.float64)
    found = sharpness(model, data, scaled, dtype=dtype)
    assert found.value == pytest.approx(factor * expected.value, rel=1e-3)


@pytest.mark.parametrize(("measure", "radius"), [(sharpness, {"rho": 1e-12}), (average_sharpness, {"sigma": 1e-12})])
def test_a_radius_that_is_lost_in_rounding(measure, radius):
    model = nn.Sequential(mlp(), nn.Linear(4, 4)).requires_grad_(False)
    model[1].weight.data.fill_(1.0).requires_grad_()
    with pytest.raises(NotApplicable, match="do not move by this radius"):
        measure(model, (X.float(), Y), cross_entropy, **radius)
    assert measure(model, (X.float(), Y), cross_entropy, **radius, dtype=torch.float64).value < 1e-6


def test_a_model_that_works_in_place_on_its_inputs():
    class Doubling(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            return self.inner(x.mul_(2))

    model, x = Doubling().double(), X.clone()
    for measure in (sharpness, average_sharpness):
        found = measure(model, (x, Y), cross_entropy).value
        assert found == pytest.approx(measure(model.inner, (2 * X, Y), cross_entropy).value, rel=1e-9)
    assert torch.equal(x, X)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_loss_that_is_nan_under_perturbation_says_at_which_radius(adaptive):
    calls = 0

    def loss(outputs, labels):
        nonlocal calls
        calls += 1
        # Four calls look at the labels before the work begins, and one is that of the model as it is.
        return cross_entropy(outputs, labels) * (torch.nan if calls > 5 else 1)

    with pytest.raises(ValueError, match=r"at radius rho=0.37 is nan"):
        sharpness(mlp().double(), (X, Y), loss, rho=0.37, adaptive=adaptive)
    with pytest.raises(ValueError, match="of the model as it is is nan"):
        sharpness(mlp().double(), (X, Y), loss, adaptive=adaptive)
