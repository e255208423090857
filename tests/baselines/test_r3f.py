"""R3F, against two passes, one example at a time."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from effdeg.baselines import R3F, method
from tests.baselines.test_embedding_mixup import LABELS, sentences, tiny_bert
from tests.baselines.test_rdrop import divergence_slowly
from tests.batches import X, Y, tokens
from tests.models import Shared, Tokens, Unexpected, WithTupleLayer, mlp
from tests.properties import assert_copies_agree, assert_same_gradients, assert_same_under_vmap
from tests.train.test_loops import Checkpointed


def draw_noise(shape, size, distribution="uniform", seed=3):
    """Draw the noise that the next call after this seed adds, and set the seed again."""
    torch.manual_seed(seed)
    if distribution == "uniform":
        noise = (2 * torch.rand(shape, dtype=torch.float64) - 1) * size
    else:
        noise = torch.randn(shape, dtype=torch.float64) * size
    torch.manual_seed(seed)
    return noise


def penalty_slowly(first, second):
    """Return the mean divergence of two tensors of logits, one example and one class after the other."""
    pairs = zip(first.softmax(-1), second.softmax(-1), strict=True)
    return sum(divergence_slowly(*pair) for pair in pairs) / len(first)


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
@pytest.mark.parametrize("by_name", [False, True])
def test_one_example_at_a_time(distribution, by_name):
    model, twin, calls = mlp().double(), mlp().double(), []
    model.register_forward_hook(lambda _, given, __: calls.append(len(given[0])))
    moved = X + draw_noise(X.shape, 0.3, distribution)
    if by_name:
        way = method("r3f", noise=0.3, distribution=distribution, weight=0.7)
        loss = way.loss(model, X, Y, cross_entropy)
    else:
        outputs, value = R3F(0.3, distribution=distribution)(model, X, Y)
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


def test_token_ids():
    model, inputs = Tokens().double(), tokens()
    noise = draw_noise((10, 7, 8), 0.2)
    outputs, value = R3F(0.2, at="embed")(model, inputs)

    def run(hidden):
        weight = inputs["attention_mask"][..., None].double()
        return model.head((torch.tanh(model.mix(hidden)) * weight).sum(1) / weight.sum(1))

    embedded = model.embed(inputs["input_ids"])
    torch.testing.assert_close(outputs["logits"], model(**inputs)["logits"])
    torch.testing.assert_close(value, penalty_slowly(run(embedded), run(embedded + noise)))


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
    with pytest.raises(ValueError, match="x holds 'labels'"):
        R3F(at=words)(model, {**inputs, "labels": LABELS})


def test_small_noise_measures_the_jacobian():
    """As the noise becomes small, the penalty becomes E zᵀ Jᵀ (diag(p) - p pᵀ) J z."""
    model = mlp()
    draw_noise(X.shape, 1e-5)
    way = R3F()
    value = torch.stack([way(model, X.float())[1] for _ in range(300)]).mean().item()
    expected = 0.0
    for row in X:
        jacobian = torch.autograd.functional.jacobian(copy.deepcopy(model).double(), row)
        p = copy.deepcopy(model).double()(row).softmax(0)
        expected += torch.trace(jacobian.T @ (p.diag() - p.outer(p)) @ jacobian).item() * 1e-10 / 3 / 12
    assert value == pytest.approx(expected, rel=0.1)


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


def test_a_layer_that_returns_a_tuple():
    model = WithTupleLayer().double()
    noise = draw_noise((12, 6), 0.4)
    outputs, value = R3F(0.4, at="layer")(model, X)
    hidden = model.layer(X)[0]
    torch.testing.assert_close(outputs, model(X))
    torch.testing.assert_close(
        value, penalty_slowly(*(model.head(torch.relu(each)) for each in (hidden, hidden + noise)))
    )


def test_a_generator_draws_alone():
    model, state = mlp().double(), torch.get_rng_state()
    values = [R3F(0.1, generator=torch.Generator().manual_seed(1))(model, X)[1] for _ in range(2)]
    assert torch.equal(*values)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("at", [None, "1"])
def test_half_precision_is_summed_in_single(at):
    model = mlp()
    with torch.autocast("cpu", torch.bfloat16):
        outputs, value = R3F(0.5, at=at)(model, X.float())
    assert (outputs.dtype, value.dtype) == (torch.bfloat16, torch.float32)
    value.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter is not model[2].bias)


def test_several_models_under_vmap():
    assert_same_under_vmap(R3F(0.3), [mlp(seed=seed).double() for seed in range(2)], X)


@pytest.mark.usefixtures("process_group")
def test_wrapped_models():
    model = mlp().double()
    draw_noise(X.shape, 0.3)
    expected = R3F(0.3, at="1")(model, X)[1]
    gradients = torch.autograd.grad(expected, list(model.parameters()))
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    parallel = DistributedDataParallel(model)
    for each in (compiled, parallel):
        draw_noise(X.shape, 0.3)
        torch.testing.assert_close(R3F(0.3, at="1")(each, X)[1], expected)
    for _ in range(2):
        parallel.zero_grad()
        draw_noise(X.shape, 0.3)
        R3F(0.3, at="1")(parallel, X)[1].backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(gradients))


def test_it_can_be_read_and_copied_and_has_no_state():
    model = mlp().double()
    assert repr(R3F()) == "R3F(noise=1e-05, distribution='uniform')"
    assert repr(R3F(0.1, at=model[1], distribution="normal")) == "R3F(noise=0.1, distribution='normal', at='Tanh')"
    way = R3F(0.1, at=model[0])
    assert not way.state_dict()
    assert list(way.modules()) == [way]
    way = R3F(0.1, at="0")
    assert repr(way) == "R3F(noise=0.1, distribution='uniform', at='0')"
    assert_copies_agree(way, model, X)


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"noise": 0.0}, ValueError, "noise=0.0 must be positive"),
        ({"noise": "1e-5"}, TypeError, "noise='1e-5' must be a number"),
        ({"at": 3}, TypeError, "at=3 must be the name of a layer"),
        ({"distribution": "gaussian"}, ValueError, "distribution='gaussian' is not known. Choose from: 'uniform'"),
        ({"generator": 3}, TypeError, "generator=3 must be"),
    ],
)
def test_bad_settings(settings, kind, message):
    with pytest.raises(kind, match=message):
        R3F(**settings)
    with pytest.raises(kind, match=message):
        method("r3f", **settings)


@pytest.mark.parametrize(
    ("x", "at", "kind", "message"),
    [
        (X.long(), None, TypeError, r"no floating-point tensor to add noise to.*at=model.get_input_embeddings\(\)"),
        ({"mask": X}, None, TypeError, "no floating-point tensor to add noise to"),
        (X.cfloat(), None, TypeError, "complex"),
        ({"x": X, "labels": Y}, None, ValueError, "x holds 'labels'"),
        (X, "layr", ValueError, "Did you mean 'layer'"),
        ("x", None, TypeError, "x holds no examples"),
    ],
)
def test_bad_input_stops_before_the_model_is_run(x, at, kind, message):
    with pytest.raises(kind, match=message):
        R3F(at=at)(Unexpected(), x)


def test_layers_and_outputs_that_do_not_fit():
    with pytest.raises(ValueError, match="ran 2 times"):
        R3F(at="layer")(Shared(), X.float())
    with pytest.raises(ValueError, match=r"'block.0' runs inside torch.utils.checkpoint"):
        R3F(at="block.0")(Checkpointed(False), X)
    with pytest.raises(TypeError, match="needs a layer that returns a floating-point tensor"):
        R3F(at="0")(nn.Sequential(nn.Identity(), nn.Embedding(5, 4)), Y)
    with pytest.raises(ValueError, match=r"for a joined batch of 12 \+ 12 examples"):
        R3F()(lambda x: x.sum(), X)
    with pytest.raises(ValueError, match="softmax"):
        R3F()(lambda x: x[:, :1], X)


def test_noise_that_is_lost_in_rounding_is_told():
    x, y = torch.rand(8, 6) + 1, torch.arange(8) % 4
    with pytest.warns(RuntimeWarning, match=r"noise=1e-05 changes no output: it is lost in rounding"):
        _, divergence = R3F()(mlp().bfloat16(), x.bfloat16(), y)
    assert divergence == 0
