"""Sharpness against closed forms on a quadratic loss, and against a perturbation written out by hand."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg.proxies import NotApplicable, average_sharpness, sharpness
from effdeg.proxies._sharpness import _Search
from tests.batches import X, Y
from tests.models import mlp, rescale


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
    scale = model.weight.detach().abs() + 0.03
    step = 0.5 * scale**2 * g / (scale * g).norm()
    found = sharpness(model, data, loss, rho=0.5, adaptive=True, eta=0.03)
    assert found.value == pytest.approx(float(g @ step + step @ h @ step / 2), rel=1e-10)


def exact_maximum(g, h, rho):
    """Solve max g.e + e.H.e / 2 on |e| = rho: (mu - H) e = g with mu above the largest eigenvalue, by bisection."""
    values, vectors = torch.linalg.eigh(h)
    along = vectors.T @ g
    low, high = float(values[-1]), float(values[-1] + g.norm() / rho + 1)
    for _ in range(200):
        mu = (low + high) / 2
        low, high = (mu, high) if float((along / (mu - values)).norm()) > rho else (low, mu)
    step = vectors @ (along / (high - values))
    return float(g @ step + step @ h @ step / 2)


@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_many_steps_reach_the_exact_maximum_of_a_quadratic(rho):
    model, data, loss, g, h = quadratic(seed=3)
    best = exact_maximum(g, h, rho)
    one, many = (sharpness(model, data, loss, rho=rho, steps=steps).value for steps in (1, 300))
    assert one < best * (1 - 1e-6)
    assert many == pytest.approx(best, rel=1e-8)


def test_at_a_minimum_one_step_sees_nothing_and_many_see_the_largest_eigenvalue():
    model, data, _, _, h = quadratic()
    nn.init.zeros_(model.weight)

    def centered(outputs, labels):
        w = outputs.mean(0)
        return w @ h @ w / 2

    assert sharpness(model, data, centered, rho=0.1).value == 0
    found = sharpness(model, data, centered, rho=0.1, steps=400).value
    assert found == pytest.approx(0.1**2 / 2 * float(torch.linalg.eigvalsh(h)[-1]), rel=1e-6)


def stalling(seed, epochs=30):
    """A small network with BatchNorm around which the loss has many maxima at radius 0.5."""
    torch.manual_seed(seed)
    x, y = torch.randn(24, 1, 8, 8).double(), torch.randint(5, (24,))
    first = nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()
    second = nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU()
    model = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(epochs):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), x, y


def highest_rise(model, x, y, rho, *, starts=3, steps=100):
    """The highest rise of the loss in the ball by AutoPGD as published (Croce and Hein 2020), from several starts."""
    weights = [each.detach() for each in model.parameters()]
    names, sizes = [name for name, _ in model.named_parameters()], [each.numel() for each in weights]

    def climb(move):
        move = move.detach().requires_grad_()
        parts = [part.view_as(each) for part, each in zip(move.split(sizes), weights, strict=True)]
        moved = {name: each + part for name, each, part in zip(names, weights, parts, strict=True)}
        loss = cross_entropy(torch.func.functional_call(model, moved, (x,)), y)
        (slope,) = torch.autograd.grad(loss, move)
        return loss.item(), slope / slope.norm()

    def project(move):
        return move * min(1.0, rho / float(move.norm()))

    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    checkpoints = {math.ceil(share * steps) for share in shares}
    nowhere = torch.zeros(sum(sizes), dtype=torch.float64)
    base, highest = climb(nowhere)[0], []
    for start in range(starts):
        generator = torch.Generator().manual_seed(start)
        move = project(torch.randn(nowhere.shape, generator=generator).double()) if start else nowhere
        size, (last, slope) = 2 * rho, climb(move)
        before, best, top = move, last, (move, slope)
        rises, since, checked = 0, 0, (size, best)
        for step in range(1, steps + 1):
            ahead = project(move + size * slope)
            mixed = ahead if step == 1 else project(move + 0.75 * (ahead - move) + 0.25 * (move - before))
            before, move = move, mixed
            loss, slope = climb(move)
            rises, last = rises + (loss > last), loss
            if loss > best:
                best, top = loss, (move, slope)
            if step in checkpoints:
                slow = rises < 0.75 * (step - since) or checked == (size, best)
                rises, since, checked = 0, step, (size, best)
                if slow:
                    size, last, (move, slope) = size / 2, best, top
                    before = move
        highest.append(best - base)
    return max(highest)


@pytest.mark.parametrize(("rho", "seed"), [(0.05, 0), (0.5, 1)])
def test_many_steps_reach_what_autopgd_reaches(rho, seed):
    model, x, y = stalling(seed)
    one, many = (sharpness(model, (x, y), cross_entropy, rho=rho, steps=steps).value for steps in (1, 200))
    assert one == pytest.approx(written_out(model, x, y, rho), rel=1e-9)
    assert many >= 0.99 * highest_rise(model, x, y, rho) > one
    assert many > 2 * one or rho < 0.5


def test_a_search_that_still_rises_gives_way_to_another_start():
    """Of a loss with two maxima the lower one, where the gradient leads, is approached ever more slowly."""
    start = torch.tensor([1e-3, 0.0], dtype=torch.float64)
    data = torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2)

    def loss(outputs, labels):
        w = outputs.mean(0)
        return 5 * w[0] ** 2 + 0.1 * w[0] + 4.99 * w[1] ** 2 - 40 * w[0].clamp(max=0) ** 3

    few, many = (sharpness(Point(start), data, loss, rho=0.5, steps=steps).value for steps in (29, 90))
    below = start - torch.tensor([0.5, 0.0])
    assert few < 0.5 * (float(loss(below[None], None)) - float(loss(start[None], None)))
    assert many > 0.95 * (float(loss(below[None], None)) - float(loss(start[None], None)))


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_point_leaves_the_ball(adaptive, monkeypatch):
    model, x, y = stalling(0)
    scales = [
        each.detach().abs() + 0.01 if adaptive and "weight" in name else torch.ones_like(each)
        for name, each in model.named_parameters()
    ]
    lengths, advance = [], _Search.advance

    def watched(self, loss, slopes):
        squares = [(move / scale).square().sum() for move, scale in zip(self.point, scales, strict=True)]
        lengths.append(float(sum(squares).sqrt()))
        advance(self, loss, slopes)

    monkeypatch.setattr(_Search, "advance", watched)
    sharpness(model, (x, y), cross_entropy, rho=0.5, steps=60, adaptive=adaptive)
    assert len(lengths) == 59
    assert max(lengths) <= 0.5 * (1 + 1e-12)
    assert max(lengths) == pytest.approx(0.5)


def written_out(model, x, y, rho, *, adaptive=False, eta=0.01, loss=cross_entropy):
    """The rise after one step, by changing a copy of the model in place as the official implementations do."""
    model = copy.deepcopy(model).eval()
    before = loss(model(x), y)
    before.backward()
    scaled = {}
    for name, parameter in model.named_parameters():
        scale = parameter.detach().abs() + eta if adaptive and "weight" in name else torch.ones_like(parameter)
        scaled[name] = (scale, scale * parameter.grad)
    norm = torch.sqrt(sum((each**2).sum() for _, each in scaled.values()))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale, gradient = scaled[name]
            parameter += rho * scale * gradient / norm
        return float(loss(model(x), y) - before.detach())


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("batch_size", [5, 100])
def test_against_a_perturbation_written_out(adaptive, batch_size):
    model = nn.Sequential(mlp(outputs=8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)).double()
    model(X)  # running statistics that are not the initial ones
    found = sharpness(model, (X, Y), cross_entropy, rho=0.3, adaptive=adaptive, batch_size=batch_size)
    assert found.value == pytest.approx(written_out(model, X, Y, 0.3, adaptive=adaptive), rel=1e-9)


def test_micro_batches_have_a_perturbation_each():
    model = mlp().double()
    parts = slice(0, 5), slice(5, 10), slice(10, 12)
    each = torch.tensor([written_out(model, X[part], Y[part], 0.1) for part in parts], dtype=torch.float64)
    found = sharpness(model, (X, Y), cross_entropy, rho=0.1, micro_batch=5)
    # The last one has two examples, the others five.
    mean = float((each * torch.tensor([5, 5, 2]) / 12).sum())
    assert found.value == pytest.approx(mean, rel=1e-9)
    even = sharpness(model, (X, Y), cross_entropy, rho=0.1, micro_batch=4)
    fours = [written_out(model, X[start : start + 4], Y[start : start + 4], 0.1) for start in (0, 4, 8)]
    assert even.value == pytest.approx(sum(fours) / 3, rel=1e-9)
    assert even.stderr == pytest.approx(float(torch.tensor(fours).std() / 3**0.5), rel=1e-5)
    assert found.value > sharpness(model, (X, Y), cross_entropy, rho=0.1).value


def test_normalized_logits_do_not_feel_the_scale_of_the_last_layer():
    model = mlp().double()
    louder = copy.deepcopy(model)
    with torch.no_grad():
        louder[2].weight *= 7
        louder[2].bias *= 7
    settings = {"rho": 1e-3, "normalize_logits": True}

    def normalized(outputs, labels):
        return cross_entropy(outputs / outputs.var(1, correction=0, keepdim=True).sqrt(), labels)

    assert sharpness(model, (X, Y), cross_entropy, **settings).value == pytest.approx(
        written_out(model, X, Y, 1e-3, loss=normalized), rel=1e-8
    )
    gradients = []
    for each in (model, louder):
        loss = normalized(each(X), Y)
        gradients.append(torch.autograd.grad(loss, each[0].weight)[0])
    assert torch.allclose(*gradients)


def test_frozen_weights_do_not_move_unless_all_are():
    model = mlp().double()
    whole = sharpness(model, (X, Y), cross_entropy).value
    model[0].requires_grad_(False)
    assert sharpness(model, (X, Y), cross_entropy).value < whole
    model.requires_grad_(False)
    assert sharpness(model, (X, Y), cross_entropy).value == whole


@pytest.mark.parametrize("adaptive", [False, True])
def test_average_sharpness_of_a_quadratic_is_half_the_trace(adaptive):
    model, data, loss, _, h = quadratic()
    scale = model.weight.detach().abs() + 0.01 if adaptive else 1.0
    expected = 0.1**2 / 2 * float((scale**2 * h.diagonal()).sum())
    found = average_sharpness(model, data, loss, sigma=0.1, samples=400, adaptive=adaptive)
    assert abs(found.value - expected) < 4 * found.stderr < 0.5 * expected


@pytest.mark.parametrize(
    ("measure", "settings", "error", "message"),
    [
        *[(sharpness, {"rho": rho}, ValueError, "rho=.* must be positive.*such as 0.05") for rho in (0, math.nan)],
        (average_sharpness, {"sigma": "0.05"}, TypeError, "sigma=.* must be .*positive.*how far the weights move"),
        (sharpness, {"steps": 0}, ValueError, "steps="),
        (sharpness, {"micro_batch": 0}, ValueError, "micro_batch="),
        (sharpness, {"adaptive": True, "eta": -1}, ValueError, "eta=.* must be .*zero or positive"),
        (average_sharpness, {"eta": "0.01"}, TypeError, "eta=.* must be .*zero or positive"),
        (sharpness, {"normalize_logits": True}, ValueError, "normalize_logits= is for several logits"),
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

    expected = sharpness(model, data, cross_entropy, dtype=torch.float64, micro_batch=5)
    found = sharpness(model, data, scaled, dtype=dtype, micro_batch=5)
    assert (found.value, found.stderr) == pytest.approx((factor * expected.value, factor * expected.stderr), rel=1e-3)


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


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("bias", [False, True])
def test_adaptive_sharpness_without_eta_is_unmoved_only_without_biases(bias, steps):
    torch.manual_seed(0)
    x, y = torch.randn(40, 5).double(), torch.arange(40) % 3
    model = nn.Sequential(nn.Linear(5, 12, bias=bias), nn.ReLU(), nn.Linear(12, 3, bias=bias)).double()
    other = rescale(model, torch.full((12,), 0.1).double())
    if bias:
        with torch.no_grad():
            other[0].bias.mul_(0.1)
    assert torch.allclose(model(x), other(x), rtol=1e-12)
    one, two = (
        sharpness(each, (x, y), cross_entropy, rho=0.5, adaptive=True, eta=0, steps=steps).value
        for each in (model, other)
    )
    if bias:
        assert two > 1.2 * one  # the first layer's biases move ten times as far in units of the layer
    else:
        assert two == pytest.approx(one, rel=1e-10)
