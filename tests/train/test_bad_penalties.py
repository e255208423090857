from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from effdeg import Penalty
from effdeg._adapters import outputs
from tests.batches import X, Y, seeded
from tests.models import Unexpected, mlp


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"nodes": 3}, ValueError, "nodes=3 cannot determine a polynomial of degree=3"),
        ({"nodes": 2, "degree": 1, "anchor": "labels"}, ValueError, "Use nodes=3 or more"),
        ({"pairs": 0}, ValueError, "pairs=0 must be positive"),
        ({"pairs": True}, TypeError, "a share of the batch"),
        ({"pairs": 1}, ValueError, r"Write pairs=1\.0 for these; for a single path, .* pairs=1/256"),
        ({"pairs": 1.5}, ValueError, r"pairs=1\.5 is a float, and so a share of the batch, which is at most 1\.0"),
        ({"pairs": 128.0}, ValueError, "A count of paths is an int, such as pairs=128"),
        ({"anchor": "label"}, ValueError, "anchor='label' is not known. Choose from: 'labels', 'self', None"),
        ({"nodes": 2, "degree": 1, "anchor": "self"}, ValueError, "Use nodes=3 or more"),
        ({"anchor": "self", "sampling": "chebyshev"}, ValueError, "no nodes there.* Use sampling='cosine'"),
        ({"weights": "squares"}, ValueError, "Did you mean 'square'"),
        ({"weights": [0, 0, 1]}, ValueError, "are 3 numbers; polynomials of degree 3 need 4"),
        ({"weights": 2}, TypeError, "'square', or a list of 4 numbers"),
        ({"normalized": "no"}, TypeError, "normalized='no' must be True or False"),
        ({"generator": 0}, TypeError, r"generator=torch.Generator\(\).manual_seed\(0\)"),
        ({"sampling": "cosin"}, ValueError, "Did you mean 'cosine'"),
        ({"basis": "fourier"}, ValueError, "Choose from: 'chebyshev'"),
        ({"batchnorm": "split"}, ValueError, "'joint', 'frozen'"),
        ({"at": 3}, TypeError, "must be the name of a layer"),
    ],
)
def test_bad_settings(settings, kind, message):
    with pytest.raises(kind, match=message):
        Penalty(**settings)


@pytest.mark.parametrize(
    ("settings", "arguments", "kind", "message"),
    [
        ({"anchor": "labels"}, (X,), ValueError, "none were given"),
        ({"anchor": "labels"}, (X, Y[:5]), ValueError, "a batch of 12 .* needs a tensor of 12 rows"),
        ({"pairs": 0.01}, (X,), ValueError, "pairs=0.01 of a batch of 12 rounds to none"),
        ({"at": "layr"}, (X,), ValueError, "'layr' is not a layer of this model"),
        ({}, (torch.randint(5, (4, 3)),), TypeError, "no straight line joins integers"),
        ({}, ([X, Y],), TypeError, "If they are labels, take them out of the inputs"),
        ({}, ("text",), TypeError, "x holds no examples: it has no tensor"),
        ({}, ({"x": X, "labels": Y},), ValueError, "x holds 'labels'"),
        ({}, (X, Y[:5]), ValueError, "a batch of 12"),
        ({}, (X[:0],), TypeError, r"x holds no examples: it has tensors of shape \(0, 6\)"),
        ({}, (X.cfloat(),), TypeError, r"complex numbers \(torch.complex64\).*view_as_real"),
        ({"at": "0"}, ({"x": X, "spectrum": X.cfloat()},), TypeError, r"x \('spectrum'\) holds complex"),
        ({"anchor": "labels"}, (X, Y.cfloat()), TypeError, "labels .* are complex"),
        ({"anchor": "labels"}, (X, torch.full((12, 4), torch.nan)), ValueError, "labels .* NaN"),
        ({"anchor": "labels"}, (X, torch.full((12, 4), 1.25)), ValueError, "sum to 5 to 5 .* distributions"),
        ({"anchor": "labels", "output": "sigmoid"}, (X, X[:, :4]), ValueError, "output='sigmoid' fits probabilities"),
        ({"anchor": "labels", "output": "identity"}, (X, X[:, :4] / 0), ValueError, "NaN or infinite"),
    ],
)
def test_bad_calls_stop_before_the_model_is_run(settings, arguments, kind, message):
    with pytest.raises(kind, match=message):
        Penalty(**settings)(Unexpected(), *arguments)


def test_what_cannot_be_called_is_no_model():
    with pytest.raises(TypeError, match="the model is a Tensor, which cannot be called"):
        Penalty()(X, mlp(), Y)


def test_outputs_that_do_not_match():
    penalty = Penalty.efficient()
    with pytest.raises(ValueError, match="a single number for the whole batch"):
        penalty(lambda x: cross_entropy(mlp()(x.float()), torch.zeros(len(x), dtype=torch.int64)), X, Y)
    with pytest.raises(ValueError, match="no tensor of 24 rows"):
        penalty(lambda x: mlp().double()(x)[:5], X, Y)
    with pytest.raises(ValueError, match="labels from 0 to 7 do not match 4 classes"):
        penalty(mlp().double(), X, torch.arange(12) % 8)
    with pytest.raises(ValueError, match=r"labels of shape \(12, 3\).* do not match outputs of shape \(4,\)"):
        penalty(mlp().double(), X, torch.rand(12, 3).softmax(-1))
    with pytest.raises(ValueError, match="for a batch of 24"):
        penalty.degree(torch.rand(5, 4), penalty.points(X, Y))
    for ends in (Penalty(sampling="uniform"), Penalty(anchor="self")):
        points = ends.points(X)
        with pytest.raises(ValueError, match="give all 24 rows"):
            ends.degree(torch.rand(len(points), 4), points)
    given = [[0.0, 0.3, 0.6, 1.0]]
    points = penalty.points(X, Y, pairs=[[0, 1]], alpha=torch.tensor(given))
    for alpha in (given, np.array(given, np.float32)):
        torch.testing.assert_close(penalty.points(X, Y, pairs=[[0, 1]], alpha=alpha).inputs, points.inputs)
    with pytest.raises(ValueError, match="alpha of shape"):
        penalty.points(X, Y, alpha=torch.rand(2, 4))
    with pytest.raises(ValueError, match=r"pairs of shape \(2, 3\)"):
        penalty.points(X, Y, pairs=torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="must begin with 0 and end with 1"):
        penalty.points(X, Y, pairs=[[0, 1]], alpha=torch.tensor([[0.2, 0.4, 0.6, 0.8]]))
    with pytest.raises(ValueError, match=r"ascending positions in \[0, 1\]"):
        penalty.points(X, Y, pairs=[[0, 1]], alpha=torch.tensor([[1.0, 0.6, 0.4, 0.0]]))
    with pytest.raises(ValueError, match=r"ascending positions in \[0, 1\]"):
        penalty.points(X, Y, pairs=[[0, 1]], alpha=torch.tensor([[0.0, torch.nan, 0.4, 1.0]]))
    for pairs in ([[0, 12]], [[0, -1]], [[0.0, 1.0]], [[True, False]], torch.tensor([[0, 1]], dtype=torch.uint8)):
        with pytest.raises(ValueError, match="integers from 0 to 11"):
            penalty.points(X, Y, pairs=pairs)
    with pytest.raises(ValueError, match="needs to run the model"):
        Penalty(batchnorm="frozen").points(X)


@pytest.mark.parametrize(
    ("output", "labels", "message"),
    [
        ("identity", Y, "class ids, but output='identity' .* Use output='softmax'"),
        ("softmax", torch.tensor([[1, 1, 0, 0]]).expand(12, -1), "sum to 2 to 2 over the classes.* output='sigmoid'"),
        ("sigmoid", torch.tensor([[2, 1, 0, 0]]).expand(12, -1), "from 0 to 2, but output='sigmoid'"),
    ],
)
def test_labels_that_are_not_values_of_the_output(output, labels, message):
    with pytest.raises(ValueError, match=message):
        Penalty(anchor="labels", output=output)(mlp().double(), X, labels)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_soft_labels_may_be_rounded(dtype):
    labels = torch.randn(12, 4).softmax(-1)
    for given in (labels.to(dtype), (labels * 1000).round() / 1000):
        degree = Penalty(anchor="labels", pairs=40)(mlp().double(), X, given)[1]
        assert degree.isfinite()


def test_where_only_the_points_values_are_given_a_missing_label_gives_no_number():
    penalty = Penalty(anchor="labels", output="sigmoid")
    points = penalty.points(X, torch.full((12, 4), -100))
    assert penalty.degree(torch.randn(len(points), 4), points).isnan()
    assert penalty.degree(torch.randn(points.total, 4), points).isfinite()


def test_a_degree_without_a_gradient_is_refused_in_training():
    model = mlp().double()
    penalty = Penalty(output=lambda returned: returned.softmax(-1).detach())
    with pytest.raises(ValueError, match="the penalty would have no effect"):
        penalty(model, X)
    with torch.no_grad():
        assert penalty(model, X)[1].isfinite()
    assert Penalty()(mlp().double().requires_grad_(False), X)[1].isfinite()


def test_on_a_gpu_labels_are_read_until_a_first_call_of_the_model_has_passed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    penalty, model, on_gpu = Penalty(anchor="labels"), mlp().double(), SimpleNamespace(is_cuda=True)
    with pytest.raises(ValueError, match="distributions"):
        penalty(model, X, torch.full((12, 4), 1.0))
    with pytest.raises(ValueError, match="do not match 4 classes"):
        penalty(model, X, Y + 4)
    assert penalty._may_look(on_gpu, model)
    penalty(model, X, Y)
    assert not penalty._may_look(on_gpu, model)
    assert penalty._may_look(on_gpu, mlp().double())
    assert penalty._may_look(Y, model)


@pytest.mark.parametrize("anchor", ["labels", "self"])
def test_outputs_are_read_once_for_each_model_and_teacher(anchor, monkeypatch):
    """Reading waits for a GPU. A function may be written anew in every step."""
    read = []
    check = outputs._check_no_probabilities
    monkeypatch.setattr(outputs, "_check_no_probabilities", lambda *given: read.append(given[2]) or check(*given))
    penalty, teacher = Penalty(anchor=anchor), mlp(seed=2).double()
    model, other = mlp().double(), mlp(seed=1).double()
    for network in (model, other):
        for _ in range(3):
            penalty(network, X, Y, unlabeled=X, teacher=teacher)
            penalty(lambda x, network=network: network(x), X, Y, unlabeled=X, teacher=lambda x: teacher(x))
            penalty(network.forward, X, Y, unlabeled=X, teacher=teacher.forward)
    points = penalty.points(X, Y, unlabeled=X)
    for _ in range(3):
        penalty.degree(model(points.append_to(X)), points)
        ends = teacher(X if anchor == "labels" else torch.cat([X, X]))
        penalty.degree(model(points.append_to(X)), points, ends=ends)
    # Two models and the function around them; a teacher and its function; in degree, which knows neither, one of each.
    assert sorted(read) == ["model"] * 4 + ["teacher"] * 3


def test_class_ids_at_the_ends_of_logits_are_refused():
    def fit(output, y, **settings):
        return Penalty(anchor="labels", output=output, **settings)(mlp().double(), X, y)[1]

    with pytest.raises(ValueError, match=r"class ids, which become 0 and 1, but .* values from -\d.*\.softmax\(-1\)"):
        fit(lambda logits: logits, Y)
    assert fit(lambda logits: logits, torch.eye(4)[Y]) > 0
    assert seeded(fit, lambda logits: logits.softmax(-1), Y) == seeded(fit, "softmax", Y)


@pytest.mark.parametrize(("output", "layer"), [("softmax", torch.nn.Softmax(-1)), ("sigmoid", torch.nn.Sigmoid())])
def test_probabilities_are_refused_where_logits_are_expected(output, layer):
    penalty, model = Penalty(output=output), torch.nn.Sequential(mlp().double(), layer)
    for _ in range(2):
        penalty(mlp().double(), X)
        with pytest.raises(ValueError, match=r"probabilities (already|are).*Use output='identity'"):
            penalty(model, X)
    anchored = Penalty(output=output, anchor="self")
    anchored(mlp().double(), X, teacher=mlp().double())
    with pytest.raises(ValueError, match=r"teacher's outputs are .*Let it return logits"):
        anchored(mlp().double(), torch.cat([X, X]), teacher=model)
    assert Penalty(output="identity")(model, X)[1] > 0


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (torch.Tensor.to_sparse, TypeError, "sparse .*to_dense"),
        (lambda tensor: torch.nested.as_nested_tensor(list(tensor)), TypeError, "nested.*to_padded_tensor"),
        (lambda tensor: tensor.to(torch.float8_e4m3fn), TypeError, r"float8.*\.float\(\)"),
        (lambda tensor: tensor.to("meta"), ValueError, "on the meta device"),
    ],
    ids=["sparse", "nested", "float8", "meta"],
)
def test_tensors_that_cannot_be_computed_with(change, kind, message):
    penalty, model, soft = Penalty(anchor="labels"), mlp().double(), torch.eye(4)[Y]
    with pytest.raises(kind, match=rf"the examples in x .*{message}"):
        penalty(Unexpected(), change(X), Y)
    with pytest.raises(kind, match=rf"the labels \(y\) are .*{message}"):
        penalty(Unexpected(), X, change(soft))
    with pytest.raises(kind, match=f"the model's outputs are .*{message}"):
        penalty(lambda x: change(model(x)), X, Y)
    with pytest.raises(kind, match=f"the teacher's outputs are .*{message}"):
        Penalty(anchor="self")(model, X, teacher=lambda x: change(model(x)))


def test_class_ids_of_a_teacher_and_no_unlabeled_examples_are_named():
    model = mlp().double()
    with pytest.raises(TypeError, match=r"the teacher's outputs are integers .*Let the teacher return the scores"):
        Penalty(anchor="self")(model, X, teacher=lambda x: model(x).argmax(1))
    with pytest.raises(TypeError, match="the teacher returned str, in which there is no tensor"):
        Penalty(anchor="self")(model, X, teacher=lambda x: "logits")
    with pytest.raises(TypeError, match="unlabeled holds no examples"):
        Penalty(anchor="labels")(Unexpected(), X, Y, unlabeled=X[:0])


def test_models_without_values():
    with pytest.raises(ValueError, match=r"weights of the model \(Sequential\) are on the meta device"):
        Penalty()(mlp().to("meta"), X)
    with pytest.raises(ValueError, match=r"weights of the teacher .* are on the meta device"):
        Penalty(anchor="self")(Unexpected(), X, teacher=mlp().to("meta"))


def test_masks_that_are_added_to_scores_are_not_interpolated():
    def model(x, mask):
        return (x + mask).softmax(1)

    x = torch.randn(8, 5)
    mask = torch.zeros(8, 5).masked_fill(torch.rand(8, 5) < 0.3, -1e9)
    with pytest.raises(ValueError, match=r"x \('mask'\) hold -1e\+09, as a mask that is added to scores"):
        Penalty(anchor=None)(model, {"x": x, "mask": mask})
