"""Mixup at layers, against the layers one after another, by hand: at one that is named, and at one that is drawn."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from effdeg.baselines import embedding_mixup, manifold_mixup
from effdeg.baselines._mixup import Mixing
from tests.baselines.test_mixup import drawn
from tests.batches import X, Y, tokens
from tests.models import Tokens, Unexpected, WithTupleLayer, mlp
from tests.properties import assert_same_gradients

LABELS = torch.randint(3, (10,), generator=torch.Generator().manual_seed(2))


def tiny_bert(**changes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**small, vocab_size=40, num_labels=3, **changes)
    return transformers.BertForSequenceClassification(config).double()


def sentences():
    inputs = tokens()
    generator = torch.Generator().manual_seed(3)
    return {**inputs, "token_type_ids": torch.randint(2, inputs["input_ids"].shape, generator=generator)}


def test_token_ids_by_hand():
    model, inputs = Tokens().double(), tokens()
    share, partners = drawn(10)
    outputs, soft = embedding_mixup(model, inputs, LABELS, at="embed", classes=3)
    embedded = model.embed(inputs["input_ids"])
    mixed = share * embedded + (1 - share) * embedded[partners]
    weight = (inputs["attention_mask"] | inputs["attention_mask"][partners])[..., None].double()
    pooled = (torch.tanh(model.mix(mixed)) * weight).sum(1) / weight.sum(1)
    torch.testing.assert_close(outputs["logits"], model.head(pooled))
    hot = one_hot(LABELS, 3).double()
    torch.testing.assert_close(soft, share * hot + (1 - share) * hot[partners])
    outputs["logits"].square().sum().backward()
    gradient = model.embed.weight.grad.clone()
    model.zero_grad()
    model.head(pooled).square().sum().backward()
    torch.testing.assert_close(gradient, model.embed.weight.grad)
    assert gradient.abs().sum() > 0


def test_bert_by_hand():
    """Token types, which are 0 and 1 as masks are, keep their meaning for the embeddings."""
    model, inputs = tiny_bert().eval(), sentences()
    share, partners = drawn(10)
    outputs, _ = embedding_mixup(model, inputs, LABELS, classes=3)
    embedded = model.bert.embeddings(inputs["input_ids"], token_type_ids=inputs["token_type_ids"])
    mixed = share * embedded + (1 - share) * embedded[partners]
    handle = model.bert.embeddings.register_forward_hook(lambda *_: mixed)
    mask = inputs["attention_mask"] | inputs["attention_mask"][partners]
    expected = model(inputs["input_ids"], attention_mask=mask)
    handle.remove()
    assert type(outputs) is type(expected)
    torch.testing.assert_close(outputs.logits, expected.logits)


def test_tuples_go_in_and_come_out_of_layers_and_hooks_do_not_stay():
    model = WithTupleLayer()
    share, partners = drawn()
    outputs, soft = embedding_mixup(model, (X.float(),), X[:, 0], at=model.layer)
    torch.testing.assert_close(outputs, model((share * X + (1 - share) * X[partners]).float()))
    torch.testing.assert_close(soft, share * X[:, 0] + (1 - share) * X[partners, 0])
    assert not any(module._forward_hooks for module in model.modules())


def test_batchnorm_before_and_behind_the_layer_counts_once():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
    outputs, _ = embedding_mixup(model, X, Y, at="1", classes=4)
    assert model[0].num_batches_tracked == model[2].num_batches_tracked == 1
    torch.testing.assert_close(model[0].running_mean, 0.1 * X.mean(0))
    outputs.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


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


def test_it_is_one_forward_pass_and_hooks_do_not_stay():
    model, seen = nn.Sequential(nn.BatchNorm1d(6), mlp()).double(), []
    handle = model.register_forward_hook(lambda *_: seen.append(1))
    manifold_mixup(model, X, Y, at=["0", "1.1"], classes=4)
    handle.remove()
    assert len(seen) == model[0].num_batches_tracked == 1
    assert not any(module._forward_hooks for module in model.modules())


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
