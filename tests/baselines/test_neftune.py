import math

import pytest
import torch
from torch import nn

from effdeg.baselines import NEFTune
from tests.batches import tokens
from tests.models import mlp
from tests.train.test_language import language_model, sequences


def find_noise(method, model, batch, **labels):
    """Return what the method added to the embeddings, what the model returned, and what it returns without noise."""
    seen = []

    def look(_, arguments):
        seen.append(arguments[0].detach())

    with torch.no_grad(), model.model.layers[0].register_forward_pre_hook(look):
        plain = model(**batch)
        returned, _ = method(model, {**batch, **labels})
    return seen[1] - seen[0], returned, plain


@pytest.mark.parametrize("generator", [None, torch.Generator().manual_seed(0)])
def test_it_is_uniform_noise_by_the_length_of_each_example_and_none_at_padding(generator):
    model, batch = language_model(), sequences()
    labels, mask = batch.pop("labels"), batch["attention_mask"]
    torch.manual_seed(0)
    noise, returned, plain = find_noise(NEFTune(5.0, generator=generator), model, batch, labels=labels)
    bounds = 5.0 / (mask.sum(1) * 16.0).sqrt()
    for row, bound in enumerate(bounds):
        inside = noise[row][mask[row] == 1].abs()
        assert 0.9 * bound < inside.max() <= bound * (1 + 1e-9)
        assert inside.mean() == pytest.approx(float(bound) / 2, rel=0.2)
    assert not noise[mask == 0].any()
    assert returned.loss is not None
    assert not torch.allclose(returned.logits, plain.logits)


def test_masks_of_all_kinds_mean_the_same():
    class Embeddings(nn.Embedding):
        def forward(self, input_ids, attention_mask):
            return super().forward(input_ids)

    model, batch = Embeddings(30, 8), tokens()
    mask = batch["attention_mask"]
    added = torch.zeros(mask.shape).masked_fill(mask == 0, -1e9)  # to scores
    for each in (mask.bool(), mask.float(), 3 * mask, added):
        one, other = (
            NEFTune(at=model, generator=torch.Generator().manual_seed(0))(model, batch | {"attention_mask": given})[0]
            for given in (mask, each)
        )
        assert torch.equal(one, other)


def test_without_a_mask_all_tokens_count_and_in_bfloat16_it_is_rounded_once():
    model, batch = language_model().bfloat16(), {"input_ids": sequences()["input_ids"]}
    noise, *_ = find_noise(NEFTune(5.0), model, batch)
    assert float(noise.abs().max()) == pytest.approx(5.0 / math.sqrt(8 * 16), rel=0.1)


def test_gradients_reach_the_embeddings_and_nothing_is_left_behind():
    model, batch = language_model(), sequences()
    outputs, labels = NEFTune()(model, batch)
    outputs.loss.backward()
    assert labels is None
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0
    del batch["labels"]
    torch.testing.assert_close(model(**batch).logits, model(**batch).logits)


def test_a_model_without_embeddings_needs_a_layer_and_a_mask_must_fit():
    with pytest.raises(TypeError, match="embeddings of this model are not known"):
        NEFTune()(mlp(), torch.randn(3, 6))
    batch = sequences()
    with pytest.raises(ValueError, match="examples × tokens"):
        NEFTune(at="lm_head")(language_model(), {**batch, "attention_mask": torch.ones(6, 1, 8, 8)})
    with pytest.raises(ValueError, match="must be positive"):
        NEFTune(0.0)
    assert repr(NEFTune(10.0, at="0")) == "NEFTune(alpha=10.0, at='0')"
