"""Manifold mixup, against the layers one after another, by hand."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from effdeg.baselines import manifold_mixup
from effdeg.baselines._mixup import Mixing
from tests.baselines.test_mixup import drawn
from tests.batches import X, Y, tokens
from tests.models import Tokens, Unexpected, WithTupleLayer, mlp
from tests.properties import assert_same_gradients

AT = [None, "0", "1"]


def drawn_layer(seed, layers=3):
    """Draw λ, the partners and then the place of the layer, as the next call after the same seed does."""
    torch.manual_seed(seed)
    mixing = Mixing.draw(12, 2.0, device=X.device, generator=None)
    place = int(torch.randint(layers, (1,)))
    torch.manual_seed(seed)
    return mixing.share[0, 0], mixing.partners, place


def run_slowly(model, share, partners, place):
    """Run layer after layer, and mix row by row after as many layers as the place says."""
    hidden = X
    for number in range(len(model) + 1):
        if number == place:
            rows = [share * hidden[i] + (1 - share) * hidden[partner] for i, partner in enumerate(partners.tolist())]
            hidden = torch.stack(rows)
        if number < len(model):
            hidden = model[number](hidden)
    return hidden


def test_layer_after_layer():
    places = Counter()
    for seed in range(12):
        model, twin = mlp().double(), mlp().double()
        share, partners, place = drawn_layer(seed)
        places[place] += 1
        outputs, soft = manifold_mixup(model, X, Y, at=AT, classes=4)
        expected = run_slowly(twin, share, partners, place)
        torch.testing.assert_close(outputs, expected)
        hot = one_hot(Y, 4).double()
        torch.testing.assert_close(soft, share * hot + (1 - share) * hot[partners])
        assert_same_gradients(outputs.square().sum(), expected.square().sum(), model, twin)
    assert set(places) == {0, 1, 2}


def test_every_layer_is_drawn_as_often():
    """By the inputs of three layers that do nothing: the first that is not X was mixed."""
    model, seen = nn.Sequential(*[nn.Identity() for _ in range(3)]), []
    model.register_forward_pre_hook(lambda *_: seen.append([]))
    for layer in model:
        layer.register_forward_hook(lambda _, given, __: seen[-1].append(given[0]))
    torch.manual_seed(0)
    for _ in range(300):
        manifold_mixup(model, X, Y.double(), at=[None, "0", "1"])
    mixed_at = Counter(next(place for place, rows in enumerate(each) if not torch.equal(rows, X)) for each in seen)
    assert sorted(mixed_at) == [0, 1, 2]
    assert 70 < min(mixed_at.values()) <= max(mixed_at.values()) < 130


def test_it_is_one_forward_pass_and_hooks_do_not_stay():
    model, seen = nn.Sequential(nn.BatchNorm1d(6), mlp()).double(), []
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    manifold_mixup(model, X, Y, at=["0", "1.1"], classes=4)
    handle.remove()
    assert len(seen) == model[0].num_batches_tracked == 1
    assert not any(module._forward_hooks for module in model.modules())


def test_tuples_and_layers_given_as_modules_and_a_single_layer():
    model = WithTupleLayer()
    share, partners = drawn(alpha=2.0)
    outputs, soft = manifold_mixup(model, (X.float(),), X[:, 0], at=(model.layer,))
    hidden = model.layer.linear(X.float())
    mixed = (share * hidden + (1 - share) * hidden[partners]).float()
    torch.testing.assert_close(outputs, model.head(torch.relu(mixed)))
    torch.testing.assert_close(soft, share * X[:, 0] + (1 - share) * X[partners, 0])


def test_token_ids_are_mixed_at_their_embedding():
    model = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(56, 3)).double()
    ids, labels = tokens(12)["input_ids"], Y % 3
    share, partners = drawn(alpha=2.0)
    outputs, soft = manifold_mixup(model, ids, labels, at=["0"], classes=3)
    hidden = model[0](ids)
    torch.testing.assert_close(outputs, model[1:](share * hidden + (1 - share) * hidden[partners]))
    assert soft.dtype == torch.float64  # that of the model, not of the ids


@pytest.mark.parametrize(
    ("arguments", "settings", "kind", "message"),
    [
        ((X, Y), {"at": "layer"}, TypeError, r"at='layer' must be a list of the layers.*at=\[None, 'layer1'"),
        (({"x": X, "my_mask": Y}, Y), {"at": ["layer"]}, ValueError, r"holds a mask \(my_mask\).*Use embedding_mixup"),
        ((X.long(), Y), {"at": [None, "layer"]}, TypeError, "no straight line joins integers"),
    ],
)
def test_bad_input_stops_before_the_model_is_run(arguments, settings, kind, message):
    with pytest.raises(kind, match=message):
        manifold_mixup(Unexpected(), *arguments, **{"classes": 4, **settings})


def test_a_model_with_a_mask_is_not_mixed():
    with pytest.raises(ValueError, match="x holds a mask"):
        manifold_mixup(Tokens(), tokens(12), Y % 3, at=["embed"], classes=3)
