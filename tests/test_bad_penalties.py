"""Errors of the penalty come before any work, and say what to do."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg import Penalty
from tests.batches import X, Y
from tests.models import mlp


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
    with pytest.raises(ValueError, match="must begin with 0 and end with 1"):
        penalty.points(X, Y, pairs=[[0, 1]], alpha=torch.tensor([[0.2, 0.4, 0.6, 0.8]]))
    with pytest.raises(ValueError, match="needs to run the model"):
        Penalty(batchnorm="frozen").points(X)
