"""RegMixup, against two forward passes and a loop over examples."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from effdeg.baselines import RegMixup
from tests.baselines.test_mixup import drawn
from tests.batches import X, Y
from tests.models import mlp
from tests.properties import assert_same_gradients

LOSSES = ("cross-entropy", "brier", "l1")


def mixed_loss_slowly(model, share, partners, loss):
    """Return the loss on the mixed batch, one example and one class at a time.

    The cross-entropy is λ CE(f(x̃), y) + (1 - λ) CE(f(x̃), y of the partner).
    """
    losses = []
    for number, partner in enumerate(partners.tolist()):
        point = share * X[number] + (1 - share) * X[partner]
        logs = model(point[None])[0].log_softmax(0)
        if loss == "cross-entropy":
            losses.append(-share * logs[Y[number]] - (1 - share) * logs[Y[partner]])
            continue
        for label, log in enumerate(logs):
            error = log.exp() - share * (label == Y[number]) - (1 - share) * (label == Y[partner])
            losses.append(error * error if loss == "brier" else error.abs())
    return sum(losses) / len(partners)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("alpha", [0.3, 20.0])
def test_one_example_at_a_time(alpha, loss):
    model, twin = mlp().double(), mlp().double()
    share, partners = drawn(alpha=alpha)
    outputs, mixed = RegMixup(alpha, classes=4, loss=loss)(model, X, Y)
    expected = mixed_loss_slowly(twin, share, partners, loss)
    torch.testing.assert_close(outputs, twin(X))
    torch.testing.assert_close(mixed, expected)
    assert_same_gradients(cross_entropy(outputs, Y) + mixed, cross_entropy(twin(X), Y) + expected, model, twin)


def test_a_masked_class_adds_nothing():
    model = mlp().double()

    def masked(x):
        return nn.functional.pad(model(x), (0, 1), value=-torch.inf)

    found, expected = (
        RegMixup(classes=classes, generator=torch.Generator().manual_seed(0))(each, X, Y)[1]
        for classes, each in ((5, masked), (4, model))
    )
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(each, model.parameters()) for each in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_batchnorm_sees_one_batch():
    model = nn.Sequential(nn.BatchNorm1d(6), mlp()).double()
    share, partners = drawn(alpha=10.0)
    outputs, _ = RegMixup(classes=4)(model, X, Y)
    joined = torch.cat([X, share * X + (1 - share) * X[partners]])
    torch.testing.assert_close(model[0].running_mean, 0.1 * joined.mean(0))
    torch.testing.assert_close(outputs, mlp().double()(nn.BatchNorm1d(6).double()(joined))[:12])


@pytest.mark.parametrize("kind", ["soft", "sequences"])
def test_soft_labels_and_labels_of_sequences(kind):
    if kind == "soft":
        model, y, classes = mlp().double(), one_hot(Y, 4).double(), None
        soft, x = y, X
    else:
        model, x = nn.Linear(2, 4).double(), X.view(12, 3, 2)
        y, classes = torch.stack([Y, Y.flip(0), Y], dim=1), 4
        soft = one_hot(y, 4).double()
    share, partners = drawn(alpha=10.0)
    outputs, value = RegMixup(classes=classes)(model, x, y)
    mixed = model(share * x + (1 - share) * x[partners]).flatten(0, -2)
    targets = (share * soft + (1 - share) * soft[partners]).flatten(0, -2)
    torch.testing.assert_close(value, cross_entropy(mixed, targets))
    torch.testing.assert_close(outputs, model(x))


@pytest.mark.parametrize("loss", LOSSES)
def test_where_there_is_no_label_the_own_output_is_the_label(loss):
    model = mlp().double()
    value = RegMixup(classes=4, loss=loss)(model, X, torch.full_like(Y, -100))[1]
    assert value == 0
    share, partners = drawn(alpha=10.0)
    some = torch.where(torch.arange(12) < 6, Y, -100)
    value = RegMixup(classes=4, loss=loss)(model, X, some)[1]
    kept = (some >= 0)[:, None] * one_hot(Y, 4).double()
    soft = share * kept + (1 - share) * kept[partners]
    logits = model(share * X + (1 - share) * X[partners])
    filled = soft + (1 - soft.sum(1, keepdim=True)) * logits.softmax(1)
    error = filled - logits.softmax(1)
    expected = {"brier": error.square().sum(), "l1": error.abs().sum(), "cross-entropy": None}[loss]
    expected = -(soft * logits.log_softmax(1)).sum() if expected is None else expected
    torch.testing.assert_close(value, expected / 12)


def test_outputs_that_do_not_fit():
    with pytest.raises(ValueError, match=r"logits of shape \(12, 4\) for soft labels of shape \(12, 5\)"):
        RegMixup(classes=5)(mlp().double(), X, Y)


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [(1, torch.ones(12, 1), "single logit"), (4, torch.ones(12, 4), "sum to more than 1")],
)
def test_labels_of_independent_classes_are_refused(outputs, labels, message):
    with pytest.raises(ValueError, match=message):
        RegMixup()(mlp(outputs=outputs), X.float(), labels)
