"""Consistency of examples and their changed copies, against loops over examples."""

import copy
import math

import pytest
import torch
from torch import nn

from effdeg import changes
from effdeg.baselines import UDA, Consistency, FixMatch
from tests.batches import X, Y
from tests.models import mlp, with_batchnorm

U = torch.randn(10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
ALL = [Consistency, UDA, FixMatch]


def turn(x):
    return 0.5 - x.flip(-1)


def sharp(seed=0):
    """A network some of whose predictions are certain."""
    model = mlp(seed=seed).double()
    with torch.no_grad():
        model[2].weight.mul_(12)
    return model


def probabilities(logits):
    numbers = logits.tolist()
    exponentials = [math.exp(each - max(numbers)) for each in numbers]
    return [each / sum(exponentials) for each in exponentials]


def by_hand(method, model, teacher=None):
    total = 0.0
    for example in U:
        own, other = model(example[None])[0], model(turn(example[None]))[0]
        p, q = probabilities(own), probabilities(other)
        if isinstance(method, Consistency):
            target = p if teacher is None else probabilities(teacher(example[None])[0])
            total += sum((one - two) ** 2 for one, two in zip(q, target, strict=True)) / len(p)
        elif isinstance(method, UDA) and max(p) > method.threshold:
            sharpened = probabilities(own / method.temperature)
            total += sum(one * math.log(one / two) for one, two in zip(sharpened, q, strict=True))
        elif isinstance(method, FixMatch) and max(p) > method.threshold:
            total -= math.log(q[p.index(max(p))])
    return total / len(U)


@pytest.mark.parametrize(
    "method",
    [
        Consistency(turn),
        UDA(turn),
        UDA(turn, temperature=0.7, threshold=0.5),
        FixMatch(turn),
        FixMatch(turn, threshold=0.6),
    ],
    ids=repr,
)
def test_the_penalty_is_that_of_a_loop(method):
    model = sharp()
    outputs, value = method(model, X, Y, unlabeled=U)
    torch.testing.assert_close(outputs, model(X))
    expected = by_hand(method, model)
    assert 0 < expected == pytest.approx(float(value.detach()), rel=1e-9)


def test_some_predictions_are_used_and_others_are_not():
    for method in (UDA, FixMatch):
        values = [float(method(turn, threshold=each)(sharp(), X, unlabeled=U)[1].detach()) for each in (0, 0.8, 0.99)]
        assert values[0] > values[1] > values[2] >= 0


def test_the_teacher_gives_the_targets_on_unchanged_examples():
    model, teacher = sharp(), sharp(seed=1)
    method = Consistency(turn, teacher=teacher)
    value = method(model, X, unlabeled=U)[1]
    assert float(value.detach()) == pytest.approx(by_hand(method, model, teacher), rel=1e-9)
    value.backward()
    assert all(each.grad is None for each in teacher.parameters())
    assert list(method.parameters()) == []


def gradients(value, model):
    return torch.autograd.grad(value, list(model.parameters()))


def test_gradients_flow_through_both_ends_or_through_the_copies_alone():
    model = sharp()
    fixed = copy.deepcopy(model)
    p, q = (model(each).softmax(-1) for each in (U, turn(U)))
    torch.testing.assert_close(
        gradients(Consistency(turn)(model, X, unlabeled=U)[1], model), gradients((p - q).square().mean(), model)
    )
    for method in (UDA(turn, threshold=0), FixMatch(turn, threshold=0)):
        own = fixed(U).detach()
        targets = (own / 0.4).softmax(-1) if isinstance(method, UDA) else nn.functional.one_hot(own.argmax(-1), 4)
        expected = -(targets * model(turn(U)).log_softmax(-1)).sum(-1).mean()
        torch.testing.assert_close(gradients(method(model, X, unlabeled=U)[1], model), gradients(expected, model))


@pytest.mark.parametrize("method", ALL)
def test_batchnorm_sees_one_batch(method):
    model, other = with_batchnorm().double(), with_batchnorm().double()
    outputs, _ = method(turn)(model, X, unlabeled=U)
    torch.testing.assert_close(outputs, other(torch.cat([X, U, turn(U)]))[:12])
    for one, expected in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(one, expected)


def test_mappings_and_tuples():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = sharp()

        def forward(self, x):
            return {"logits": self.model(x)}

    for method in (Consistency(changes.noise(0.3)), UDA(changes.noise(0.3)), FixMatch(changes.noise(0.3))):
        results = []
        for x, u in ((X, U), ((X,), (U,)), ({"x": X}, {"x": U})):
            torch.manual_seed(0)
            outputs, value = method(Named(), x, unlabeled=u)
            assert outputs["logits"].shape == (12, 4)
            results.append(float(value.detach()))
        assert results[0] == results[1] == results[2] > 0


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (X, TypeError, "change must be a function of a batch"),
        (lambda x: x[:, 1:], ValueError, "function of change= returned .* of the same shape and type was expected"),
    ],
)
def test_bad_changes_are_refused(method, change, error, message):
    with pytest.raises(error, match=message):
        method(change)(sharp(), X, unlabeled=U)


@pytest.mark.parametrize("method", ALL)
def test_bad_batches_are_refused(method):
    with pytest.raises(TypeError, match="do not have the form of those in x"):
        method(turn)(sharp(), X, unlabeled=U[:, 1:])
    with pytest.raises(ValueError, match="probabilities"):
        method(turn)(nn.Sequential(sharp(), nn.Softmax(-1)), X, unlabeled=U)


def test_settings_out_of_range_are_refused():
    for method in (UDA, FixMatch):
        with pytest.raises(ValueError, match="threshold=1 must be below 1"):
            method(turn, threshold=1)
        with pytest.raises(ValueError, match="threshold"):
            method(turn, threshold=-0.1)
    with pytest.raises(ValueError, match="temperature"):
        UDA(turn, temperature=0)
    with pytest.raises(TypeError, match="the teacher is a str"):
        Consistency(turn, teacher="me")


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step_is_the_same_step(without_shape_checks):
    model, penalty = sharp(), FixMatch(turn, threshold=0.5)

    def value_of(x, u):
        return penalty(model, x, unlabeled=u)[1]

    compiled = torch.compile(value_of, fullgraph=True, backend="eager")
    torch.testing.assert_close(*(gradients(function(X, U), model) for function in (value_of, compiled)))


def test_changes_to_nan_and_of_other_examples_are_told():
    model = mlp().double()
    with pytest.raises(ValueError, match=r"the function of change= returned NaN"):
        Consistency(lambda x: x / 0)(model, X, unlabeled=X)
    with pytest.warns(UserWarning, match=r"function of change= \(<lambda>\) does not change each example"):
        Consistency(lambda x: x.flip(0))(model, X, unlabeled=X)
