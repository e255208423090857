import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import effdeg
from effdeg._adapters.outputs import identify_output
from tests.models import mlp

FAST = {"paths": 20, "nodes": 12, "degree": 5}
X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))


@dataclass
class Returned:
    loss: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor


def both(model, output="softmax"):
    """Measure and trace, which must agree on what they saw."""
    measured = effdeg.measure(model, X, output=output, **FAST)
    traced = effdeg.trace(model, X, paths=20, nodes=12).fit(degree=5, output=output)
    assert traced.settings == measured.settings
    torch.testing.assert_close(traced.per_path, measured.per_path, rtol=1e-12, atol=0)
    return measured


@pytest.mark.parametrize(
    ("model", "tensor", "others"),
    [
        (lambda x: x, "output", ()),
        (lambda x: {"hidden": x[:, :2], "logits": x}, "logits", ()),
        (lambda x: Returned(x.sum(), x, x[:, :2]), "logits", ()),
        (lambda x: SimpleNamespace(logits=x), "logits", ()),
        (lambda x: (x, 2 * x), "[0]", ("[1]",)),
        (lambda x: [x], "[0]", ()),
        (lambda x: {"main": x, "aux": x[:, :3]}, "main", ("aux",)),
        (lambda x: (x.sum(), x, {"more": x[:, :3]}), "[1]", ("[2].more",)),
        (lambda x: (x.argmax(1), x), "[1]", ()),
    ],
)
def test_the_tensor_that_is_fitted_is_named(model, tensor, others):
    measured = both(model)
    settings = measured.settings
    assert (settings.tensor, settings.other_tensors, settings.outputs) == (tensor, others, (6,))
    named = "" if tensor == "output" else f" of {tensor}"
    assert f"<lambda>: probabilities (softmax){named}, 6 outputs\n" in str(measured)
    notes = [note for note in measured.warnings() if "several tensors" in note]
    assert len(notes) == bool(others)
    if others:
        assert f"{tensor} was measured, not {others[0]}. To measure another, use output=lambda" in notes[0]
    assert torch.equal(measured.per_path, effdeg.measure(lambda x: x, X, **FAST).per_path)


@pytest.mark.parametrize(
    ("output", "model", "expected"),
    [
        ("identity", lambda x: x, "raw values, 6 outputs"),
        ("identity", lambda x: x[:, 0], "raw values, 1 output"),
        ("sigmoid", lambda x: {"logits": x[:, :, None]}, "probabilities (sigmoid) of logits, 6 × 1 outputs"),
        (torch.tanh, lambda x: x, "tanh of what the model returned, 6 outputs"),
    ],
)
def test_outputs_are_described(output, model, expected):
    measured = both(model, output)
    assert measured.settings.describe_outputs() == expected
    assert f": {expected}\n" in str(measured)


MAPS = mlp(inputs=6, outputs=24)


@pytest.mark.parametrize("shape", [(6, 2, 2), (2, 2, 6), (24, 1)])
@pytest.mark.parametrize("wrap", [lambda y: y, lambda y: ({"deep": [y]},), lambda y: SimpleNamespace(logits=y)])
def test_where_the_classes_of_maps_are_must_be_said_and_what_to_write_works(shape, wrap):
    def model(x):
        return wrap(MAPS(x).view(-1, *shape))

    with pytest.raises(ValueError, match=rf"of shape \({', '.join(map(str, shape))}\) per example may") as raised:
        effdeg.measure(model, X, **FAST)
    last = shape == (2, 2, 6)
    written = re.findall(r"(returned\S*softmax\(\S+\)) if (?:the classes|they) come (first|last)", str(raised.value))
    codes = {where: code for code, where in written}
    measured = effdeg.measure(model, X, output=eval(f"lambda returned: {codes['last' if last else 'first']}"), **FAST)
    own = lambda x: MAPS(x).view(-1, *shape).softmax(-1 if last else 1)  # noqa: E731
    expected = effdeg.measure(own, X, output="identity", **FAST)
    assert torch.equal(measured.per_path, expected.per_path)
    assert ("sigmoid" in str(raised.value)) == (shape[-1] == 1)


@pytest.mark.parametrize("model", [lambda x: x.numpy(), lambda x: {"logits": x.numpy(), "loss": 0.3}])
def test_arrays_of_numpy_get_advice_that_works(model):
    with pytest.raises(TypeError, match=r"there is no tensor\. Convert .* torch.from_numpy\(array\)\.$"):
        effdeg.measure(model, X, **FAST)
    with pytest.raises(TypeError, match=r"returned ndarray; expected a tensor\. Convert .*torch.from_numpy"):
        effdeg.measure(nn.Identity(), X, output=lambda y: y.numpy(), **FAST)
    assert effdeg.measure(lambda x: torch.from_numpy(x.numpy()), X, **FAST).value > 0


def test_a_softmax_over_features_is_refused():
    def encoder(x):
        return {"last_hidden_state": x[:, None].repeat(1, 4, 1), "pooler_output": x}

    with pytest.raises(ValueError, match=r"returned last_hidden_state of shape \(4, 6\).*Use output='identity'"):
        effdeg.measure(encoder, X, **FAST)
    measured = both(encoder, "identity")
    assert measured.settings.describe_outputs() == "raw values of last_hidden_state, 4 × 6 outputs"


def test_a_softmax_over_what_may_be_features_gets_a_note():
    measured = both(lambda x: x.view(len(x), 2, 3))
    assert any("softmax is over the last of 2 × 3 outputs. If these are features" in n for n in measured.warnings())
    for fine in (both(lambda x: {"logits": x.view(len(x), 2, 3)}), both(lambda x: x.view(len(x), 2, 3), "identity")):
        assert not any("softmax" in note for note in fine.warnings())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: x * 1j, r"complex \(torch.complex64\).*output=torch.view_as_real for both parts"),
        (lambda x: x.argmax(1, keepdim=True), r"integers or flags \(torch.int64\).*output=lambda y: y.float\(\)"),
        (lambda x: x.to_sparse(), r"outputs are sparse \(torch.sparse_coo\).*to_dense"),
        (lambda x: (torch.nested.as_nested_tensor(list(x), layout=torch.jagged),), "outputs are nested tensors"),
        (lambda x: x.to(torch.float8_e5m2), r"outputs are in torch.float8_e5m2.*\.float\(\)"),
    ],
)
def test_outputs_that_are_not_real_are_refused(model, message):
    for output in ("identity", "softmax"):
        with pytest.raises(TypeError, match=message):
            effdeg.measure(model, X, output=output, **FAST)
    with pytest.raises(TypeError, match=message):
        effdeg.trace(model, X, paths=20, nodes=12).fit(degree=5, output="identity")
    penalty = effdeg.Penalty(output="identity")
    points = penalty.points(X)
    with pytest.raises(TypeError, match=message):
        penalty.degree(model(points.inputs), points)


def test_what_to_write_instead_works():
    def spectrum(x):
        return torch.fft.rfft(mlp()(x))

    parts = effdeg.measure(spectrum, X, output=torch.view_as_real, **FAST)
    expected = effdeg.measure(lambda x: torch.view_as_real(spectrum(x)), X, output="identity", **FAST)
    assert torch.equal(parts.per_path, expected.per_path)
    assert parts.settings.outputs == (3, 2)
    assert effdeg.measure(lambda x: x > 0, X, output=lambda y: y.float(), **FAST).value > 0


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sigmoid(),
        nn.Sequential(nn.Sigmoid(), nn.Hardtanh(1e-3, 1 - 1e-3)),
        lambda x: (100 * x.sigmoid()).round() / 100,
        lambda x: (5 * x[:, :1]).sigmoid(),
    ],
    ids=["plain", "clamped", "rounded", "one"],
)
def test_sigmoid_of_probabilities_is_refused(layer):
    with pytest.raises(ValueError, match=r"outputs are all from .* as probabilities are. Use output='identity'"):
        effdeg.measure(layer, X, output="sigmoid", **FAST)
    with pytest.raises(ValueError, match="as probabilities are"):
        effdeg.trace(layer, X, paths=20, nodes=12).fit(degree=5, output="sigmoid")
    assert effdeg.measure(layer, X, output="identity", **FAST).value > 0


def test_a_single_logit_of_a_new_network_may_look_like_a_probability():
    def network(x):
        return 0.4 + 0.02 * x[:, :1]

    with pytest.warns(UserWarning, match=r"outputs are all from 0.3\d to 0.4\d.*if they are logits, use output=torch."):
        measured = effdeg.measure(network, X, output="sigmoid", **FAST)
    assert torch.equal(measured.per_path, effdeg.measure(network, X, output=torch.sigmoid, **FAST).per_path)
    for constant in (lambda x: 0 * x, lambda x: 0 * x[:, :1] + 0.5):
        assert effdeg.measure(constant, X, output="sigmoid", **FAST).value < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("classes", [2, 1000])
def test_softmax_of_probabilities_is_refused(classes, dtype):
    logits = torch.randn(40, classes, generator=torch.Generator().manual_seed(0)).to(dtype)
    with pytest.raises(ValueError, match=r"probabilities already.*output='identity'"):
        effdeg.measure(nn.Softmax(-1), logits, **FAST)
    with pytest.raises(ValueError, match="probabilities already"):
        effdeg.trace(nn.Softmax(-1), logits, paths=20, nodes=12).fit(degree=5)
    one = effdeg.measure(nn.Softmax(-1), logits, output="identity", **FAST).value
    # Logarithms of probabilities are logits.
    other = effdeg.measure(nn.LogSoftmax(-1), logits, **FAST).value
    assert one == pytest.approx(other, rel=0.2 if dtype.itemsize == 2 else 1e-4)


@pytest.mark.parametrize(
    "change", [lambda p: p.clamp(min=1e-6), lambda p: p.half().float(), lambda p: p + 1e-6, lambda p: 100 * p]
)
def test_probabilities_that_were_rounded_or_clamped_and_percentages_are_refused(change):
    with pytest.raises(ValueError, match="probabilities already"):
        effdeg.measure(lambda x: change(x.softmax(-1)), X, **FAST)


def test_logits_that_are_nearly_probabilities_are_logits():
    assert effdeg.measure(lambda x: x.softmax(-1) - 0.01, X, **FAST).value > 0  # no error
    with pytest.warns(UserWarning, match="as probabilities are"):
        assert effdeg.measure(lambda x: (9 * x).softmax(-1).clamp(0.05, 0.95), X, **FAST).value > 0


def test_half_precision_within_a_model_is_noticed():
    model = mlp()
    measured = effdeg.measure(lambda x: model(x).bfloat16().float(), X, **FAST)
    assert measured.settings.dtype == "bfloat16"
    with pytest.raises(ValueError, match="They differ in precision"):
        effdeg.compare([measured, effdeg.measure(model, X, **FAST)])
    # Whole numbers are not taken for it.
    assert effdeg.measure(lambda x: (100 * x).round(), X, output="identity", **FAST).settings.dtype == "float32"


def test_rounding_of_large_logits_is_warned_of():
    with pytest.warns(UserWarning, match=r"the logits \(up to 1e\+06\) are rounded to float32 in steps of about 0.1"):
        effdeg.measure(lambda x: mlp()(x) + 1e6, X, **FAST)


def test_sigmoid_before_softmax_is_warned_of_and_log_softmax_before_sigmoid_is_refused():
    with pytest.warns(UserWarning, match=r"output='softmax' makes probabilities of logits, but .* as probabilities"):
        effdeg.measure(lambda x: (9 * x).sigmoid(), X, **FAST)
    with pytest.raises(ValueError, match="logarithms of probabilities"):
        effdeg.measure(nn.Sequential(mlp(), nn.LogSoftmax(-1)), X, output="sigmoid", **FAST)


@pytest.mark.parametrize("kind", [torch.distributions.Bernoulli, torch.distributions.Geometric])
def test_independent_probabilities_are_not_those_of_classes(kind):
    with pytest.raises(ValueError, match=f"returned a {kind.__name__}, whose logits .* Use output='sigmoid'"):
        effdeg.measure(lambda x: kind(logits=x), X, **FAST)
    measured = effdeg.measure(lambda x: kind(logits=x), X, output="sigmoid", **FAST)
    assert torch.equal(measured.per_path, effdeg.measure(lambda x: x, X, output="sigmoid", **FAST).per_path)
    with pytest.raises(ValueError, match="Let it return logits of classes"):
        effdeg.pick([lambda x: kind(logits=x)] * 2, X)
    with pytest.raises(ValueError, match="Let it return logits of classes"):
        effdeg.proxies.confidence(lambda x: kind(logits=x), X)
    effdeg.measure(lambda x: torch.distributions.OneHotCategorical(logits=x), X, **FAST)
    with pytest.raises(TypeError, match=r"returned a Categorical at \[0\]. Say what is fitted"):  # no value
        effdeg.measure(lambda x: (torch.distributions.Categorical(logits=x), x), X, output="identity", **FAST)


def combine(first, second):
    return lambda returned: first(returned) + second(returned)


def test_functions_that_many_others_call_are_described_once():
    """Level by level two functions call both of the level before: there are 2⁴⁰ ways to the first two."""
    first, second = torch.sin, torch.cos
    for _ in range(40):
        first, second = combine(first, second), combine(second, first)
    assert identify_output(first) == identify_output(first) != identify_output(second)
