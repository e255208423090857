"""The path norm against an enumeration of all paths, and against squared matrices."""

import itertools
import math

import pytest
import torch
from torch import nn

from effdeg.proxies import path_norm
from tests.models import mlp
from tests.proxies.test_norms import matrix_of


def enumerated(weights, biases):
    """Sum the squared product of weights over every path of an MLP, path by path, those that begin at a bias too."""
    sizes = [weights[0].shape[1], *(weight.shape[0] for weight in weights)]
    total = 0.0
    for start in range(len(weights) + 1):
        # From an input (start 0) or from the bias of layer start - 1, through one unit of each layer behind it.
        for path in itertools.product(*(range(size) for size in sizes[start:])):
            product = 1.0 if start == 0 else float(biases[start - 1][path[0]])
            for layer, (i, j) in enumerate(itertools.pairwise(path), start=start):
                product *= float(weights[layer][j, i])
            total += product**2
    return math.sqrt(total)


def test_an_mlp_by_enumeration():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)).double()
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    expected = enumerated([layer.weight.detach() for layer in linear], [layer.bias.detach() for layer in linear])
    assert path_norm(model, torch.randn(5, 3)).value == pytest.approx(expected, rel=1e-12)


class Residual(nn.Module):
    """Convolution, BatchNorm, a skip connection, all kinds of pooling, functional calls and a scaled output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.gain = nn.Parameter(torch.randn(2, 1, 1))
        self.pool, self.average, self.head = nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Linear(2, 3)
        with torch.no_grad():
            for each in (self.norm.weight, self.norm.bias, self.norm.running_mean):
                each.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = x + torch.nn.functional.relu(self.second(x)) * self.gain
        x = self.average(self.pool(x))
        return 0.5 * self.head(x.mean((2, 3)) + 0.0)


def test_a_convolutional_network_by_squared_matrices():
    model = Residual().double().eval()
    shape, inner = (1, 8, 8), (2, 8, 8)

    def squares(function, shape):
        return matrix_of(function, shape).detach().square()

    def zeroed(layer):
        return lambda x: layer(x) - layer(torch.zeros_like(x))

    norm_shift = model.norm(torch.zeros(1, *inner, dtype=torch.float64)).detach().square().flatten()
    conv_shift = (model.second(torch.zeros(1, *inner, dtype=torch.float64)) * model.gain).detach().square().flatten()
    x = squares(model.first, shape) @ torch.ones(64, dtype=torch.float64)
    x = squares(zeroed(model.norm), inner) @ x + norm_shift
    x = x + squares(lambda x: zeroed(model.second)(x) * model.gain, inner) @ x + conv_shift
    # Through a maximum all its inputs pass; an average of n has weights 1 / n.
    x = squares(lambda x: 4 * nn.AvgPool2d(2)(x), inner) @ x
    x = squares(nn.AvgPool2d(2), (2, 4, 4)) @ x
    x = squares(lambda x: x.mean((2, 3)), (2, 2, 2)) @ x
    x = model.head.weight.square() @ x + model.head.bias.square()
    found = path_norm(model, torch.randn(2, *shape)).value
    assert found == pytest.approx(math.sqrt(0.25 * float(x.detach().sum())), rel=1e-12)


def test_what_has_no_path_norm_is_named():
    for model, what in (
        (mlp(), "tanh"),
        (nn.TransformerEncoderLayer(6, 2, batch_first=True), "layer_norm|attention|multi_head|transformer"),
        (nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)), "softmax"),
    ):
        data = torch.randn(2, 3, 6) if isinstance(model, nn.TransformerEncoderLayer) else torch.randn(2, 6)
        with pytest.raises(ValueError, match=what):
            path_norm(model, data)


@pytest.mark.parametrize("weight", [1e200, torch.nan])
def test_a_path_norm_that_is_no_number(weight):
    model = nn.Linear(6, 4).double()
    nn.init.constant_(model.weight, weight)
    with pytest.raises(ValueError, match=r"square of the path norm is (inf|nan)"):
        path_norm(model, torch.randn(2, 6))


POOLS = {
    "half outside": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "half outside, counted": nn.AvgPool2d(3, 2, 1),
    "divided by three": nn.AvgPool2d(2, divisor_override=3),
    "rounded up": nn.AvgPool2d(2, ceil_mode=True),
    "adaptive": nn.AdaptiveAvgPool2d((5, 1)),
}


@pytest.mark.parametrize("name", POOLS)
def test_averages_of_all_kinds(name):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.pool = nn.Conv2d(1, 1, 1, bias=False), POOLS[name]

        def forward(self, x):
            return self.pool(self.first(x))

    model = Net().double()
    squared = matrix_of(model.pool, (1, 5, 5)).square().sum() * model.first.weight.detach().square().sum()
    found = path_norm(model, torch.randn(1, 1, 5, 5)).value
    assert found == pytest.approx(math.sqrt(float(squared)), rel=1e-12)


CONSTANT = torch.ones(3, dtype=torch.float64)


class Functional(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.first, self.function = nn.Linear(4, 3, bias=False), function
        self.other, self.norm = nn.Parameter(torch.ones(3, 4)), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.function(self, x)


def test_means_by_another_name_and_constants():
    model = Functional(lambda self, x: self.first(x).mean(axis=1)).double()
    expected = (model.first.weight.detach() / 3).square().sum().sqrt()
    assert path_norm(model, torch.randn(2, 4)).value == pytest.approx(float(expected))
    model = Functional(lambda self, x: torch.einsum("bc->b", self.first(x))).double()
    expected = model.first.weight.detach().square().sum().sqrt()
    assert path_norm(model, torch.randn(2, 4)).value == pytest.approx(float(expected))
    model = Functional(lambda self, x: nn.functional.pad(self.first(x), (0, 1), value=3.0) + 2).double()
    expected = math.sqrt(float(model.first.weight.detach().square().sum()) + 9 + 4 * 4)
    assert path_norm(model, torch.randn(2, 4)).value == pytest.approx(expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: nn.functional.linear(x, self.first.weight + self.other),
        lambda self, x: self.first(x) + CONSTANT,
        lambda self, x: self.first(x) @ self.first(x).T,
        lambda self, x: self.first(x) - 1,
        lambda self, x: self.other[:, 0] / self.first(x),
        lambda self, x: nn.functional.linear(x, torch.relu(self.first.weight)),
        lambda self, x: nn.functional.linear(x, self.first.weight.sum(1, keepdim=True).expand(3, 4)),
        lambda self, x: nn.functional.linear(x, CONSTANT[:, None].expand(3, 4)),
        lambda self, x: self.first(x) * nn.functional.linear(x, self.other),
        lambda self, x: torch.einsum("bc->b", [self.first(x)]),
        lambda self, x: torch.vmap(self.first)(x),
        lambda self, x: self.first(x) + CONSTANT[None],
        lambda self, x: self.first(x) + CONSTANT.to(x).view(1, -1),
        lambda self, x: torch.cat([self.first(x), CONSTANT.expand(1, 3)], dim=1),
        lambda self, x: nn.functional.batch_norm(self.first(x), self.other[:, 0], self.other[:, 1]),
        lambda self, x: self.first(x) * self.norm.weight,
    ],
)
def test_what_would_be_wrong_is_refused(function):
    with pytest.raises(ValueError, match="path norm is not defined"):
        path_norm(Functional(function).double(), torch.randn(2, 4))


def test_precision_and_transposed_weights_do_not_matter():
    plain = Functional(lambda self, x: self.first(x)).double()
    for function in (
        lambda self, x: self.first(x.float()),
        lambda self, x: self.first(x.to(torch.float32)),
        lambda self, x: x @ self.first.weight.t(),
        lambda self, x: nn.functional.linear(x, torch.cat([self.first.weight[:1], self.first.weight[1:]])),
    ):
        model = Functional(function).double()
        model.load_state_dict(plain.state_dict())
        assert path_norm(model, torch.randn(2, 4)).value == pytest.approx(path_norm(plain, torch.randn(2, 4)).value)
