"""A model leaves every proxy exactly as it came, also when the loss raises."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import proxies
from tests.batches import X, Y

ROUTE = {"paths": 17, "nodes": 8, "degree": 3}


class Restless(nn.Module):
    """BatchNorm, dropout, a buffer that every forward pass changes, one that it replaces, and a draw of its own."""

    def __init__(self, *, calm=False):
        super().__init__()
        torch.manual_seed(0)
        self.calm = calm
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 4))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x):
        if not self.calm:
            self.calls += 1
            self.last = self.last + x.detach().mean()
        return self.body(x)


def everything(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    gradients = {name: None if each.grad is None else each.grad.clone() for name, each in model.named_parameters()}
    return {
        "objects": {name: id(each) for name, each in tensors.items()},
        "bits": {name: each.detach().clone() for name, each in tensors.items()},
        "gradients": gradients,
        "asked": {name: each.requires_grad for name, each in tensors.items()},
        "modes": [module.training for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()),
        "deterministic": (torch.is_grad_enabled(), torch.backends.cudnn.enabled),
    }


def assert_same(one, other):
    for name, value in one.items():
        if name in {"bits", "gradients"}:
            for key, tensor in value.items():
                same = other[name][key] is None if tensor is None else torch.equal(tensor, other[name][key])
                assert same, (name, key)
        elif name == "random":
            assert torch.equal(value[0], other[name][0])
            assert value[1] == other[name][1]
            assert np.array_equal(value[2], other[name][2])
        else:
            assert value == other[name], name


@pytest.fixture
def model(name):
    # The path norm does not let a forward pass change its buffers.
    model = Restless(calm=name.startswith("path")).double()
    model.body[1].eval()  # modes that differ
    cross_entropy(model(X), Y).backward()
    model.body[0].bias.grad = None
    model.body[4].bias.requires_grad_(False)
    return model


def run(name, model, loss):
    reference = {key: each.clone() for key, each in model.state_dict().items()}
    return proxies.evaluate(model, (X, Y), loss, names=[name], reference=reference, batch_size=5, **ROUTE)


@pytest.mark.parametrize("name", proxies.names())
def test_after_success(model, name):
    before = everything(model)
    run(name, model, cross_entropy)
    assert_same(before, everything(model))


@pytest.mark.parametrize("name", [name for name in proxies.names() if "sharpness" in name or "hessian" in name])
@pytest.mark.parametrize("fails_at", [1, 2, 4])
def test_after_a_loss_that_raises(model, name, fails_at):
    calls = 0

    def loss(outputs, labels):
        nonlocal calls
        calls += 1
        if calls >= fails_at:
            raise ArithmeticError("on purpose")
        return cross_entropy(outputs, labels)

    before = everything(model)
    with pytest.raises(ArithmeticError, match="on purpose"):
        run(name, model, loss)
    assert_same(before, everything(model))


@pytest.mark.parametrize("name", ["sharpness"])
def test_with_several_steps_and_micro_batches(model):
    before = everything(model)
    proxies.sharpness(model, (X, Y), cross_entropy, steps=3, micro_batch=4, adaptive=True)
    assert_same(before, everything(model))


@pytest.mark.parametrize("name", ["measure"])
def test_measure_puts_buffers_back_too(model):
    before = everything(model)
    effdeg.measure(model, X, paths=3, nodes=5, degree=2)
    assert_same(before, everything(model))


class Drawing(torch.utils.data.Dataset):
    """Examples that are augmented at random."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index] + torch.randn(6), Y[index]


def test_a_data_set_that_draws_is_seeded_and_the_state_put_back():
    model, state = Restless().double(), torch.get_rng_state()
    values = [proxies.margin(model, Drawing()).value for _ in range(2)]
    assert values[0] == values[1]
    assert torch.equal(torch.get_rng_state(), state)


class Odd(nn.Module):
    """A buffer that is not a number, one that is none until the first pass, and one that grows."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("nothing", torch.full((2,), torch.nan))
        self.register_buffer("none", None)
        self.register_buffer("grows", torch.zeros(1))

    def forward(self, x):
        self.none = x.detach()
        self.grows.resize_(len(x))
        return self.inner(x)


def test_odd_buffers():
    model = Odd().double()
    version = model.nothing._version
    proxies.margin(model, (X, Y))
    assert model.nothing._version == version
    assert model.none is None
    assert model.grows.shape == (1,)


class Strange(nn.Module):
    """A sparse buffer, one without data, and one that the forward pass adds."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.register_buffer("sparse", torch.eye(6).to_sparse())
        self.register_buffer("meta", torch.zeros(2, device="meta"))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if "new" not in self._buffers:
            self.register_buffer("new", torch.ones(2))
        return self.inner(x)


def test_strange_buffers():
    model = Strange()
    proxies.margin(model, (X.float(), Y))
    effdeg.measure(model, X.float(), paths=3, nodes=5, degree=2)
    assert "new" not in model.state_dict()
    assert float(model.calls) == 0
