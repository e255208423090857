"""Consistency on examples without labels, against loops over examples: of changed copies and of mixed examples."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg import changes
from effdeg.baselines import ICT, UDA, Consistency, FixMatch
from tests.baselines.test_mixup import drawn
from tests.batches import X, Y
from tests.models import TwoInputs, Unexpected, mlp, with_batchnorm
from tests.properties import assert_same_gradients

V = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
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
    [*(method(turn) for method in ALL), UDA(turn, temperature=0.7, threshold=0.5), FixMatch(turn, threshold=0.6)],
    ids=repr,
)
def test_the_penalty_is_that_of_a_loop(method):
    model = sharp()
    outputs, value = method(model, X, Y, unlabeled=U)
    torch.testing.assert_close(outputs, model(X))
    expected = by_hand(method, model)
    assert 0 < expected == pytest.approx(float(value.detach()), rel=1e-9)


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


@pytest.mark.parametrize("penalty", [*(method(turn) for method in ALL), ICT(sharp())], ids=repr)
def test_bad_batches_and_probabilities_are_refused(penalty):
    with pytest.raises(TypeError, match=r"unlabeled examples \(.*\(5,\) torch.float64\) do not have the form.*\(6,\)"):
        penalty(Unexpected(), X, unlabeled=U[:, 1:])
    with pytest.raises(TypeError, match="do not have the form"):
        penalty(Unexpected(), (X, 2.0), unlabeled=(U,))
    with pytest.raises(TypeError, match="unlabeled holds no examples"):
        penalty(Unexpected(), X, unlabeled=U[:0])
    penalty(sharp(), X, unlabeled=U)
    with pytest.raises(ValueError, match=r"student's outputs are probabilities already.* Let it return logits"):
        penalty(nn.Sequential(sharp(), nn.Softmax(-1)), X, unlabeled=U)
    with pytest.raises(ValueError, match=r"for a joined batch of 12 \+ .* examples, but no tensor with"):
        penalty(lambda x: x.sum(), X, unlabeled=U)


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


def test_changes_to_nan_and_of_other_examples_are_told():
    model = mlp().double()
    with pytest.raises(ValueError, match=r"the function of change= returned NaN"):
        Consistency(lambda x: x / 0)(model, X, unlabeled=X)
    with pytest.warns(UserWarning, match=r"function of change= \(<lambda>\) does not change each example"):
        Consistency(lambda x: x.flip(0))(model, X, unlabeled=X)


def consistency_slowly(model, teacher, share, partners):
    total = 0.0
    for number, partner in enumerate(partners.tolist()):
        student = model((share * V[number] + (1 - share) * V[partner])[None])[0].softmax(0)
        with torch.no_grad():
            ends = [teacher(V[each][None])[0].softmax(0) for each in (number, partner)]
        for output in range(4):
            target = share * ends[0][output] + (1 - share) * ends[1][output]
            total = total + (student[output] - target) ** 2
    return total / (len(V) * 4)


@pytest.mark.parametrize("method", [UDA(turn, threshold=0), FixMatch(turn, threshold=0)], ids=["UDA", "FixMatch"])
def test_a_masked_class_adds_nothing(method):
    model = mlp().double()

    def masked(x):
        return torch.nn.functional.pad(model(x), (0, 1), value=-torch.inf)

    found, expected = (method(each, X, unlabeled=V)[1] for each in (masked, model))
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(each, model.parameters()) for each in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_one_example_at_a_time():
    model, twin, teacher = mlp().double(), mlp().double(), mlp(seed=1).double()
    share, partners = drawn(20)
    outputs, value = ICT(teacher)(model, X, Y, unlabeled=V)
    expected = consistency_slowly(twin, teacher, share, partners)
    torch.testing.assert_close(outputs, twin(X))
    torch.testing.assert_close(value, expected)
    losses = cross_entropy(outputs, Y) + 3 * value, cross_entropy(twin(X), Y) + 3 * expected
    assert_same_gradients(*losses, model, twin)
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("autocast", [False, True])
def test_the_model_as_its_own_teacher_is_trained(autocast):
    model = mlp()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        _, value = ICT(model)(model, X.float(), unlabeled=V.float())
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
    way(model, X, unlabeled=V)
    assert seen == [32, (20, False)]
    assert teacher[0].num_batches_tracked == 0
    assert list(way.parameters()) == []


def test_several_inputs_and_what_all_examples_share():
    model, teacher, shared = TwoInputs().double(), TwoInputs().double(), torch.ones(3)

    def with_shared(inner):
        return lambda left, right, shared: {"logits": inner(left * shared, right), "shared": shared}

    share, partners = drawn(20)
    mixed, ends = share * V + (1 - share) * V[partners], teacher(V[:, :3], V[:, 3:]).softmax(1)
    expected = model(mixed[:, :3], mixed[:, 3:]).softmax(1) - (share * ends + (1 - share) * ends[partners])
    way = ICT(with_shared(teacher))
    outputs, value = way(
        with_shared(model),
        {"left": X[:, :3], "right": X[:, 3:], "shared": shared},
        unlabeled={"left": V[:, :3], "right": V[:, 3:], "shared": shared},
    )
    torch.testing.assert_close(value, expected.square().mean())
    torch.testing.assert_close(outputs["logits"], model(X[:, :3], X[:, 3:]))


def test_a_teacher_runs_in_its_own_precision():
    values = []
    for teacher in (mlp(seed=1), mlp(seed=1).double()):
        torch.manual_seed(0)
        values.append(ICT(teacher)(mlp(), X.float(), unlabeled=V.float())[1])
    torch.testing.assert_close(*values)


@pytest.mark.parametrize(
    ("teacher", "kind", "message"),
    [
        (lambda x: None, TypeError, "the teacher returned None"),
        (mlp(outputs=3).double(), ValueError, r"outputs are of shape \(3,\) per example, the model's of \(4,\)"),
        (nn.Sequential(mlp(), nn.Softmax(1)).double(), ValueError, "teacher's outputs are probabilities already"),
        (mlp().to("meta"), ValueError, "the teacher .* on the meta device"),
        (lambda x: x.sum(), ValueError, "its first dimension must be the batch"),
    ],
)
def test_teachers_that_make_no_sense(teacher, kind, message):
    with pytest.raises(kind, match=message):
        ICT(teacher)(mlp().double(), X, unlabeled=V)


@pytest.mark.parametrize(
    ("unlabeled", "message"),
    [(V.long(), "no straight line joins integers"), (V.cfloat(), r"unlabeled \('\[0\].\[0\]'\) holds complex numbers")],
)
def test_examples_that_cannot_be_mixed(unlabeled, message):
    with pytest.raises(TypeError, match=message):
        ICT(Unexpected())(Unexpected(), X, unlabeled=unlabeled)
    with pytest.raises(TypeError, match=r"teacher=0.999 must be a model, such as torch.optim.swa_utils.AveragedModel"):
        ICT(0.999)
