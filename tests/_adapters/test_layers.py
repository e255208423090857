"""Looking at and replacing the output of a layer, the one way for all who do."""

from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
from torch import nn

from effdeg._adapters.layers import find_layer, find_new_norms, replace_output
from tests.batches import X
from tests.models import Shared, WithTupleLayer, mlp


def test_a_function_sees_the_output_and_may_replace_it():
    model, seen = mlp().double(), []
    layer = find_layer(model, "1")
    expected = model(X)
    with replace_output(layer, lambda own: seen.append(own.clone()), rows=12):
        assert torch.equal(model(X), expected)
    assert torch.equal(seen[0], model[:2](X))
    with replace_output(layer, lambda own: 2 * own, rows=12):
        torch.testing.assert_close(model(X), model[2](2 * seen[0]))
    assert torch.equal(model(X), expected)
    assert not model[1]._forward_hooks


def test_a_batch_or_statistics_from_elsewhere_make_a_norm_used():
    model = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(4)), nn.BatchNorm1d(4, track_running_stats=False))
    assert find_new_norms(nn.Sequential(nn.Linear(4, 4), model)) == ("1.0", "1.1", "1.2", "1.3")
    model[1].running_mean[2] = 0.1
    model[2].running_var[1] = 2.0
    model[3].momentum = 0.0
    model[3](torch.randn(5, 4))
    assert find_new_norms(model) == ("0",)
    assert find_new_norms(torch.tanh) == ()


class Hidden(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


class Sorted(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.mark.parametrize("make", [lambda x: x.sort(-1), lambda x: Hidden(*x.sort(-1))], ids=["torch's own", "named"])
def test_a_tuple_with_names_keeps_them(make):
    layer = Sorted(make)
    with replace_output(find_layer(layer, layer), torch.zeros_like, rows=12):
        returned = layer(X)
    assert not returned.values.any()
    assert torch.equal(returned.indices, X.argsort(-1))


def test_the_rest_of_a_tuple_stays():
    model = WithTupleLayer()
    with replace_output(find_layer(model, "layer"), torch.zeros_like, rows=12):
        outputs = model(X.float())
    torch.testing.assert_close(outputs, model.head.bias.expand(12, -1))


@pytest.mark.parametrize(
    ("model", "at", "rows", "kind", "message"),
    [
        (Shared(), "layer", 12, ValueError, "'layer' ran 2 times in one forward pass"),
        (mlp(), "1", 24, ValueError, r"'1' returned shape \(12, 16\) for 24 examples"),
        (nn.Sequential(nn.Linear(6, 6), nn.Tanh()), "0", 12, ValueError, "'0' ran 0 times"),
    ],
)
def test_a_layer_that_does_not_run_once_with_one_row_per_example(model, at, rows, kind, message):
    layer = find_layer(model, at)
    run = (lambda _: None) if "ran 0" in message else model
    with pytest.raises(kind, match=message), replace_output(layer, lambda own: own, rows=rows):
        run(X.float())
    assert not layer.module._forward_hooks


@pytest.mark.parametrize("at", ["0", "0.linear1", nn.LSTM(6, 6)])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_layer_with_positions_first_is_refused_also_if_there_are_as_many_as_examples(at, batch_first):
    if isinstance(at, nn.LSTM):
        model = at = nn.LSTM(6, 6, batch_first=batch_first)
    else:
        model = nn.Sequential(nn.TransformerEncoderLayer(6, 2, 12, batch_first=batch_first))
    model.train()  # no fast path, which would leave out layers within
    error = pytest.raises(ValueError, match="needs a layer whose output has the examples first")
    with nullcontext() if batch_first else error, replace_output(find_layer(model, at), lambda own: own, rows=4):
        model(torch.rand(4, 4, 6))


def test_a_layer_that_returns_no_tensor():
    class Listing(nn.Module):
        def forward(self, x):
            return [x]

    model = Listing()
    with (
        pytest.raises(TypeError, match="returns list; a path needs a layer that returns a floating-point"),
        replace_output(find_layer(lambda x: model(x), model), lambda own: own, rows=12),
    ):
        model(X)
