import copy
import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import effdeg
from effdeg import Penalty
from effdeg.functional import basis_matrix
from tests.models import Pair, Shared, Tokens, TwoInputs, WithTupleLayer, mlp
from tests.oracles import reference
from tests.oracles.algorithm import penalty_of_batch

X = torch.randn(12, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (12,), generator=torch.Generator().manual_seed(1))


class Counting(nn.Module):
    """Counts the rows that a model is run on."""

    def __init__(self, model):
        super().__init__()
        self.model, self.rows = model, []

    def forward(self, x):
        self.rows.append(len(x))
        return self.model(x)


def same_draw(penalty, x, y=None):
    """Draw the points that the next call after the same seed draws."""
    torch.manual_seed(7)
    points = penalty.points(x, y)
    torch.manual_seed(7)
    return points


@pytest.mark.parametrize(
    ("anchored", "components", "basis", "sampling", "normalized"),
    list(
        itertools.product(
            [False, True], [None, 1, 3], ["chebyshev", "legendre"], ["cosine", "chebyshev", "uniform"], [False, True]
        )
    ),
)
def test_the_value_is_the_papers_algorithms(anchored, components, basis, sampling, normalized):
    model = mlp(seed=3).double()
    penalty = Penalty(
        anchor_labels=anchored, components=components, basis=basis, sampling=sampling, normalized=normalized, pairs=9
    )
    points = same_draw(penalty, X, Y)
    outputs, degree = penalty(model, X, Y)
    expected = penalty_of_batch(
        lambda point: reference.softmax(model(torch.from_numpy(point)).detach().numpy()),
        X.numpy(),
        one_hot(Y, 4).double().numpy(),
        points.pairs.tolist(),
        points.alpha.numpy(),
        degree=3,
        basis=basis,
        damping=1e-3,
        anchored=anchored,
        components=components,
        normalized=normalized,
    )
    assert degree.shape == ()
    np.testing.assert_allclose(degree.item(), expected, rtol=1e-9)
    torch.testing.assert_close(outputs, model(X))


@pytest.mark.parametrize("settings", [{}, {"nodes": 15, "degree": 7}, {"nodes": 40, "degree": 20, "damping": 1e-6}])
def test_the_gradient_is_the_papers_closed_form(settings):
    """T (TᵀT + eps I)⁻¹ (sign(c) ⊙ d), averaged over outputs and pairs."""
    penalty = Penalty(output="identity", pairs=5, **settings)
    points = penalty.points(X)
    values = torch.randn(len(points), 3, dtype=torch.float64, requires_grad=True)
    penalty.degree(values, points).backward()
    settings = penalty.settings
    expected = []
    for alpha, along in zip(points.alpha, values.detach().view(5, settings.nodes, 3), strict=True):
        design = basis_matrix(alpha, settings.degree)
        inverse = torch.linalg.inv(design.mT @ design + settings.damping * torch.eye(settings.degree + 1))
        signs = (inverse @ design.mT @ along).sign()
        expected.append(design @ inverse @ (signs * torch.arange(settings.degree + 1.0)[:, None]) / (3 * 5))
    torch.testing.assert_close(values.grad, torch.cat(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("anchored", "components", "outputs"), [(True, 3, 20), (False, 2, 20), (True, 2, 3)])
def test_gradcheck_through_the_components(anchored, components, outputs):
    penalty = Penalty(anchor_labels=anchored, components=components, output="identity", pairs=3)
    torch.manual_seed(0)
    points = penalty.points(X, Y % outputs if anchored else None)
    values = torch.randn(len(points), outputs, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: penalty.degree(v, points), values)


def coinciding():
    """Values whose kept eigenvalues are equal: an orthonormal basis along the path."""
    return torch.eye(4, 6, dtype=torch.float64).repeat(3, 1)


def vanishing():
    """Values that vary in one direction only."""
    return torch.linspace(0, 1, 12, dtype=torch.float64)[:, None] * torch.arange(1.0, 7)


@pytest.mark.parametrize("make", [coinciding, vanishing, lambda: torch.ones(12, 6, dtype=torch.float64)])
def test_where_eigenvalues_meet_or_vanish_the_value_is_right_and_the_gradient_bounded(make):
    penalty = Penalty(components=3, output="identity", pairs=3)
    points = penalty.points(X)
    values = make().requires_grad_()
    degree = penalty.degree(values, points)
    degree.backward()
    # Rotating components that tie changes the sum of their |coefficients|, so the value is compared where none do.
    if make is not coinciding:
        expected = [
            reference.effective_degree(
                reference.damped_fit(
                    reference.principal_scores(along.numpy(), 3),
                    alpha.numpy(),
                    3,
                    "chebyshev",
                    penalty.settings.damping,
                )
            )
            for along, alpha in zip(values.detach().view(3, 4, 6), points.alpha, strict=True)
        ]
        np.testing.assert_allclose(degree.item(), np.mean(expected), rtol=1e-8, atol=1e-12)
    assert degree.isfinite()
    assert values.grad.isfinite().all()
    assert float(values.grad.norm()) < 1e3


DEGENERATE = {
    "a pair of the same example": lambda p, m: p.degree(
        m((points := p.points(X, Y, pairs=torch.zeros(3, 2, dtype=torch.int64))).append_to(X)), points
    ),
    "constant outputs": lambda p, m: p(nn.Sequential(m, nn.Linear(4, 4).double().requires_grad_(True), Zero()), X, Y)[
        1
    ],
    "a batch of one": lambda p, m: p(m, X[:1], Y[:1])[1],
    "all labels equal": lambda p, m: p(m, X, torch.zeros_like(Y))[1],
    "all examples equal": lambda p, m: p(m, X[:1].expand(12, -1), Y)[1],
}


class Zero(nn.Module):
    def forward(self, x):
        return x * 0


@pytest.mark.parametrize("settings", [{}, {"components": 2}, {"normalized": True}, {"sampling": "uniform"}])
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_batches_are_legal(case, anchored, settings):
    model = mlp().double()
    degree = DEGENERATE[case](Penalty(anchor_labels=anchored, **settings), model)
    degree.backward()
    assert degree.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"anchor_labels": True}, 12 + 6 * 2),
        ({}, 12 + 6 * 4),
        ({"sampling": "uniform"}, 12 + 6 * 2),
        ({"sampling": "uniform", "anchor_labels": True}, 12 + 6 * 2),
        ({"sampling": "chebyshev"}, 12 + 6 * 4),
        ({"pairs": 1.0}, 12 + 12 * 4),
        ({"pairs": 1}, 12 + 4),
        ({"pairs": 1 / 3, "anchor_labels": True, "nodes": 15, "degree": 7}, 12 + 4 * 13),
    ],
)
def test_one_forward_runs_the_batch_and_no_more_points_than_it_must(settings, rows):
    model = Counting(mlp().double())
    Penalty(**settings)(model, X, Y)
    assert model.rows == [rows]


def test_the_halves_are_the_whole():
    model, penalty = mlp().double(), Penalty.efficient()
    points = same_draw(penalty, X, Y)
    _, expected = penalty(model, X, Y)
    assert torch.equal(points.append_to(X), torch.cat([X, points.inputs]))
    assert torch.equal(penalty.degree(model(points.append_to(X)), points), expected)
    torch.testing.assert_close(penalty.degree(model(points.inputs), points), expected)
    first, second = points.pairs[0]
    alpha = points.alpha[0, 1]
    torch.testing.assert_close(points.inputs[0], alpha * X[first] + (1 - alpha) * X[second])
    assert torch.equal(points.interpolate(X), points.inputs)


def test_soft_labels_and_class_ids_are_the_same_labels():
    model, penalty = mlp().double(), Penalty.efficient()
    degrees = []
    for labels in (Y, Y.int(), one_hot(Y, 4), one_hot(Y, 4).double()):
        torch.manual_seed(0)
        degrees.append(penalty(model, X, labels)[1])
    assert len({degree.item() for degree in degrees}) == 1
    torch.manual_seed(0)
    assert penalty(model, X, torch.full((12, 4), 0.25))[1] != degrees[0]


def test_one_logit_and_targets_of_a_regression_are_anchors_too():
    model = mlp(outputs=1).double()
    for output, labels in (("sigmoid", Y % 2), ("sigmoid", (Y % 2)[:, None].double()), ("identity", X[:, 0])):
        penalty = Penalty(anchor_labels=True, output=output)
        points = same_draw(penalty, X, labels)
        _, degree = penalty(model, X, labels)
        values = model(points.inputs).sigmoid() if output == "sigmoid" else model(points.inputs)
        ends = labels.double().reshape(12)[points.pairs]
        along = torch.cat([ends[:, 1:], values.view(-1, 2), ends[:, :1]], dim=1)[..., None]
        coefficients = effdeg.functional.fit(along, points.alpha, 3, damping=1e-3)
        torch.testing.assert_close(degree, effdeg.functional.effective_degree(coefficients).mean())


def test_labels_of_every_token_anchor_every_token():
    class PerToken(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = mlp(outputs=3).double()

        def forward(self, x):
            return self.head(x.view(len(x), 2, 6))

    x, labels = torch.randn(8, 12, dtype=torch.float64), torch.randint(3, (8, 2))
    model, soft = PerToken(), one_hot(labels, 3)
    degrees = []
    for given in (labels, soft):
        torch.manual_seed(0)
        degrees.append(Penalty.efficient()(model, x, given)[1])
    assert degrees[0] == degrees[1]


def test_pairs_are_two_different_examples_drawn_evenly():
    pairs = Penalty(pairs=20000).points(X).pairs
    assert (pairs[:, 0] != pairs[:, 1]).all()
    counts = torch.bincount(pairs[:, 0] * 12 + pairs[:, 1], minlength=144).view(12, 12).double()
    expected = 20000 / (12 * 11)
    assert float(counts.diagonal().sum()) == 0
    off_diagonal = counts[~torch.eye(12, dtype=torch.bool)]
    chi_squared = ((off_diagonal - expected) ** 2 / expected).sum()
    assert chi_squared < 131 + 6 * (2 * 131) ** 0.5


def test_a_generator_of_its_own_leaves_the_global_one_alone():
    model = mlp().double()
    state = torch.get_rng_state()
    degrees = [Penalty(generator=torch.Generator().manual_seed(seed))(model, X)[1].item() for seed in (0, 0, 1)]
    assert degrees[0] == degrees[1] != degrees[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_it_is_a_module_without_a_trace_in_checkpoints():
    model = mlp()
    penalty = Penalty(at=model[1], output=nn.Softmax(-1), pairs=3)
    assert list(penalty.parameters()) == list(penalty.buffers()) == list(penalty.children()) == []
    assert penalty.state_dict() == {}
    nn.ModuleDict({"model": model, "penalty": penalty}).load_state_dict({
        f"model.{k}": v for k, v in model.state_dict().items()
    })
    assert repr(penalty) == "Penalty(degree=3, nodes=4, pairs=3, anchor_labels=False, output=Softmax, at=Tanh)"
    for copied in (copy.deepcopy(Penalty.precise()), pickle.loads(pickle.dumps(Penalty.precise()))):
        assert copied.settings == Penalty.precise().settings


def test_the_papers_configurations():
    assert repr(Penalty.efficient()) == "Penalty(degree=3, nodes=4, pairs=0.5, anchor_labels=True)"
    precise = "Penalty(degree=7, nodes=15, pairs=1.0, sampling='chebyshev', anchor_labels=True)"
    assert repr(Penalty.precise()) == precise
    assert Penalty.efficient(components=3, pairs=512).settings.components == 3
    alpha = Penalty.precise().points(X, Y).alpha
    assert (alpha[:, 0] == 0).all()
    assert (alpha[:, -1] == 1).all()
    torch.testing.assert_close(alpha[0, 1:-1], effdeg.functional.chebyshev_nodes(15)[1:-1])


class Returning(nn.Module):
    """Returns its outputs in some structure."""

    def __init__(self, wrap):
        super().__init__()
        self.model, self.wrap = mlp().double(), wrap

    def forward(self, x):
        return self.wrap(self.model(x))


STRUCTURES = {
    "tuple": lambda logits: (logits, logits.sum(1)),
    "dict": lambda logits: {"features": logits * 2, "logits": logits},
    "list": lambda logits: [logits, None],
    "nested": lambda logits: {"logits": logits, "hidden": (logits * 3, {"deep": logits[:, :1]})},
    "with a shared scalar": lambda logits: {"logits": logits, "temperature": torch.tensor(2.0)},
    "dataclass": lambda logits: Pair(logits, -logits),
}


@pytest.mark.parametrize("wrap", STRUCTURES.values(), ids=STRUCTURES)
def test_outputs_are_what_the_model_returns_for_the_batch(wrap):
    model = Returning(wrap)
    torch.manual_seed(0)
    outputs, degree = Penalty()(model, X)
    torch.manual_seed(0)
    assert degree == Penalty()(model.model, X)[1]
    expected = model(X)
    assert type(outputs) is type(expected)
    flat, flat_expected = ([leaf for _, leaf in effdeg.tree.named_leaves(tree)] for tree in (outputs, expected))
    for leaf, other in zip(flat, flat_expected, strict=True):
        if isinstance(leaf, torch.Tensor):
            torch.testing.assert_close(leaf, other)
        else:
            assert leaf is other is None


def test_inputs_may_be_tuples_mappings_and_keywords():
    model = TwoInputs().double()
    left, right = X[:, :3], X[:, 3:]
    degrees = []
    for call in (
        lambda p: p(model, (left, right)),
        lambda p: p(model, {"left": left, "right": right}),
        lambda p: p(model, left, right=right),
        lambda p: p(model, Pair(left, right)),
        lambda p: p(lambda both: model(both[:, :3], both[:, 3:]), X),
    ):
        torch.manual_seed(0)
        outputs, degree = call(Penalty())
        torch.testing.assert_close(outputs, model(left, right))
        degrees.append(degree)
    for degree in degrees[1:]:
        torch.testing.assert_close(degree, degrees[0])


def test_tensors_that_are_not_per_example_stay_as_they_are():
    scale = torch.linspace(0.5, 2, 6, dtype=torch.float64)
    model = mlp().double()
    torch.manual_seed(0)
    _, degree = Penalty()(lambda x, scale, factor: model(x * scale) * factor, (X, scale), factor=torch.tensor(2.0))
    torch.manual_seed(0)
    torch.testing.assert_close(degree, Penalty()(lambda x: model(x * scale) * 2, X)[1])


# Paths at a layer.


def tokens(examples=10, length=7):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, length + 1, (examples, 1), generator=generator)
    return {
        "input_ids": torch.randint(30, (examples, length), generator=generator),
        "attention_mask": (torch.arange(length) < lengths).long(),
    }


def test_a_path_at_the_embeddings_joins_the_masks():
    model, inputs = Tokens().double(), tokens()
    labels = torch.randint(3, (10,), generator=torch.Generator().manual_seed(2))
    penalty = Penalty(at="embed", anchor_labels=True)
    points = same_draw(penalty, inputs, labels)
    outputs, degree = penalty(model, inputs, labels)
    torch.testing.assert_close(outputs, model(**inputs))
    total = 0.0
    for (first, second), alpha in zip(points.pairs.tolist(), points.alpha, strict=True):
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        weight = (mask[first] | mask[second])[:, None].double()
        values = [np.eye(3)[labels[second]]]
        for a in alpha[1:-1]:
            embedded = a * model.embed(ids[first]) + (1 - a) * model.embed(ids[second])
            pooled = (torch.tanh(model.mix(embedded)) * weight).sum(0) / weight.sum()
            values.append(reference.softmax(model.head(pooled).detach().numpy()))
        values.append(np.eye(3)[labels[first]])
        coefficients = reference.damped_fit(np.stack(values), alpha.numpy(), 3, "chebyshev", 1e-3)
        total += reference.effective_degree(coefficients) / len(points.pairs)
    np.testing.assert_allclose(degree.item(), total, rtol=1e-8)


def test_the_gradient_through_a_layer_reaches_the_layers_before_it():
    """Against the same paths made by hand from the features of the batch."""
    model = mlp().double()
    penalty = Penalty(at="1")
    points = same_draw(penalty, X)
    penalty(model, X)[1].backward()
    joined = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    hidden = model[:2](X)
    penalty.degree(model[2](points.interpolate(hidden)), points).backward()
    for parameter, expected in zip(model.parameters(), joined, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_after_a_linear_layer_the_path_is_the_same_path():
    model = mlp().double()
    degrees = []
    for at in (None, "0", model[0]):
        torch.manual_seed(0)
        degrees.append(Penalty(at=at)(model, X)[1])
    torch.testing.assert_close(degrees[1], degrees[0])
    assert degrees[2] == degrees[1]


def test_a_layer_may_return_a_tuple_and_hooks_do_not_stay():
    model = WithTupleLayer()
    outputs, degree = Penalty(at="layer")(model, X.float())
    torch.testing.assert_close(outputs, model(X.float()))
    assert degree > 0
    assert not any(module._forward_hooks for module in model.modules())


# BatchNorm.


def with_batchnorm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)).double()


def test_joint_is_one_batch():
    model, reference_model, penalty = with_batchnorm(), with_batchnorm(), Penalty()
    points = same_draw(penalty, X)
    outputs, _ = penalty(model, X)
    torch.testing.assert_close(outputs, reference_model(points.append_to(X))[:12])
    torch.testing.assert_close(model[1].running_mean, reference_model[1].running_mean)


def test_frozen_leaves_the_batch_as_it_would_be_alone():
    model, alone, penalty = with_batchnorm(), with_batchnorm(), Penalty(batchnorm="frozen")
    points = same_draw(penalty, X)
    outputs, degree = penalty(model, X)
    assert torch.equal(outputs, alone(X))
    for buffer, expected in zip(model.buffers(), alone.buffers(), strict=True):
        assert torch.equal(buffer, expected)
    # The points by hand, statistics and their gradients included.
    hidden = alone[0](X)
    mean, variance = hidden.mean(0), hidden.var(0, correction=0)
    normalized = (alone[0](points.inputs) - mean) / (variance + alone[1].eps).sqrt() * alone[1].weight + alone[1].bias
    expected = penalty.degree(alone[3](alone[2](normalized)), points)
    torch.testing.assert_close(degree, expected)
    degree.backward()
    expected.backward()
    for parameter, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_frozen_in_images_and_in_evaluation_mode():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    images = torch.randn(8, 3, 6, 6)
    penalty = Penalty(batchnorm="frozen")
    alone = copy.deepcopy(model)
    torch.testing.assert_close(penalty(model, images)[0], alone(images))
    model.eval()
    degrees = []
    for each in (penalty, Penalty()):
        torch.manual_seed(0)
        degrees.append(each(model, images)[1])
    assert degrees[0] == degrees[1]


@pytest.mark.parametrize("at", ["1", "2"])
def test_before_the_layer_of_the_paths_only_the_batch_is_counted(at):
    model, alone = with_batchnorm(), with_batchnorm()
    outputs, _ = Penalty(at=at)(model, X)
    torch.testing.assert_close(outputs, alone(X))
    torch.testing.assert_close(model[1].running_var, alone[1].running_var)
    # Behind it they share the statistics.
    behind = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 4)).double()
    plain = copy.deepcopy(behind)
    Penalty(at="1")(behind, X)
    plain(X)
    assert not torch.allclose(behind[2].running_var, plain[2].running_var)


# Schedules.


def test_schedules():
    ramp = effdeg.SineRamp(7.0, steps=100)
    assert ramp(0) == 0
    assert ramp(50) == pytest.approx(7 * 0.5**0.5)
    assert ramp(100) == ramp(1000) == 7.0
    assert effdeg.SineRamp(7.0, steps=0)(0) == 7.0
    assert effdeg.Constant(2.0)(123) == 2.0
    assert repr(ramp) == "SineRamp(weight=7.0, steps=100)"
    for step in (0, 30, 100, 500):
        for schedule in (ramp, effdeg.SineRamp(3.0, steps=0)):
            torch.testing.assert_close(schedule(torch.tensor(step)), torch.tensor(schedule(step)))
    with pytest.raises(ValueError, match="steps=-1"):
        effdeg.SineRamp(1.0, steps=-1)


# Errors.


class Unexpected(nn.Module):
    def forward(self, x):
        raise AssertionError("the model was run before the error")


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"nodes": 3}, ValueError, "nodes=3 cannot determine a polynomial of degree=3"),
        ({"nodes": 2, "degree": 1, "anchor_labels": True}, ValueError, "Use nodes=3 or more"),
        ({"degree": 0}, ValueError, "degree=0 is too small"),
        ({"pairs": 0}, ValueError, "pairs=0 must be positive"),
        ({"pairs": -0.5}, ValueError, "must be positive"),
        ({"pairs": float("nan")}, ValueError, "must be positive"),
        ({"pairs": True}, TypeError, "a share of the batch"),
        ({"pairs": "half"}, TypeError, "a share of the batch"),
        ({"sampling": "cosin"}, ValueError, "Did you mean 'cosine'"),
        ({"basis": "fourier"}, ValueError, "Choose from: 'chebyshev'"),
        ({"batchnorm": "split"}, ValueError, "'joint', 'frozen'"),
        ({"output": "sofmax"}, ValueError, "Did you mean 'softmax'"),
        ({"components": 4}, ValueError, "components=4 is too many for nodes=4"),
        ({"damping": -1.0}, ValueError, "damping=-1.0"),
        ({"at": 3}, TypeError, "must be the name of a layer"),
    ],
)
def test_bad_settings(settings, kind, message):
    with pytest.raises(kind, match=message):
        Penalty(**settings)


@pytest.mark.parametrize(
    ("settings", "arguments", "kind", "message"),
    [
        ({"anchor_labels": True}, (X,), ValueError, "none were given"),
        ({"anchor_labels": True}, (X, Y[:5]), ValueError, "a batch of 12 .* needs a tensor with 12 rows"),
        ({"anchor_labels": True}, (X, Y.tolist()), ValueError, "the labels .* are list"),
        ({"pairs": 0.01}, (X,), ValueError, "pairs=0.01 of a batch of 12 rounds to none"),
        ({"at": "layr"}, (X,), ValueError, "'layr' is not a layer of this model"),
        ({}, (torch.randint(5, (4, 3)),), TypeError, "no straight line joins integers"),
        ({}, ("text",), TypeError, "x is tuple with no tensor"),
        ({}, (torch.tensor(1.0),), TypeError, "first dimension"),
        ({}, ({"x": X, "labels": X[:, 0]},), ValueError, "x holds 'labels'"),
        ({}, ({"x": X, "labels": Y},), ValueError, "x holds 'labels'"),
        ({}, (X, Y[:5]), ValueError, "a batch of 12"),
        ({}, (X[:0],), TypeError, "x is tuple with"),
    ],
)
def test_bad_calls_stop_before_the_model_is_run(settings, arguments, kind, message):
    with pytest.raises(kind, match=message):
        Penalty(**settings)(Unexpected(), *arguments)


def test_outputs_that_do_not_match():
    penalty = Penalty.efficient()
    with pytest.raises(ValueError, match="a single number for the whole batch"):
        penalty(lambda x: cross_entropy(mlp()(x.float()), torch.zeros(len(x), dtype=torch.int64)), X, Y)
    with pytest.raises(ValueError, match="no tensor of 24 rows"):
        penalty(lambda x: mlp().double()(x)[:5], X, Y)
    with pytest.raises(ValueError, match="labels from 0 to 7 do not match 4 classes"):
        penalty(mlp().double(), X, torch.arange(12) % 8)
    with pytest.raises(ValueError, match=r"labels of shape \(12, 3\).* do not match outputs of shape \(4,\)"):
        penalty(mlp().double(), X, torch.rand(12, 3))
    with pytest.raises(ValueError, match="for a batch of 24"):
        penalty.degree(torch.rand(5, 4), penalty.points(X, Y))
    uniform = Penalty(sampling="uniform")
    points = uniform.points(X)
    with pytest.raises(ValueError, match="give all 24 rows"):
        uniform.degree(torch.rand(len(points), 4), points)
    with pytest.raises(ValueError, match="alpha of shape"):
        penalty.points(X, Y, alpha=torch.rand(2, 4))
    with pytest.raises(ValueError, match=r"pairs of shape \(2, 3\)"):
        penalty.points(X, Y, pairs=torch.zeros(2, 3, dtype=torch.int64))


def test_a_layer_that_cannot_hold_a_path():
    with pytest.raises(ValueError, match="ran 2 times"):
        Penalty(at="layer")(Shared(), X.float())
    model = nn.ModuleDict({"used": mlp(), "unused": nn.Linear(2, 2)})
    model.forward = model["used"].forward
    with pytest.raises(ValueError, match="ran 0 times"):
        Penalty(at="unused")(model, X.float())


@pytest.mark.parametrize(
    "wrap",
    [lambda loss, logits: (logits, loss), lambda loss, logits: {"loss": loss, "logits": logits}],
    ids=["tuple", "dict"],
)
def test_a_models_own_loss_is_not_taken_for_the_batchs(wrap):
    model = mlp().double()

    def with_loss(x, targets):
        logits = model(x)
        return wrap(cross_entropy(logits, targets), logits)

    with pytest.raises(ValueError, match="a loss of its own"):
        Penalty(at=model[0])(with_loss, (X, Y))


def test_maps_with_the_classes_in_the_second_dimension():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Tanh(), nn.Conv2d(5, 4, 1)).double()
    images, ids = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(4, (6, 8, 8))
    with pytest.raises(ValueError, match="look like maps with the classes in the second"):
        Penalty()(model, images)
    degrees = []
    for output in (lambda r: r.softmax(1), lambda r: r.movedim(1, -1).softmax(-1)):
        torch.manual_seed(0)
        degrees.append(Penalty(anchor_labels=True, output=output)(model, images, ids)[1])
    torch.testing.assert_close(degrees[0], degrees[1])


def test_where_there_is_no_label_the_models_own_output_stands():
    model, penalty = mlp().double(), Penalty(anchor_labels=True)
    labels = Y.clone()
    labels[::2] = -100
    points = same_draw(penalty, X, labels)
    _, degree = penalty(model, X, labels)
    own = model(X).softmax(-1).detach()
    own[1::2] = one_hot(Y, 4).double()[1::2]
    torch.testing.assert_close(
        degree, penalty.degree(model(points.append_to(X)), replace(points, labels=own[points.pairs]))
    )


def test_padding_masks_are_joined_by_what_either_end_sees():
    seen = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    pairs = torch.tensor([[0, 1], [1, 1]])
    x = {
        "attention_mask": seen,
        "keep": seen.bool(),
        "src_key_padding_mask": ~seen.bool(),
        "padding_mask": 1 - seen,
        "ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]),
    }
    made = Penalty(at="embed", anchor_labels=True, nodes=3, degree=2).points(x, Y[:2], pairs=pairs).inputs
    expected = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    assert torch.equal(made["attention_mask"], expected)
    assert torch.equal(made["keep"], expected.bool())
    assert torch.equal(made["src_key_padding_mask"], ~expected.bool())
    assert torch.equal(made["padding_mask"], 1 - expected)
    assert torch.equal(made["ids"], x["ids"])


def test_a_bound_method_is_run_with_its_modules_batchnorm():
    model, alone = with_batchnorm(), with_batchnorm()
    outputs, _ = Penalty(batchnorm="frozen")(model.forward, X)
    assert torch.equal(outputs, alone(X))
    with pytest.raises(TypeError, match="the model is a plain function"):
        Penalty(batchnorm="frozen")(lambda x: model(x), X)


def test_layers_of_wrapped_models_go_by_their_own_names():
    model = mlp().double()
    wrapped = nn.DataParallel(model) if not torch.cuda.is_available() else model
    for each in (model, wrapped, torch.compile(model, backend="eager")):
        for name in ("1", "module.1"):
            torch.manual_seed(0)
            outputs, degree = Penalty(at=name)(each, X)
            torch.testing.assert_close(outputs, model(X))
            torch.manual_seed(0)
            assert degree == Penalty(at="1")(model, X)[1]


def test_only_what_is_split_must_be_torchs_own_batchnorm():
    class Activated(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x).relu()

    model = nn.Sequential(nn.Linear(6, 6), Activated(6), nn.Linear(6, 4)).double()
    Penalty(at="0")(model, X)
    with pytest.raises(TypeError, match="'1' is a Activated"):
        Penalty(at="2")(model, X)


def test_what_is_given_twice_is_refused():
    with pytest.raises(TypeError, match="s: given both"):
        Penalty()(lambda x, s: x * s, {"x": X, "s": 2.0}, s=3.0)


def test_batchnorm_of_another_kind_is_refused():
    class Activated(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x).relu()

    model = nn.Sequential(nn.Linear(6, 6), Activated(6), nn.Linear(6, 4)).double()
    with pytest.raises(TypeError, match="'1' is a Activated"):
        Penalty(batchnorm="frozen")(model, X)
    Penalty()(model, X)
