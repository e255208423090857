"""A step of the engine does what a training loop written out by hand does."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from effdeg import Penalty, baselines
from effdeg.lab import data, models
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.methods import made_method, on_examples
from effdeg.lab.training.step import Step
from tests.lab.training.runs import small

CPU = torch.device("cpu")
METHODS = {
    "plain": {},
    "mixup": {"alpha": 0.5, "classes": 10},
    "sam": {"rho": 0.3},
    "asam": {"rho": 0.7, "eta": 0.02},
    "jacobian": {"projections": 2, "share": 0.5},
    "ed": {"nodes": 5, "degree": 2, "pairs": 0.3, "anchor_labels": True},
    "mixup+ed": {"alpha": 0.5, "classes": 10, "nodes": 5, "degree": 2, "pairs": 0.3, "anchor_labels": True},
}
NAMES = {"share": "jacobian_share"}


def made(settings):
    torch.manual_seed(0)
    examples = DeviceExamples(data.load("digits", None), settings, CPU)
    return examples, models.make("mlp", shape=examples.shape, classes=10)


def stepped(settings, weight, steps=3):
    examples, model = made(settings)
    method = on_examples(made_method(settings), settings, examples)
    step = Step(model, method, examples, settings, batch=20)
    for penalized in (False, True):
        step.capture(penalized=penalized)
    torch.manual_seed(1)
    for number in range(steps):
        step(torch.arange(number, number + 20), rate=0.01 * (number + 1), weight=weight)
    return model, step


def by_hand(settings, loss, *, optimizer=None, mix=lambda x, y: (x, y), steps=3):
    examples, model = made(settings)
    optimizer = (optimizer or (lambda model: torch.optim.AdamW(model.parameters(), weight_decay=0.1)))(model)
    torch.manual_seed(1)
    for number in range(steps):
        x, y = examples.train.inputs[number : number + 20], examples.train.labels[number : number + 20]
        x, y = mix(x, y)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (number + 1)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return value

        optimizer.step(closure)
    return model


def assert_same(one, two):
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name):
    given = METHODS[name]
    mine = {NAMES.get(key, key): value for key, value in given.items() if key != "classes"}
    settings = small(method=name, **mine)
    model, _ = stepped(settings, 2.0)
    method = baselines.method(name, **given)
    expected = by_hand(
        settings,
        lambda model, x, y: method.loss(model, x, y, cross_entropy, weight=torch.tensor(2.0)),
        optimizer=lambda model: method.optimizer(model, torch.optim.AdamW, weight_decay=0.1),
        mix=method.batch,
    )
    assert_same(model, expected)


def test_a_compiled_model_in_ddp(tmp_path):
    """As the loop wraps it on several GPUs: DDP itself cannot be compiled."""
    settings = small(method="ed")
    expected, _ = stepped(settings, 2.0)
    examples, model = made(settings)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(torch.compile(model, backend="eager", dynamic=False))
        step = Step(model, made_method(settings), examples, settings, batch=20, called=wrapped)
        step.capture(penalized=True)
        torch.manual_seed(1)
        for number in range(3):
            step(torch.arange(number, number + 20), rate=0.01 * (number + 1), weight=2.0)
    finally:
        torch.distributed.destroy_process_group()
    for first, second in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)


def test_a_penalty_without_weight_is_not_computed():
    settings = small(method="ed")
    model, step = stepped(settings, 0.0)
    assert_same(model, by_hand(settings, lambda model, x, y: cross_entropy(model(x), y)))
    assert float(step.penalties) == 0.0


def test_sgd_with_momentum():
    settings = small(optimizer="sgd", momentum=0.8, weight_decay=0.01, clip=1.0)
    model, _ = stepped(settings, 0.0)
    expected = by_hand(
        settings,
        lambda model, x, y: cross_entropy(model(x), y),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8, weight_decay=0.01),
    )
    assert_same(model, expected)


def test_paths_between_random_pixels():
    settings = small(method="ed", ends="random-pixels", anchor_labels=False)
    model, step = stepped(settings, 2.0)
    penalty = Penalty(anchor_labels=False)
    seen = []

    def loss(model, x, y):
        noise = torch.rand_like(x)
        assert noise.min() >= 0
        assert noise.max() <= 1
        points = penalty.points(noise)
        degree = penalty.degree(model(points.inputs), points)
        seen.append(degree.item())
        return cross_entropy(model(x), y) + 2.0 * degree

    expected = by_hand(settings, loss)
    # Two forward passes by hand, one joined here: equal but for rounding.
    for first, second in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
    assert float(step.penalties) == pytest.approx(sum(seen), rel=1e-4)


def test_a_cpu_computes_in_float32():
    assert_same(stepped(small(), 0.0)[0], stepped(small(precision="bf16"), 0.0)[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "mixup", "ends": "random-pixels"}, "paths of method=ed"),
        ({"method": "ed", "ends": "random-pixels"}, "anchor_labels=false"),
        (
            {"method": "ed", "ends": "random-pixels", "anchor_labels": False, "sampling": "uniform"},
            "sampling=cosine or chebyshev",
        ),
        ({"method": "ed", "nodes": 2}, "nodes=2"),
        ({"method": "ed", "weight": -3.0}, "weight=-3.0"),
        ({"method": "ed", "ends": "random-pixels", "anchor_labels": False, "batchnorm": "frozen"}, "batchnorm=joint"),
        ({"method": "edd"}, "Did you mean 'ed'"),
        ({"method": "sam+asam"}, "both act on the optimizer"),
    ],
)
def test_bad_methods(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        made_method(small(**settings))
