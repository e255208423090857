from itertools import pairwise

import pytest
import torch
from torch import nn

import effdeg
from effdeg.proxies import NotApplicable, activation_changes, evaluate, linear_regions
from effdeg.proxies._activations import ACTIVATIONS
from tests.batches import X
from tests.models import mlp

ROUTE = {"paths": 40, "nodes": 30, "degree": 10}


class Kinks(nn.Module):
    def __init__(self, places):
        super().__init__()
        self.first = nn.Linear(1, len(places))
        self.head = nn.Linear(len(places), 2)
        with torch.no_grad():
            self.first.weight.fill_(1.0)
            self.first.bias.copy_(-torch.tensor(places))

    def forward(self, x):
        return self.head(torch.relu(self.first(x)))


@pytest.mark.parametrize("batch_size", [7, 1000])
def test_linear_regions_of_known_kinks(batch_size):
    places = [0.11, 0.32, 0.5, 0.77]
    ends = torch.tensor([[0.0], [1.0], [0.4]])
    # Between 0 and 1 lie four kinks, between 0 and 0.4 two, between 0.4 and 1 two.
    kinks = {frozenset((0, 1)): 4, frozenset((0, 2)): 2, frozenset((1, 2)): 2}
    pairs = effdeg.measure(Kinks(places), ends, **ROUTE).pairs
    expected = sum(1 + kinks[frozenset(pair)] for pair in pairs.tolist()) / len(pairs)
    assert linear_regions(Kinks(places), ends, batch_size=batch_size, **ROUTE).value == pytest.approx(expected)


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.PReLU()])
def test_units_are_counted_in_every_layer(activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), activation, nn.Linear(9, 8), activation, nn.Linear(8, 3)).double()
    route = effdeg.trace(model, X, paths=40, nodes=30)
    total = 0
    for pair, alpha in zip(route.pairs, route.alpha, strict=True):
        points = alpha[:, None] * X[pair[0]] + (1 - alpha)[:, None] * X[pair[1]]
        first = model[0](points)
        second = model[2](torch.relu(first)) if isinstance(activation, nn.ReLU) else model[2](activation(first.clone()))
        on = torch.cat([first > 0, second > 0], dim=1)
        total += 1 + int((on[1:] != on[:-1]).sum())
    assert linear_regions(model, X, **ROUTE).value == pytest.approx(total / 40)


def crossed(activation, **route):
    """Count the linear regions of one unit on the line from -10 to 10."""
    model = nn.Sequential(nn.Linear(1, 1), activation)
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    return linear_regions(model, torch.tensor([[-10.0], [10.0]]), **ROUTE).value


def test_kinks_are_where_an_activation_has_them():
    assert crossed(nn.ReLU()) == 2
    assert crossed(nn.ReLU6()) == crossed(nn.Hardtanh(-2, 3)) == 3
    assert crossed(nn.Hardtanh(-100, 100)) == crossed(nn.Threshold(-100, 0)) == 1
    assert crossed(nn.Threshold(5, 0)) == 2

    class Clamped(nn.Module):
        def forward(self, x):
            return x.clamp(min=0).clamp_max(7).clamp(-3, None)

    assert crossed(Clamped()) == 3  # the last clamp is never reached

    class ClampedByTensors(nn.Module):
        def forward(self, x):
            return x.clamp(torch.tensor([-1.0]), torch.tensor([2.0])) + torch.relu(x - 20)

    assert crossed(ClampedByTensors()) == 3


def test_an_activation_of_a_parameter_is_no_unit():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.scale = mlp(activation=nn.ReLU), nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return self.body(x) @ torch.relu(self.scale)

    model = Scaled()
    assert linear_regions(model, X.float(), **ROUTE).value == linear_regions(model.body, X.float(), **ROUTE).value


class Around(nn.Module):
    """Two ReLU layers on tokens, with something else in between."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = nn.Linear(10, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.lstm, self.function = nn.LSTM(8, 8, batch_first=True), function

    def forward(self, x):
        return self.c(torch.relu(self.b(self.function(self, x))))


BETWEEN = {
    "an LSTM": lambda self, x: self.lstm(torch.relu(self.a(x)))[0][:, -1],
    "a product": lambda self, x: (self.a(x) * self.a(x)).mean(1),
    "a mask by hand": lambda self, x: (self.a(x) * (self.a(x) > 0)).mean(1),
    "a maximum": lambda self, x: torch.maximum(self.a(x), torch.zeros(8)).mean(1),
    "a divisor": lambda self, x: (self.b.bias / (self.a(x) + 9)).mean(1),
    "erf": lambda self, x: torch.erf(self.a(x)).mean(1),
    "torch.vmap": lambda self, x: torch.vmap(lambda one: torch.relu(self.a(one)).mean(0))(x),
    "tokens among the examples": lambda self, x: torch.relu(self.a(x.flatten(0, 1))).view(len(x), 6, 8).mean(1),
    "tokens first": lambda self, x: torch.relu(self.a(x.transpose(0, 1))).mean(0),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_what_would_be_counted_wrongly_is_refused(name):
    x = torch.randn(8, 6, 10, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotApplicable, match="linear regions are defined for"):
        linear_regions(Around(BETWEEN[name]), x, **ROUTE)


def test_linear_functions_of_all_kinds_are_let_through():
    def between(self, x):
        x = torch.relu(self.a(x.float()))
        x = nn.functional.dropout(x - 0.5 * x.mean(1, keepdim=True), training=False)
        return torch.cat([x[:, :3], -x[:, 3:].contiguous()], dim=1).transpose(1, 2).reshape(len(x), 8, 6).sum(2) / 2

    x = torch.randn(8, 6, 10, generator=torch.Generator().manual_seed(0))
    assert linear_regions(Around(between), x, **ROUTE).value > 5


@pytest.mark.parametrize("batch_size", [7, 1000])
@pytest.mark.parametrize(
    "activations",
    [
        *((each, each) for each in (nn.GELU(), nn.SiLU(inplace=True))),
        (nn.ReLU6(), nn.GELU()),  # from the second on, kinks are no longer recorded
    ],
)
def test_changes_of_sign_against_a_loop_over_units(activations, batch_size):
    torch.manual_seed(0)
    one, two = activations
    model = nn.Sequential(nn.Linear(6, 9), one, nn.Linear(9, 9), two, nn.Linear(9, 3)).double()
    traced = effdeg.trace(model, X, paths=40, nodes=30)
    changes = []
    for pair, alpha in zip(traced.pairs, traced.alpha, strict=True):
        points = alpha[:, None] * X[pair[0]] + (1 - alpha)[:, None] * X[pair[1]]
        first = model[0](points)
        second = model[2](one(first.clone()))
        units = [*(first > 0).T.tolist(), *(second > 0).T.tolist()]
        changes.append(sum(one != other for unit in units for one, other in pairwise(unit)) / 18)
    found = activation_changes(model, X, batch_size=batch_size, **ROUTE)
    assert found.value == pytest.approx(sum(changes) / 40)
    assert found.stderr == pytest.approx(float(torch.tensor(changes).std()) / 40**0.5, rel=1e-5)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_is_seen_once(name):
    function = getattr(nn.functional, name.replace("log_s", "logs"), None) or getattr(torch, name)
    slope = (torch.tensor([0.1]),) if name == "prelu" else ()
    ends = torch.tensor([[-1.0], [2.0]])
    assert activation_changes(lambda x: function(x, *slope), ends, **ROUTE).value == 1


def test_changes_are_counted_where_linear_regions_are_not_defined():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, activation="gelu", batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 3)).eval()
    x = torch.randn(10, 5, 8, generator=torch.Generator().manual_seed(0))
    seen = []
    layer.linear1.register_forward_hook(lambda _, __, output: seen.append(output))
    table = evaluate(model, x, names=["activation_changes", "effective_degree"], **ROUTE)
    units = torch.cat(seen)[-40 * 30 :].unflatten(0, (40, 30)).flatten(2) > 0
    assert units.shape[2] == 5 * 12
    expected = (units[:, 1:] != units[:, :-1]).sum(1).double().mean()
    assert table["activation_changes"].value == pytest.approx(float(expected))
    assert "linear regions are defined for" in evaluate(model, x, **ROUTE).skipped["linear_regions"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_changes_that_are_not_seen_are_refused():
    model, x = mlp().double(), torch.randn(8, 6, 10, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotApplicable, match="no such activation ran"):
        activation_changes(nn.Linear(6, 3).double(), X, **ROUTE)
    with pytest.raises(NotApplicable, match="a scripted module ran"):
        activation_changes(torch.jit.trace(model, X), X, **ROUTE)
    with pytest.raises(NotApplicable, match="do not have the examples first"):
        activation_changes(lambda x: x + torch.tanh(x[:0]).sum(), X, **ROUTE)
    with pytest.raises(NotApplicable, match="or are sparse or complex"):
        activation_changes(lambda x: torch.tanh(1j * x).imag, X, **ROUTE)
    for name in ("tokens among the examples", "tokens first"):
        with pytest.raises(NotApplicable, match="do not have the examples first"):
            activation_changes(Around(BETWEEN[name]), x, **ROUTE)
    with pytest.raises(NotApplicable, match=r"torch.vmap ran"):
        activation_changes(Around(BETWEEN["torch.vmap"]), x, **ROUTE)
