"""Mixup at a layer, against the same by hand."""

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from effdeg.baselines import embedding_mixup
from tests.baselines.test_mixup import drawn
from tests.batches import X, Y, tokens
from tests.models import Tokens, WithTupleLayer, mlp

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
    outputs, _ = embedding_mixup(model, inputs, LABELS, at="bert.embeddings", classes=3)
    embedded = model.bert.embeddings(inputs["input_ids"], token_type_ids=inputs["token_type_ids"])
    mixed = share * embedded + (1 - share) * embedded[partners]
    handle = model.bert.embeddings.register_forward_hook(lambda *_: mixed)
    mask = inputs["attention_mask"] | inputs["attention_mask"][partners]
    expected = model(inputs["input_ids"], attention_mask=mask)
    handle.remove()
    assert type(outputs) is type(expected)
    torch.testing.assert_close(outputs.logits, expected.logits)


@pytest.mark.parametrize("at", ["0", "1"])
def test_after_a_linear_layer_it_is_mixup_at_the_inputs(at):
    model = nn.Sequential(nn.Linear(6, 8), nn.Identity(), nn.Tanh(), nn.Linear(8, 4)).double()
    share, partners = drawn()
    outputs, _ = embedding_mixup(model, X, Y, at=at, classes=4)
    torch.testing.assert_close(outputs, model(share * X + (1 - share) * X[partners]))


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


def test_a_layer_that_cannot_be_mixed_at():
    model = nn.ModuleDict({"used": mlp(), "unused": nn.Linear(2, 2)})
    model.forward = model["used"].forward
    with pytest.raises(ValueError, match="ran 0 times"):
        embedding_mixup(model, X.float(), Y, at="unused", classes=4)
    transposed = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (12, 6)), nn.Linear(6, 4))
    with pytest.raises(ValueError, match=r"returned shape .72,. for 12 examples"):
        embedding_mixup(transposed, X.float(), Y, at="0", classes=4)
    assert not any(module._forward_hooks for module in model.modules())
