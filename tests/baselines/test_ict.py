"""Interpolation consistency, against one example at a time, and in a training loop with an averaged teacher."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg.baselines import ICT
from tests.baselines.test_mixup import drawn
from tests.batches import X, Y
from tests.models import TwoInputs, Unexpected, mlp
from tests.properties import assert_same_gradients

U = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def consistency_slowly(model, teacher, share, partners):
    total = 0.0
    for number, partner in enumerate(partners.tolist()):
        student = model((share * U[number] + (1 - share) * U[partner])[None])[0].softmax(0)
        with torch.no_grad():
            ends = [teacher(U[each][None])[0].softmax(0) for each in (number, partner)]
        for output in range(4):
            target = share * ends[0][output] + (1 - share) * ends[1][output]
            total = total + (student[output] - target) ** 2
    return total / (len(U) * 4)


def test_one_example_at_a_time():
    model, twin, teacher = mlp().double(), mlp().double(), mlp(seed=1).double()
    share, partners = drawn(20)
    outputs, value = ICT(teacher)(model, X, Y, unlabeled=U)
    expected = consistency_slowly(twin, teacher, share, partners)
    torch.testing.assert_close(outputs, twin(X))
    torch.testing.assert_close(value, expected)
    losses = cross_entropy(outputs, Y) + 3 * value, cross_entropy(twin(X), Y) + 3 * expected
    assert_same_gradients(*losses, model, twin)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_model_that_is_straight_agrees_with_itself():
    def straight(x):
        share = 0.5 + 0.1 * x[:, :1]
        return torch.cat([share, 1 - share], dim=1).log()  # logits of probabilities that are straight

    inside = U.clamp(-1, 1)
    assert ICT(straight)(straight, X.clamp(-1, 1), unlabeled=inside)[1] < 1e-25


@pytest.mark.parametrize("autocast", [False, True])
def test_the_model_as_its_own_teacher_is_trained(autocast):
    model = mlp()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        _, value = ICT(model)(model, X.float(), unlabeled=U.float())
    assert value.dtype == torch.float32
    value.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_the_model_runs_once_and_the_teacher_in_its_own_mode():
    model, teacher = mlp().double(), nn.Sequential(nn.BatchNorm1d(6), mlp()).double().eval()
    seen = []
    model.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    teacher.register_forward_hook(lambda _, given, out: seen.append((len(given[0]), out.requires_grad)))
    way = ICT(teacher)
    way.train()
    way(model, X, unlabeled=U)
    assert seen == [32, (20, False)]
    assert teacher[0].num_batches_tracked == 0
    assert list(way.parameters()) == []


def test_several_inputs_and_what_all_examples_share():
    model, teacher, shared = TwoInputs().double(), TwoInputs().double(), torch.ones(3)

    def with_shared(inner):
        return lambda left, right, shared: {"logits": inner(left * shared, right), "shared": shared}

    share, partners = drawn(20)
    mixed, ends = share * U + (1 - share) * U[partners], teacher(U[:, :3], U[:, 3:]).softmax(1)
    expected = model(mixed[:, :3], mixed[:, 3:]).softmax(1) - (share * ends + (1 - share) * ends[partners])
    way = ICT(with_shared(teacher))
    outputs, value = way(
        with_shared(model),
        {"left": X[:, :3], "right": X[:, 3:], "shared": shared},
        unlabeled={"left": U[:, :3], "right": U[:, 3:], "shared": shared},
    )
    torch.testing.assert_close(value, expected.square().mean())
    torch.testing.assert_close(outputs["logits"], model(X[:, :3], X[:, 3:]))


def test_a_teacher_runs_in_its_own_precision():
    values = []
    for teacher in (mlp(seed=1), mlp(seed=1).double()):
        torch.manual_seed(0)
        values.append(ICT(teacher)(mlp(), X.float(), unlabeled=U.float())[1])
    torch.testing.assert_close(*values)


@pytest.mark.parametrize(
    ("teacher", "kind", "message"),
    [
        (lambda x: None, TypeError, "the teacher returned None"),
        (mlp(outputs=3).double(), ValueError, r"outputs are of shape \(3,\) per example, the model's of \(4,\)"),
        (nn.Sequential(mlp(), nn.Softmax(1)).double(), ValueError, "teacher's outputs are probabilities already"),
        (mlp().to("meta"), ValueError, "the teacher .* on the meta device"),
    ],
)
def test_teachers_that_make_no_sense(teacher, kind, message):
    with pytest.raises(kind, match=message):
        ICT(teacher)(mlp().double(), X, unlabeled=U)


def test_probabilities_of_a_second_model_are_refused():
    ict = ICT(mlp().double())
    ict(mlp().double(), X, unlabeled=U)
    with pytest.raises(ValueError, match=r"student's outputs are probabilities already.* Let it return logits"):
        ict(nn.Sequential(mlp(), nn.Softmax(1)).double(), X, unlabeled=U)


@pytest.mark.parametrize(
    ("x", "unlabeled", "kind", "message"),
    [
        (X, U.long(), TypeError, "no straight line joins integers"),
        (X, U.cfloat(), TypeError, r"unlabeled \('\[0\].\[0\]'\) holds complex numbers"),
        (X, U[:, :3], TypeError, r"unlabeled examples \(.*\(3,\) torch.float64\) do not have the form.*\(6,\)"),
        ((X, 2.0), (U,), TypeError, "do not have the form"),
        (X, U[:0], TypeError, "unlabeled holds no examples"),
    ],
)
def test_bad_input_stops_before_a_model_is_run(x, unlabeled, kind, message):
    with pytest.raises(kind, match=message):
        ICT(Unexpected())(Unexpected(), x, unlabeled=unlabeled)


def test_models_that_do_not_return_a_row_per_example():
    with pytest.raises(TypeError, match=r"teacher=0.999 must be a model, such as torch.optim.swa_utils.AveragedModel"):
        ICT(0.999)
    with pytest.raises(ValueError, match="its first dimension must be the batch"):
        ICT(lambda x: x.sum())(mlp().double(), X, unlabeled=U)
    with pytest.raises(ValueError, match=r"for a joined batch of 12 \+ 20 examples, but no tensor with 32 rows"):
        ICT(mlp().double())(lambda x: x.sum(), X, unlabeled=U)
