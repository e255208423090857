"""TorchScript modules are run, and left, like any other."""

import pytest
import torch
from torch import nn

import effdeg
from tests.models import mlp

FAST = {"paths": 20, "nodes": 10, "degree": 5}
X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class Counting(nn.Module):
    """Writes to one buffer and replaces another, in evaluation mode too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.register_buffer("times", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x):
        self.times += 1
        self.last = self.last + 1
        return self.layers(x)


def script(model):
    return torch.jit.script(model)


def trace(model):
    return torch.jit.trace(model.eval(), X, check_trace=False)


@pytest.mark.parametrize("compiled", [script, trace])
@pytest.mark.parametrize("where", [{}, {"dtype": torch.float64}, {"device": "cpu"}], ids=["here", "float64", "cpu"])
def test_torchscript_is_measured_and_comes_back_as_it_was(compiled, where):
    expected = effdeg.measure(Counting(), X, **where, **FAST)
    model = compiled(Counting())
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measured = effdeg.measure(model, X, **where, **FAST)
    torch.testing.assert_close(measured.per_path, expected.per_path, rtol=1e-4, atol=1e-6)
    assert measured.settings.dtype == expected.settings.dtype
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_torchscript_inside_a_module():
    torch.manual_seed(1)
    head = nn.Linear(3, 2)
    expected = effdeg.measure(nn.Sequential(Counting(), head), X, dtype=torch.float64, **FAST)
    measured = effdeg.measure(nn.Sequential(script(Counting()), head), X, dtype=torch.float64, **FAST)
    torch.testing.assert_close(measured.per_path, expected.per_path)
    assert head.weight.dtype == torch.float32


def test_a_frozen_module_has_neither_mode_nor_weights_to_move():
    frozen = torch.jit.freeze(script(mlp().eval()))
    expected = effdeg.measure(mlp(), X, **FAST)
    torch.testing.assert_close(effdeg.measure(frozen, X, **FAST).per_path, expected.per_path, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"dtype= cannot change a module from torch.jit.freeze"):
        effdeg.measure(frozen, X, dtype=torch.float64, **FAST)


@pytest.mark.parametrize("compiled", [script, trace])
def test_a_layer_of_torchscript_is_refused(compiled):
    with pytest.raises(ValueError, match=r"at='layers.0' is a TorchScript layer.*before torch.jit"):
        effdeg.measure(compiled(Counting()), X, at="layers.0", **FAST)


def test_buffers_that_come_and_go():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(2))
            self.register_buffer("dropped", torch.ones(3))

        def forward(self, x):
            self.register_buffer("new", x.sum())
            self.dropped = None
            self.kept = self.kept * 2
            return x

    model = Odd()
    kept, dropped = model.kept, model.dropped
    effdeg.measure(model, X, **FAST)
    assert set(model._buffers) == {"kept", "dropped"}
    assert model.kept is kept
    assert model.dropped is dropped
    assert torch.equal(kept, torch.ones(2))
