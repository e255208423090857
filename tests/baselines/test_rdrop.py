"""R-Drop, against two passes with given dropout masks, one example at a time."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg.baselines import RDrop, method
from effdeg.baselines._rdrop import symmetric_divergence
from tests.baselines.test_manifold_mixup import LABELS, sentences, tiny_bert
from tests.batches import X, Y
from tests.models import mlp
from tests.properties import assert_same_gradients

MASKS = torch.rand(24, 16, generator=torch.Generator().manual_seed(4)).gt(0.3).double() / 0.7


class Masked(nn.Module):
    def __init__(self, masks):
        super().__init__()
        self.layers, self.masks, self.calls = mlp().double(), masks, []

    def forward(self, x):
        self.calls.append(len(x))
        first, activation, last = self.layers
        return last(activation(first(x)) * self.masks)


def with_dropout(p=0.5, seed=0):
    layers = mlp(seed=seed)
    return nn.Sequential(layers[0], layers[1], nn.Dropout(p), layers[2])


def divergence_slowly(p, q):
    """Return KL(p‖q) + KL(q‖p) of two distributions, one class after the other."""
    return sum(p[k] * (p[k] / q[k]).log() + q[k] * (q[k] / p[k]).log() for k in range(len(p)))


def loss_slowly(model, masks, alpha):
    """Return the paper's loss, the mean of -log p(y) - log q(y) + α/2 (KL(p‖q) + KL(q‖p)), from passes of one row."""
    total = 0.0
    for number, label in enumerate(Y.tolist()):
        model.masks = masks[number : number + 1]
        p = model(X[number : number + 1])[0].softmax(0)
        model.masks = masks[12 + number : 13 + number]
        q = model(X[number : number + 1])[0].softmax(0)
        total = total - p[label].log() - q[label].log() + alpha / 2 * divergence_slowly(p, q)
    return total / len(Y)


@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("by_name", [False, True])
def test_it_is_half_of_the_papers_loss(alpha, by_name):
    model, twin = Masked(MASKS), Masked(None)
    if by_name:
        loss = method("rdrop", weight=alpha / 2).loss(model, X, Y, cross_entropy)
    else:
        outputs, divergence, labels = RDrop()(model, X, Y)
        loss = cross_entropy(outputs, labels) + alpha / 2 * divergence
    assert model.calls == [24], "one forward pass of twice the batch"
    expected = loss_slowly(twin, MASKS, alpha) / 2
    assert_same_gradients(loss, expected, model, twin)


@pytest.mark.parametrize("shift", [0, 1], ids=["tokens", "a language model"])
def test_positions_without_a_label_do_not_count(shift, monkeypatch):
    """The value is that of the other positions alone, for all examples together."""
    x, y = torch.randn(6, 5, 6), torch.arange(30).reshape(6, 5) % 4
    y[torch.arange(5) >= torch.tensor([1, 2, 3, 4, 5, 2])[:, None] + shift] = -100
    counted = torch.arange(5) < torch.tensor([1, 2, 3, 4, 5, 2])[:, None]
    if shift:
        monkeypatch.setattr("effdeg.baselines._rdrop.find_language_model", lambda model: model)
        counted &= torch.arange(5) < 4
    outputs, divergence, _ = RDrop()(with_dropout(), x, y)
    first, second = (each[counted] for each in outputs.chunk(2))
    torch.testing.assert_close(divergence, symmetric_divergence(first, second, len(first)) / 2)


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)),
        nn.CrossEntropyLoss(ignore_index=int(Y[0])),
    ],
)
def test_a_criterion_is_averaged_over_both_passes(criterion):
    model = Masked(MASKS)
    outputs, _, labels = RDrop()(model, X, Y)
    passes = []
    for model.masks in MASKS.split(12):
        passes.append(criterion(model(X), Y))
    torch.testing.assert_close(criterion(outputs, labels), sum(passes) / 2)


@pytest.mark.parametrize("name", ["rdrop", "r3f"])
def test_classes_in_the_second_dimension_are_refused(name):
    signals, labels = torch.randn(8, 3, 5), torch.zeros(8, 5, dtype=torch.int64)
    model = nn.Sequential(nn.Dropout(), nn.Conv1d(3, 4, 1))
    with pytest.raises(ValueError, match=r"classes in the second dimension.*outputs\.movedim"):
        method(name).loss(model, signals, labels, cross_entropy)


def test_small_divergences_are_accurate_in_single_precision():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(64, 10, generator=generator)
    second = first + 1e-5 * torch.randn(64, 10, generator=generator)
    expected = symmetric_divergence(first.double(), second.double(), 64)
    logs = [each.double().log_softmax(1) for each in (first, second)]
    torch.testing.assert_close(expected, ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum(1).mean())
    assert symmetric_divergence(first, second, 64) == pytest.approx(expected.item(), rel=0.01)


def test_a_masked_class_adds_nothing():
    masked = torch.tensor([-torch.inf, 0.0, 0.0])
    one, other = (torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    leaves = one.requires_grad_(), one.detach().clone().requires_grad_()
    found = symmetric_divergence(leaves[0] + masked, other + masked, 8)
    expected = symmetric_divergence(leaves[1][:, 1:], other[:, 1:], 8)
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(found, leaves[0])[0], torch.autograd.grad(expected, leaves[1])[0]
    torch.testing.assert_close(*gradients)


def test_a_hugging_face_model():
    model, inputs = tiny_bert(), sentences()
    torch.manual_seed(5)
    outputs, divergence, labels = RDrop()(model, inputs, LABELS)
    torch.manual_seed(5)
    expected = model(**{name: torch.cat([each, each]) for name, each in inputs.items()}).logits
    torch.testing.assert_close(outputs.logits, expected)
    rows = [divergence_slowly(*pair) for pair in zip(expected[:10].softmax(1), expected[10:].softmax(1), strict=True)]
    torch.testing.assert_close(divergence, sum(rows) / 20)
    (cross_entropy(outputs.logits, labels) + divergence).backward()
    assert model.bert.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="which are features"):
        RDrop()(model.bert, inputs, LABELS)


def test_sequences_and_soft_labels():
    x, soft = X.view(12, 3, 2), torch.rand(12, 3, 4, dtype=torch.float64).softmax(-1)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 4)).double()
    torch.manual_seed(1)
    outputs, value, labels = RDrop()(model, x, soft)
    flat = outputs.flatten(0, 1).split(36)
    torch.testing.assert_close(value, symmetric_divergence(*flat, 36) / 2)
    assert torch.equal(labels[12:], soft)


class TestWithoutDropout:
    @pytest.mark.parametrize("model", [with_dropout().eval(), with_dropout(0.0), mlp()])
    @pytest.mark.parametrize("autocast", [False, True])
    def test_a_warning_once(self, model, autocast):
        way = RDrop()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            with pytest.warns(RuntimeWarning, match="the model has no dropout, or is in evaluation mode"):
                value = way(model, X.float(), Y)[1]
            way(model, X.float(), Y)
        assert value < 1e-6

    def test_no_warning_where_it_cannot_be_told(self):
        zero = with_dropout().double()
        nn.init.zeros_(zero[3].weight)
        way = RDrop()
        way(zero, X, Y)
        nn.init.normal_(zero[3].weight)
        way(zero, X, Y)
        RDrop()(mlp().double(), X[:1], Y[:1])
        model = mlp().double()
        traced = torch.vmap(lambda x: RDrop()(model, x, Y)[1])
        assert traced(X[None]) < 1e-12
