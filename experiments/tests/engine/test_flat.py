"""Flat parameters: training them is training the model, whatever the regularizer, and autocast is as before."""

import copy
from dataclasses import replace

import pytest
import torch
from engine_runs import assert_close, make_picture_examples, small
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from effdeg_lab.data import load
from effdeg_lab.engine.classify import make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.flat import FlatParameters
from effdeg_lab.engine.step import Step
from effdeg_lab.models import MLP, ResNet18, ViT

DIGITS = load("digits", None)
CPU = torch.device("cpu")


def make_mlp():
    return MLP(64, 10, width=20)


def make_resnet():
    return ResNet18(width=4, classes=2)


def make_step(settings, make_model, *, flat, seed=0):
    """Make a step in float64, where rounding does not hide a difference."""
    torch.manual_seed(seed)
    model = make_model().double().train()
    if make_model in (make_mlp, Odd):
        data = replace(DIGITS, train_inputs=DIGITS.train_inputs.double())
        examples = DeviceExamples(data, settings, CPU)
    else:
        examples = make_picture_examples()
        examples._mean, examples._std = examples._mean.double(), examples._std.double()
    step = Step(make_task(settings, examples, model), size=20, flat=flat)
    for penalized in (False, True):
        step.capture(penalized=penalized)
    return model, step


def train(step, steps):
    for number in steps:
        torch.manual_seed(number)
        step(torch.arange(number, number + 20) % 60, rate=0.01, weight=0.5 * (number % 3))


def is_flat(model):
    return len({each.untyped_storage().data_ptr() for each in model.parameters()}) < len(list(model.parameters()))


@pytest.mark.parametrize(("optimizer", "clip"), [("adamw", None), ("sgd", 0.1)])
@pytest.mark.parametrize(
    ("regularizer", "own"),
    [
        ("plain", {}),
        ("jacobian", {"jacobian_share": 0.5}),
        ("ed", {"at": "layers.0"}),
        ("mixup+ed", {"decay_on": "matrices"}),
        ("asam", {"decay_on": "matrices"}),
    ],
)
def test_training_flat_parameters_is_training_the_model(regularizer, own, optimizer, clip):
    settings = small(regularizer=regularizer, optimizer=optimizer, clip=clip, **own)
    (ours, step), (expected, separate) = (make_step(settings, make_mlp, flat=flat) for flat in (True, False))
    assert is_flat(ours)
    assert not is_flat(expected)
    first = copy.deepcopy(ours.state_dict())
    for each in (step, separate):
        train(each, range(20))
    assert_close(ours.state_dict(), expected.state_dict(), rtol=1e-9, atol=1e-11)
    assert all(float((ours.state_dict()[name] - first[name]).abs().max()) > 1e-3 for name in first)
    assert float(step.penalties) == pytest.approx(float(separate.penalties), rel=1e-9)


@pytest.mark.parametrize("flat", [(True, False), (False, True)])
@pytest.mark.parametrize(
    ("optimizer", "make_model", "decay_on"),
    [("adamw", make_resnet, "all"), ("adamw", make_mlp, "matrices"), ("sgd", make_mlp, "all")],
)
def test_a_state_fits_steps_with_and_without_flat_parameters(optimizer, make_model, decay_on, flat):
    changes = {} if make_model is make_mlp else {"limit": None}
    settings = small(regularizer="ed", optimizer=optimizer, decay_on=decay_on, **changes)
    whole, step = make_step(settings, make_model, flat=False)
    train(step, range(6))
    _, step = make_step(settings, make_model, flat=flat[0])
    train(step, range(3))
    state = copy.deepcopy(step.state())
    resumed, step = make_step(settings, make_model, flat=flat[1], seed=1)
    step.restore(copy.deepcopy(state))
    train(step, range(3, 6))
    assert_close(resumed.state_dict(), whole.state_dict(), rtol=1e-7, atol=1e-9)
    # Into the memory of a step that has trained already.
    step.restore(copy.deepcopy(state))
    train(step, range(3, 6))
    assert_close(resumed.state_dict(), whole.state_dict(), rtol=1e-7, atol=1e-9)


class Odd(nn.Module):
    """A network with shared weights, and with some that are frozen or never used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.scale, self.frozen = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.rand(64), requires_grad=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        hidden = self.scale * self.second(torch.relu(self.first(x * self.frozen)))
        return self.head(hidden)


def test_parameters_that_are_shared_frozen_or_unused():
    settings = small(weight_decay=0.5)
    (ours, step), (expected, separate) = (make_step(settings, Odd, flat=flat) for flat in (True, False))
    first = copy.deepcopy(ours.state_dict())
    for each in (step, separate):
        train(each, range(10))
    assert ours.second.weight is ours.first.weight
    assert_close(ours.state_dict(), expected.state_dict(), rtol=1e-9, atol=1e-11)
    moved = {name for name, value in ours.state_dict().items() if not torch.equal(value, first[name])}
    assert moved == first.keys() - {"frozen", "unused.weight", "unused.bias"}
    assert step.state()["optimizer"].keys() == separate.state()["optimizer"].keys()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on a CPU without instructions for bf16
@pytest.mark.parametrize("make_model", [lambda: ViT(size=8, width=24, depth=2, classes=2), make_resnet])
def test_half_precision_is_that_of_autocast(make_model):
    torch.manual_seed(0)
    model = make_model()
    flat = FlatParameters(copy_of := copy.deepcopy(model), copy_of.parameters(), half=True)
    x, y = torch.randn(6, 3, 8, 8), torch.arange(6) % 2
    with torch.autocast("cpu", torch.bfloat16):
        loss = cross_entropy(model(x), y)
        ours = cross_entropy(functional_call(copy_of, flat.unflatten(), (x,)), y)
    assert torch.equal(ours, loss)
    loss.backward()
    ours.backward()
    gradients = {
        name: part
        for segment in flat._segments.values()
        for member, part in zip(segment.members, segment.split(segment.flat.grad), strict=True)
        for name in member.names
    }
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients.keys() == expected.keys()
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)
