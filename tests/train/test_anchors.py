"""The values at the ends of paths: labels, the model's own outputs, a teacher's; examples without labels."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from effdeg import Penalty
from effdeg.functional import effective_degree, fit
from tests.batches import X, Y, same_draw, seeded
from tests.models import mlp, with_batchnorm
from tests.properties import assert_same_under_vmap

U = torch.randn(10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
PAIRS = torch.tensor([[0, 1], [5, 2], [7, 7], [3, 11]])


def degree_of(along, points, penalty):
    """Fit values of shape (paths, nodes, outputs) and weigh the coefficients."""
    settings = penalty.settings
    coefficients = fit(along, points.alpha, settings.degree, settings.basis, settings.damping)
    return effective_degree(coefficients, weights=settings.weights, normalized=settings.normalized).mean()


def gradients_of(value, model):
    return torch.autograd.grad(value, list(model.parameters()))


# What the penalty is with labels at the ends.


def test_cheap_ed_is_l1_mixup():
    """Per output |Δ|/2 + |p(x) − t(x)| / (1 − x²): mixup's target t, a weighted absolute error, at one random point."""
    model, penalty, labels = mlp().double(), Penalty.cheap(damping=0.0), one_hot(Y, 4).double()
    points = same_draw(penalty, X, Y)
    _, degree = penalty(model, X, Y)
    alpha, (first, second) = points.alpha[:, 1:2], points.pairs.unbind(1)
    mixed = alpha * X[first] + (1 - alpha) * X[second]
    target = alpha * labels[first] + (1 - alpha) * labels[second]
    error, place = (model(mixed).softmax(-1) - target).abs(), 2 * alpha - 1
    expected = ((labels[first] - labels[second]).abs() / 2 + error / (1 - place**2)).mean()
    torch.testing.assert_close(degree, expected, rtol=1e-6, atol=1e-6)
    for ours, by_hand in zip(gradients_of(degree, model), gradients_of(expected, model), strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-6, atol=1e-6)


def test_cheap_curvature_with_a_teacher_is_ict_with_a_weighted_l1_loss():
    """Per output |p(x) − t(x)| / (1 − x²), where t is ICT's target: α q(x₁) + (1 − α) q(x₂) of the teacher's q."""
    model, teacher = mlp().double(), mlp(seed=1).double()
    penalty = Penalty(anchor="self", degree=2, nodes=3, weights=(0, 0, 2), damping=0.0)
    points = same_draw(penalty, X)
    _, degree = penalty(model, X, teacher=teacher)
    alpha, (first, second) = points.alpha[:, 1:2], points.pairs.unbind(1)
    with torch.no_grad():
        ends = teacher(X).softmax(-1)
    target = alpha * ends[first] + (1 - alpha) * ends[second]
    error = (model(alpha * X[first] + (1 - alpha) * X[second]).softmax(-1) - target).abs()
    expected = (error / (4 * alpha * (1 - alpha))).mean()
    torch.testing.assert_close(degree, expected, rtol=1e-6, atol=1e-6)
    for ours, by_hand in zip(gradients_of(degree, model), gradients_of(expected, model), strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-6, atol=1e-6)


# The model's own outputs at the ends.


@pytest.mark.parametrize("settings", [{}, {"weights": "square"}, {"sampling": "uniform", "weights": (0, 0, 1, 5)}])
def test_self_anchors_against_two_passes(settings):
    penalty = Penalty(anchor="self", **settings)
    model, points = mlp().double(), same_draw(penalty, X)
    outputs, degree = penalty(model, X)
    with torch.no_grad():
        ends = model(X).softmax(-1)
    along = []
    for (first, second), alpha in zip(points.pairs, points.alpha[:, 1:-1, None], strict=True):
        inner = model(alpha * X[first] + (1 - alpha) * X[second]).softmax(-1)
        along.append(torch.cat([ends[second][None], inner, ends[first][None]]))
    expected = degree_of(torch.stack(along), points, penalty)
    torch.testing.assert_close(outputs, model(X))
    torch.testing.assert_close(degree, expected)
    torch.testing.assert_close(gradients_of(degree, model), gradients_of(expected, model))
    assert len(points) == 12
    assert (points.alpha[:, 0] == 0).all()
    assert (points.alpha[:, -1] == 1).all()


def test_examples_without_a_label_are_anchored_by_their_own_outputs():
    model, nothing = mlp().double(), torch.full_like(Y, -100)
    results = []
    for anchor in ("labels", "self"):
        degree = seeded(Penalty(anchor=anchor), model, X, nothing)[1]
        results.append((degree, gradients_of(degree, model)))
    torch.testing.assert_close(*results)


def test_outputs_without_a_dimension_of_their_own():
    model, penalty = nn.Sequential(mlp(outputs=1).double(), nn.Flatten(0)), Penalty(anchor="self", output="identity")
    torch.testing.assert_close(seeded(penalty, model, X)[1], seeded(penalty, model[0], X)[1])


LAYERS = [{"at": "0"}, {"at": "2"}, {"batchnorm": "frozen"}, {"at": "2", "batchnorm": "frozen"}, {"components": 2}]


@pytest.mark.parametrize("settings", LAYERS, ids=str)
@pytest.mark.parametrize("anchor", ["self", "labels", None])
def test_at_layers_and_with_every_batchnorm(anchor, settings):
    """With constant statistics, a pass for each part gives what the joined pass gives."""
    penalty, model = Penalty(anchor=anchor, **settings), with_batchnorm().eval()
    outputs, degree = seeded(penalty, model, X, Y, unlabeled=U)
    torch.testing.assert_close(outputs, model(X))
    plain = Penalty(anchor=anchor, components=settings.get("components"))
    layer = int(settings["at"]) + 1 if "at" in settings else 0
    points = seeded(plain.points, model[:layer](X), Y, unlabeled=model[:layer](U))
    expected = plain.degree(model[layer:](points.append_to(model[:layer](X))), points)
    torch.testing.assert_close(degree, expected)


# A teacher.


def test_a_teacher_against_its_own_forward():
    penalty, model, teacher = Penalty(anchor="self"), mlp().double(), mlp(seed=5).double()
    points = same_draw(penalty, X)
    _, degree = penalty(model, X, teacher=teacher)
    ends = teacher(X).softmax(-1).detach()[points.pairs]
    inner = model(points.inputs).softmax(-1).view(6, 2, 4)
    expected = degree_of(torch.cat([ends[:, 1:], inner, ends[:, :1]], dim=1), points, penalty)
    torch.testing.assert_close(degree, expected)
    torch.testing.assert_close(gradients_of(degree, model), gradients_of(expected, model))
    by_hand = penalty.degree(model(points.append_to(X)), points, ends=teacher(X))
    torch.testing.assert_close(degree, by_hand)
    torch.testing.assert_close(degree, penalty.degree(model(points.inputs), points, ends=teacher(X)))
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_teacher_that_shares_weights_with_the_model_takes_no_gradients_from_it():
    """It runs after the model: autocast of older torch uses again what it has cast without gradients."""
    model, ran = mlp(), []
    with torch.autocast("cpu", torch.bfloat16):
        _, degree = Penalty(anchor="self")(
            lambda x: ran.append("model") or model(x), X.float(), teacher=lambda x: ran.append("teacher") or model(x)
        )
    degree.backward()
    assert ran == ["model", "teacher"]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_teacher_runs_in_its_own_precision():
    model, teacher = mlp(), mlp(seed=5)
    penalty, teachers = Penalty(anchor="self"), (teacher, copy.deepcopy(teacher).double())
    torch.testing.assert_close(*(seeded(penalty, model, X.float(), teacher=each)[1] for each in teachers))


def test_a_teacher_that_returns_nothing_is_refused():
    penalty, model = Penalty(anchor="self"), mlp().double()
    with pytest.raises(TypeError, match=r"the teacher returned None. Does it lack `return`"):
        penalty(model, X, teacher=lambda x: None)
    points = penalty.points(X)
    with pytest.raises(TypeError, match="the teacher returned None"):
        penalty.degree(model(points.append_to(X)), points, ends=None)


@pytest.mark.parametrize("anchor", ["labels", "self"])
def test_what_a_teacher_runs_on_the_model_is_spared(anchor):
    penalty, model, teacher = Penalty(anchor=anchor), mlp().double(), mlp(seed=5).double()
    seen = []
    outputs, degree = seeded(penalty, lambda x: seen.append(len(x)) or model(x), X, Y, unlabeled=U, teacher=teacher)
    points = seeded(penalty.points, X, Y, unlabeled=U)
    assert seen == [len(X) + len(points)]
    ends = teacher(U if anchor == "labels" else torch.cat([X, U]))
    torch.testing.assert_close(degree, penalty.degree(model(points.append_to(X)), points, ends=ends))
    torch.testing.assert_close(outputs, model(X))


@pytest.mark.parametrize(
    ("settings", "given", "kind", "message"),
    [
        ({}, {"teacher": mlp().double()}, ValueError, "with anchor=None there are none. Use Penalty"),
        ({"anchor": "labels"}, {"teacher": mlp().double()}, ValueError, "no unlabeled examples the labels do"),
        ({"anchor": "self"}, {"teacher": "ema"}, TypeError, "the teacher is a str"),
        ({"anchor": "self"}, {"teacher": mlp(outputs=3).double()}, ValueError, r"\(3,\) per example, the .* \(4,\)"),
        ({"sampling": "chebyshev", "anchor": "labels"}, {"unlabeled": U}, ValueError, "unlabeled uses the outputs"),
        ({}, {"unlabeled": U[:, :5]}, ValueError, r"must hold what x holds.* \(6,\).* \(5,\).* pad both"),
        ({}, {"unlabeled": U.float()}, ValueError, "torch.float64.* torch.float32"),
        ({}, {"unlabeled": (U, U)}, ValueError, "unlabeled must hold what x holds"),
        ({}, {"unlabeled": U, "mask": X[:, :1]}, ValueError, "two tuples, or two mappings"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, given, kind, message):
    with pytest.raises(kind, match=message):
        Penalty(**settings)(mlp().double(), X, Y, **given)


@pytest.mark.parametrize("settings", [{}, {"sampling": "uniform"}, {"anchor": "labels"}])
def test_ends_that_would_not_be_used_are_refused(settings):
    penalty, model = Penalty(**settings), mlp().double()
    points = penalty.points(X, Y)
    with pytest.raises(ValueError, match="or leave out the teacher"):
        penalty.degree(model(points.append_to(X)), points, ends=model(X))


def test_pairs_of_your_own_and_unlabeled_examples_are_refused():
    with pytest.raises(ValueError, match="pairs and unlabeled were both given"):
        Penalty().points(X, unlabeled=U, pairs=PAIRS)


# Examples without labels.


@pytest.mark.parametrize("anchor", ["labels", "self"])
def test_unlabeled_examples_against_a_separate_pass(anchor):
    penalty, own = (Penalty(anchor=each) for each in (anchor, "self"))
    model, points = mlp().double(), same_draw(penalty, X, Y, unlabeled=U)
    outputs, degree = penalty(model, X, Y, unlabeled=U)
    torch.testing.assert_close(outputs, model(X))
    first = penalty.points(X, Y, pairs=points.pairs[:6], alpha=points.alpha[:6])
    second = own.points(U, pairs=points.pairs[6:] - 12, alpha=points.alpha[6:])
    degrees = [each.degree(model(p.append_to(x)), p) for each, p, x in ((penalty, first, X), (own, second, U))]
    expected = (6 * degrees[0] + 5 * degrees[1]) / 11
    torch.testing.assert_close(degree, expected)
    torch.testing.assert_close(gradients_of(degree, model), gradients_of(expected, model))


def test_unlabeled_examples_without_anchors():
    penalty, model = Penalty(), mlp().double()
    points = same_draw(penalty, X, unlabeled=U)
    _, degree = penalty(model, X, unlabeled=U)
    assert (len(points), points.batch, points.unlabeled, points.total) == (44, 12, 10, 66)
    along = model(points.inputs[10:]).softmax(-1).view(11, 4, 4)
    torch.testing.assert_close(points.inputs[:10], U)
    torch.testing.assert_close(degree, degree_of(along, points, penalty))


def test_pairs_do_not_mix_labeled_and_unlabeled_examples():
    pairs = Penalty(pairs=500).points(X, unlabeled=U).pairs
    assert (pairs[:500] < 12).all()
    assert (pairs[500:] >= 12).all()
    assert pairs.max() == 21


def test_frozen_batchnorm_sees_the_labeled_batch_alone():
    model, alone = with_batchnorm(), with_batchnorm()
    outputs, _ = Penalty(anchor="self", batchnorm="frozen")(model, X, unlabeled=U)
    assert torch.equal(outputs, alone(X))
    assert torch.equal(model[1].running_mean, alone[1].running_mean)


def test_before_the_layer_of_the_paths_batchnorm_sees_all_examples():
    model, alone = with_batchnorm(), with_batchnorm()
    outputs, _ = Penalty(anchor="self", at="2")(model, X, unlabeled=U)
    torch.testing.assert_close(outputs, alone(torch.cat([X, U]))[:12])
    torch.testing.assert_close(model[1].running_mean, alone[1].running_mean)


@pytest.mark.parametrize("settings", [{}, {"partners": lambda x: 0.5 - x}, {"at": "1"}], ids=["", "partners", "at"])
def test_a_shared_tensor_with_as_many_rows_as_the_joined_examples_is_not_cut(settings):
    class Shifted(nn.Sequential):
        def forward(self, x, prototypes):
            return super().forward(x + prototypes.mean(0))

    model, teacher = (Shifted(*mlp(seed=seed).double()) for seed in (0, 1))
    prototypes, degrees = torch.cat([X, U]), []
    for shared in (prototypes, prototypes.repeat(2, 1)):  # with the same mean
        torch.manual_seed(0)
        penalty = Penalty(anchor="labels", **settings)
        degrees.append(penalty(model, X, Y, unlabeled=U, teacher=teacher, prototypes=shared)[1])
    torch.testing.assert_close(*degrees)


def test_mappings_and_further_arguments():
    model = mlp().double()

    def named(first, second, scale):
        return {"logits": scale * model(first + second)}

    penalty, scale = Penalty(anchor="self"), torch.tensor(2.0)
    unlabeled = {"second": U / 3, "first": 2 * U / 3}
    outputs, degree = seeded(penalty, named, {"first": X / 3, "second": 2 * X / 3}, unlabeled=unlabeled, scale=scale)
    expected, plain = seeded(penalty, lambda x: 2 * model(x), X, unlabeled=U)
    torch.testing.assert_close(outputs["logits"], expected)
    torch.testing.assert_close(degree, plain)


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"anchor": "labels"}, {"unlabeled": U}),
        ({"anchor": "labels"}, {"unlabeled": U, "teacher": mlp(seed=5).double()}),
        ({"anchor": "self"}, {"unlabeled": U, "teacher": mlp(seed=5).double()}),
        ({"anchor": "labels", "sampling": "chebyshev"}, {}),
        ({"sampling": "uniform", "damping": 0.0}, {}),
    ],
)
def test_several_networks_under_vmap(settings, given):
    models = [mlp(seed=seed).double() for seed in range(3)]
    assert_same_under_vmap(Penalty(**settings), models, X, Y, **given)


def test_autocast():
    penalty, model = Penalty(anchor="self"), mlp()
    with torch.autocast("cpu", torch.bfloat16):
        outputs, degree = penalty(model, X.float(), unlabeled=U.float(), teacher=mlp(seed=1))
    degree.backward()
    assert (outputs.dtype, degree.dtype) == (torch.bfloat16, torch.float32)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
