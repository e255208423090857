"""Small models with something special about each."""

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def mlp(inputs=6, outputs=4, seed=0, activation=nn.Tanh):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 16), activation(), nn.Linear(16, outputs))


def with_batchnorm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)).double()


def trained_relu():
    """Return a ReLU network without biases, and the examples and classes that it was trained on."""
    torch.manual_seed(0)
    x = torch.randn(60, 5, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    model = nn.Sequential(nn.Linear(5, 12, bias=False), nn.ReLU(), nn.Linear(12, 3, bias=False)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, (x, y)


def rescale(model, scales, outputs=1.0):
    """Return a copy of a network whose hidden units are scaled up, and down again in the next layer."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.mul_(scales[:, None])
        other[2].weight.mul_(outputs / scales)
    return other


class Counted(nn.Module):
    """A network that counts the rows that go through it."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.rows = inner, 0

    def forward(self, x):
        self.rows += len(x)
        return self.inner(x)


class Tokens(nn.Module):
    """A small text classifier: ids are embedded, attended under a mask, averaged and classified."""

    def __init__(self, vocabulary=30, width=8, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, input_ids, attention_mask):
        hidden = torch.tanh(self.mix(self.embed(input_ids)))
        weight = attention_mask[..., None].to(hidden.dtype)
        return {"logits": self.head((hidden * weight).sum(1) / weight.sum(1))}


class TupleLayer(nn.Module):
    """A layer that returns a tuple, tensor first, as attention layers do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x), "attention"


class WithTupleLayer(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = TupleLayer()
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        hidden, note = self.layer(x)
        assert note == "attention"
        return self.head(torch.relu(hidden))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, left, right=None):
        if isinstance(left, Pair):
            left, right = left.left, left.right
        return torch.tanh(self.left(left)) * self.right(right)


def never(*_, **__):
    """A model that must not be run."""
    raise AssertionError("the model was run before the error")


class Unexpected(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        never()
