import copy
import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

import effdeg
from effdeg import Penalty
from tests.batches import X, Y, same_draw, seeded
from tests.models import mlp
from tests.oracles import reference
from tests.oracles.algorithm import nodes_of_path, penalty_of_batch


def draw_by_hand(pairs, nodes):
    """Draw what the penalty draws: the first ends, how far on the second ends are, and where angles lie in strata."""
    first, offset = torch.randint(0, len(X), (pairs,)), torch.randint(1, len(X), (pairs,))
    shares = torch.rand(pairs, nodes, dtype=torch.float64)
    return torch.stack([first, (first + offset) % len(X)], dim=1), shares


ALGORITHMS = {
    "anchor": [None, "labels"],
    "components": [None, 3],
    "basis": ["chebyshev", "legendre"],
    "sampling": ["cosine", "chebyshev", "uniform"],
    "normalized": [False, True],
}
PENALTIES = [Penalty(pairs=9, **dict(zip(ALGORITHMS, each, strict=True))) for each in product(*ALGORITHMS.values())]


@pytest.mark.parametrize("penalty", [*PENALTIES, Penalty.precise()], ids=repr)
def test_the_value_is_the_papers_algorithms(penalty):
    """The oracle draws its own pairs and nodes, from the same random numbers: a node that is moved is noticed."""
    model, settings = mlp(seed=3).double(), penalty.settings
    torch.manual_seed(7)
    pairs, shares = draw_by_hand(settings.count_pairs(len(X)), settings.nodes)
    torch.manual_seed(7)
    outputs, degree = penalty(model, X, Y)
    expected = penalty_of_batch(
        lambda point: reference.softmax(model(torch.from_numpy(point)).detach().numpy()),
        X.numpy(),
        one_hot(Y, 4).double().numpy(),
        pairs.tolist(),
        [nodes_of_path(settings.sampling, each, anchored=settings.anchor == "labels") for each in shares.tolist()],
        degree=settings.degree,
        basis=settings.basis,
        damping=1e-3,
        anchored=settings.anchor == "labels",
        components=settings.components,
        normalized=settings.normalized,
    )
    assert degree.shape == ()
    np.testing.assert_allclose(degree.item(), expected, rtol=1e-9)
    torch.testing.assert_close(outputs, model(X))


@pytest.mark.parametrize(("anchored", "components", "outputs"), [(True, 3, 6), (False, 2, 6), (True, 2, 3)])
def test_gradcheck_through_the_components(anchored, components, outputs):
    penalty = Penalty(anchor="labels" if anchored else None, components=components, output="identity", pairs=3)
    torch.manual_seed(0)
    points = penalty.points(X, one_hot(Y % outputs, outputs) if anchored else None)
    values = torch.randn(len(points), outputs, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: penalty.degree(v, points), values)


@pytest.mark.parametrize("normalized", [False, True])
def test_components_that_cannot_exist_change_neither_value_nor_gradient(normalized):
    """Four probabilities vary in three directions; what float32 leaves in the fourth is rounding."""
    model, found = mlp(), []
    for components, output in ((3, "softmax"), (4, "softmax"), (4, lambda logits: logits.softmax(-1))):
        penalty = Penalty(nodes=6, components=components, output=output, normalized=normalized)
        degree = seeded(penalty, model, X.float())[1]
        found.append((degree, *torch.autograd.grad(degree, model.parameters())))
    assert all(map(torch.equal, found[0], found[1]))
    # That a function returns probabilities is not known: raw, the fourth component counts as zero.
    for one, other in zip(found[0], found[2], strict=True):
        torch.testing.assert_close(one, other if normalized else other * 4 / 3, rtol=1e-4, atol=1e-6)


DEGENERATE = {
    "a pair of the same example": lambda p, m: p.degree(
        m((points := p.points(X, Y, pairs=torch.zeros(3, 2, dtype=torch.int64))).append_to(X)), points
    ),
    "constant outputs": lambda p, m: p(nn.Sequential(m, nn.Linear(4, 4).double(), Zero()), X, Y)[1],
    "a batch of one": lambda p, m: p(m, X[:1], Y[:1])[1],
    "all labels equal": lambda p, m: p(m, X, torch.zeros_like(Y))[1],
    "all examples equal": lambda p, m: p(m, X[:1].expand(12, -1), Y)[1],
}


class Zero(nn.Module):
    def forward(self, x):
        return x * 0


@pytest.mark.parametrize("settings", [{}, {"components": 2, "normalized": True}, {"sampling": "uniform"}])
@pytest.mark.parametrize("anchor", [None, "labels"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_batches_are_legal(case, anchor, settings):
    model = mlp().double()
    degree = DEGENERATE[case](Penalty(anchor=anchor, **settings), model)
    degree.backward()
    assert degree.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_soft_labels_and_class_ids_are_the_same_labels():
    model, penalty = mlp().double(), Penalty.efficient()
    same = (Y, Y.to(torch.uint8), Y[:, None], one_hot(Y, 4), one_hot(Y, 4).double())
    degrees = [seeded(penalty, model, X, labels)[1].item() for labels in (*same, torch.full((12, 4), 0.25))]
    assert len(set(degrees[:-1])) == 1
    assert degrees[-1] != degrees[0]


def test_one_logit_and_targets_of_a_regression_are_anchors_too():
    model = mlp(outputs=1).double()
    for output, labels in (("sigmoid", Y % 2), ("sigmoid", (Y % 2)[:, None].double()), ("identity", X[:, 0])):
        penalty = Penalty(anchor="labels", output=output)
        points = same_draw(penalty, X, labels)
        _, degree = penalty(model, X, labels)
        values = model(points.inputs).sigmoid() if output == "sigmoid" else model(points.inputs)
        ends = labels.double().reshape(12)[points.pairs]
        along = torch.cat([ends[:, 1:], values.view(-1, 2), ends[:, :1]], dim=1)[..., None]
        coefficients = effdeg.functional.fit(along, points.alpha, 3, damping=1e-3)
        torch.testing.assert_close(degree, effdeg.functional.effective_degree(coefficients).mean())


def test_it_is_a_module_without_a_trace_in_checkpoints():
    model = mlp()
    penalty = Penalty(at=model[1], output=nn.Softmax(-1), pairs=3)
    assert list(penalty.parameters()) == list(penalty.buffers()) == list(penalty.children()) == []
    assert penalty.state_dict() == {}
    nn.ModuleDict({"model": model, "penalty": penalty}).load_state_dict({
        f"model.{k}": v for k, v in model.state_dict().items()
    })
    assert repr(penalty) == "Penalty(degree=3, nodes=4, pairs=3, anchor=None, output=Softmax, at=Tanh)"
    for copied in (copy.deepcopy(Penalty.precise()), pickle.loads(pickle.dumps(Penalty.precise()))):
        assert copied.settings == Penalty.precise().settings


def test_the_papers_configurations():
    assert repr(Penalty.efficient()) == "Penalty(degree=3, nodes=4, pairs=0.5, anchor='labels')"
    assert Penalty.cheap().settings == Penalty.efficient(degree=2, nodes=3).settings
    assert len(Penalty.cheap(pairs=4).points(X, Y)) == 4
    precise = "Penalty(degree=7, nodes=15, pairs=1.0, sampling='chebyshev', anchor='labels')"
    assert repr(Penalty.precise()) == precise
    assert Penalty.efficient(components=3, pairs=512).settings.components == 3
    curvature = "Penalty(degree=3, nodes=4, pairs=0.5, anchor='self', weights=(0.0, 0.0, 2.0, 3.0))"
    for weights in ([0, 0, 2, 3], np.array([0, 0, 2, 3]), np.array([0, 0, 2, 3], np.float32)):
        assert repr(Penalty(anchor="self", weights=weights)) == curvature
    points = Penalty.precise().points(X, Y)
    assert len(points) == 12 * 13
    assert points.alpha[0, 0] == pytest.approx(0.0027, abs=5e-5)  # labels stand here, a little inside of the path
    assert Penalty.efficient(sampling="chebyshev").points(X, Y).alpha[0, 0] == pytest.approx(0.038, abs=5e-4)


def test_labels_stand_at_the_outer_nodes_wherever_these_are():
    penalty = Penalty(anchor="labels", sampling="chebyshev", output="identity")
    alpha, ends = torch.tensor([[0.1, 0.4, 0.6, 0.9]], dtype=torch.float64), X[[5, 2], :1]
    points = penalty.points(X, X[:, :1], pairs=torch.tensor([[2, 5]]), alpha=alpha)
    torch.testing.assert_close(points.inputs, torch.lerp(X[5], X[2], alpha[0, 1:-1, None]))
    values = torch.randn(2, 1, dtype=torch.float64)
    along = torch.cat([ends[:1], values, ends[1:]])
    expected = reference.effective_degree(reference.damped_fit(along.numpy(), alpha[0], 3, "chebyshev", 1e-3))
    assert penalty.degree(values, points).item() == pytest.approx(expected, rel=1e-9)


def test_maps_with_the_classes_in_the_second_dimension():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 5, 1), nn.Tanh(), nn.Conv2d(5, 4, 1)).double()
    images, ids = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(4, (6, 8, 8))
    with pytest.raises(ValueError, match="may have their classes in another one"):
        Penalty()(model, images)
    outputs = (lambda r: r.softmax(1), lambda r: r.movedim(1, -1).softmax(-1))
    penalties = [Penalty(anchor="labels", output=output) for output in outputs]
    torch.testing.assert_close(*(seeded(penalty, model, images, ids)[1] for penalty in penalties))


def test_signals_with_the_classes_first_are_not_taken_for_ones_with_the_classes_last():
    model = nn.Conv1d(3, 5, 3, padding=1).double()
    signals, ids = torch.randn(8, 3, 20, dtype=torch.float64), torch.randint(5, (8, 20))
    with pytest.raises(ValueError, match="may have their classes in another one"):
        Penalty.efficient()(model, signals, ids)
    square = nn.Conv1d(3, 20, 3, padding=1).double()
    with pytest.raises(ValueError, match="Pass one-hot labels"):
        Penalty.efficient(output=lambda r: r.softmax(1))(square, signals, ids)
    penalty = Penalty.efficient(output=lambda r: r.softmax(1))
    labels = (ids, one_hot(ids, 5).movedim(-1, 1))
    assert len({seeded(penalty, model, signals, each)[1].item() for each in labels}) == 1
    with pytest.raises(ValueError, match="do not match outputs"):
        penalty(model, signals, one_hot(ids, 5).double())


def test_a_missing_label_among_several_is_missing_too():
    model, labels = mlp().double(), one_hot(Y, 4)
    labels[::2] = -100
    penalty = Penalty(anchor="labels", output="sigmoid")
    points = same_draw(penalty, X, labels)
    _, degree = penalty(model, X, labels)
    own = model(X).sigmoid().detach()
    own[1::2] = one_hot(Y, 4).double()[1::2]
    by_hand = replace(points, labels=own[points.pairs])
    torch.testing.assert_close(degree, penalty.degree(model(points.append_to(X)), by_hand))


def test_a_tensor_with_as_many_rows_as_there_are_points_is_not_taken_for_the_outputs():
    class Prototypes(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.prototypes = nn.Linear(6, 4), nn.Parameter(torch.randn(16, 4))

        def forward(self, x):
            return self.prototypes, self.linear(x)

    torch.manual_seed(0)
    model, x, y = Prototypes(), torch.randn(16, 6), torch.arange(16) % 4  # by default there are 16 points
    penalty = Penalty(anchor="labels")
    assert seeded(penalty, model, x, y)[1] == seeded(penalty, model.linear, x, y)[1]


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_an_offset_that_the_damped_fit_counts_is_warned_of(recwarn, offset):
    model = mlp().double()
    Penalty(output="identity")(lambda x: model(x) + offset, X)
    assert [str(each.message)[:26] for each in recwarn] == ["the outputs (about 1e+03) a"[:26]] * (offset > 0)
