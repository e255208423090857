"""R3F, against two passes, one example at a time."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg.baselines import R3F, method
from tests.baselines.test_manifold_mixup import LABELS, sentences, tiny_bert
from tests.baselines.test_rdrop import divergence_slowly
from tests.batches import X, Y
from tests.models import Unexpected, mlp
from tests.properties import assert_same_gradients


def draw_noise(shape, size, seed=3):
    """Draw the noise that the next call after this seed adds, and set the seed again."""
    torch.manual_seed(seed)
    noise = (2 * torch.rand(shape, dtype=torch.float64) - 1) * size
    torch.manual_seed(seed)
    return noise


def penalty_slowly(first, second):
    """Return the mean divergence of two tensors of logits, one example and one class after the other."""
    pairs = zip(first.softmax(-1), second.softmax(-1), strict=True)
    return sum(divergence_slowly(*pair) for pair in pairs) / len(first)


def test_one_example_at_a_time():
    model, twin, calls = mlp().double(), mlp().double(), []
    model.register_forward_hook(lambda _, given, __: calls.append(len(given[0])))
    moved = X + draw_noise(X.shape, 0.3)
    outputs, value = R3F(0.3)(model, X, Y)
    loss = cross_entropy(outputs, Y) + 0.7 * value
    assert calls == [24]
    rows = [torch.cat([twin(row[None]) for row in batch]) for batch in (X, moved)]
    expected = cross_entropy(rows[0], Y) + 0.7 * penalty_slowly(*rows)
    assert_same_gradients(loss, expected, model, twin)


@pytest.mark.parametrize("given", ["name", "module"])
def test_at_a_layer(given):
    model, twin = mlp().double(), mlp().double()
    noise = draw_noise((12, 16), 0.3)
    outputs, value = R3F(0.3, at="1" if given == "name" else model[1])(model, X, Y)
    hidden = twin[1](twin[0](X))
    expected = penalty_slowly(twin[2](hidden), twin[2](hidden + noise))
    torch.testing.assert_close(outputs, twin(X))
    assert_same_gradients(value, expected, model, twin)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_hugging_face_model_with_noise_at_its_token_embeddings():
    model, inputs = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), sentences()
    words = model.get_input_embeddings()
    noise = draw_noise((10, 7, 16), 0.1)
    outputs, value = R3F(0.1, at=words)(model, inputs, LABELS)
    rest = {name: each for name, each in inputs.items() if name != "input_ids"}
    embedded = words(inputs["input_ids"])
    logits = [model(inputs_embeds=each, **rest).logits for each in (embedded, embedded + noise)]
    torch.testing.assert_close(outputs.logits, logits[0])
    torch.testing.assert_close(value, penalty_slowly(*logits))
    by_name = method("r3f", noise=0.1, at="bert.embeddings.word_embeddings", weight=2.0)
    draw_noise((10, 7, 16), 0.1)
    loss = by_name.loss(model, inputs, LABELS, lambda outputs, y: cross_entropy(outputs.logits, y))
    torch.testing.assert_close(loss, cross_entropy(logits[0], LABELS) + 2 * value)


def test_what_gets_noise_among_several_inputs():
    seen = {}

    def model(x, ids, mask, attention_mask, shared, scale):
        seen.update(locals())
        return x

    inputs = {"ids": Y, "mask": X > 0, "attention_mask": X, "shared": torch.ones(3), "scale": 2.0}
    noise = draw_noise(X.shape, 0.5)
    outputs, _ = R3F(0.5)(model, X, Y, **inputs)
    torch.testing.assert_close(seen["x"], torch.cat([X, X + noise]))
    assert torch.equal(outputs, X)
    for name in ("ids", "mask", "attention_mask"):
        assert torch.equal(seen[name], torch.cat([inputs[name], inputs[name]]))
    assert seen["shared"] is inputs["shared"]
    assert seen["scale"] == 2.0


@pytest.mark.parametrize("x", [X.long(), {"mask": X}])
def test_without_anything_to_add_noise_to(x):
    message = r"no floating-point tensor to add noise to.*at=model.get_input_embeddings\(\)"
    with pytest.raises(TypeError, match=message):
        R3F()(Unexpected(), x)
    with pytest.raises(TypeError, match="needs a layer that returns a floating-point tensor"):
        R3F(at="0")(nn.Sequential(nn.Identity(), nn.Embedding(5, 4)), Y)


def test_noise_that_is_lost_in_rounding_is_told():
    x, y = torch.rand(8, 6) + 1, torch.arange(8) % 4
    with pytest.warns(RuntimeWarning, match=r"noise=1e-05 changes no output: it is lost in rounding"):
        _, divergence = R3F()(mlp().bfloat16(), x.bfloat16(), y)
    assert divergence == 0


def test_positions_without_a_label_do_not_count():
    y = torch.arange(60).reshape(12, 5) % 4
    y[:, 3:] = -100
    divergences = []
    for other in (1.0, 3.0):
        x = X[:, None] * torch.tensor([1.0, 0.5, 2.0, other, other], dtype=X.dtype)[:, None]
        torch.manual_seed(0)
        divergences.append(R3F(noise=0.1)(mlp().double(), x, y)[1])
    torch.testing.assert_close(*divergences)
