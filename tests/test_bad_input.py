"""Every mistake gets a clear error, before any forward pass where it can be known by then."""

import pytest
import torch

import effdeg
from tests.models import Shared, Tokens, mlp


def never(x):
    raise AssertionError("the model was run")


X = torch.randn(20, 6)
BEFORE = [
    ({"nodes": 4, "degree": 4}, ValueError, r"nodes=4 cannot determine a polynomial of degree=4.*nodes=5 or more"),
    ({"degree": 0}, ValueError, r"degree=0 is too small: it must be at least 1"),
    ({"degree": 2.5}, TypeError, r"degree=2.5 must be a whole number"),
    ({"paths": 0}, ValueError, r"paths=0 is too small"),
    ({"nodes": 0}, ValueError, r"nodes=0 is too small: it must be at least 1"),
    ({"nodes": 1, "degree": 1}, ValueError, r"nodes=1 cannot determine .* Use nodes=2 or more\.$"),
    ({"nodes": "many"}, TypeError, r"nodes='many' must be a whole number"),
    ({"basis": "chebychev"}, ValueError, r"basis='chebychev' is not known. Did you mean 'chebyshev'"),
    ({"sampling": "cosin"}, ValueError, r"sampling='cosin' is not known. Did you mean 'cosine'"),
    ({"output": "sofmax"}, ValueError, r"output='sofmax' is not known. Did you mean 'softmax'"),
    ({"components": 200}, ValueError, r"components=200 is too many for nodes=200.*components=199 or less"),
    ({"components": 0}, ValueError, r"components=0 is too small"),
    ({"damping": -1.0}, ValueError, r"damping=-1.0 must be zero"),
    ({"damping": float("inf")}, ValueError, r"damping=inf must be zero or positive"),
    ({"damping": "none"}, TypeError, r"damping='none' must be a number, zero or positive: .*zero is plain"),
    ({"tolerance": 0.0}, ValueError, r"tolerance=0.0 must be positive and finite: 0.02 stops"),
    ({"tolerance": float("inf")}, ValueError, r"tolerance=inf must be positive"),
    ({"tolerance": float("nan")}, ValueError, r"tolerance=nan must be positive"),
    ({"tolerance": "a"}, TypeError, r"tolerance='a' must be a number, positive: 0.02 stops"),
    ({"tolerance": True}, TypeError, r"tolerance=True must be a number"),
    ({"batch_size": 0}, ValueError, r"batch_size=0 is too small"),
    ({"seed": -1}, ValueError, r"seed=-1 is too small"),
    ({"at": "layer"}, ValueError, r"at='layer' names a layer, but the model is a plain function"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BEFORE)
def test_settings(settings, error, message):
    with pytest.raises(error, match=message):
        effdeg.measure(never, X, **settings)
    cheap = {name: value for name, value in settings.items() if name in {"degree", "basis", "output", "components"}}
    if cheap == settings:
        with pytest.raises(error, match=message):
            effdeg.trace(lambda x: x, X, paths=3).fit(**settings)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (X[:1], ValueError, r"a path joins two examples, but inputs hold 1"),
        (X[:0], ValueError, r"inputs hold 0"),
        (torch.tensor(3.0), ValueError, r"inputs hold no examples"),
        ((X.to(torch.uint8) * 0 + 7), TypeError, r"hold integers \(torch.uint8, from 7 to 7\).*images.float\(\) / 255"),
        ({"x": X, "ids": torch.arange(20)}, TypeError, r"inputs \('ids'\) hold integers \(torch.int64"),
        ({"mask": X > 0}, TypeError, r"no floating-point tensor to walk along"),
        ({"x": X, "y": X[:3]}, ValueError, r"disagree on the number of examples: x \(20, 6\), y \(3, 6\)"),
        ([X, torch.randn(4, 7)], ValueError, r"do not fit together: \(20, 6\) and \(4, 7\)"),
        ([], ValueError, r"the iterable gave no batch"),
        (3, TypeError, r"inputs of type int cannot be read as examples"),
    ],
)
def test_inputs(inputs, error, message):
    with pytest.raises(error, match=message):
        effdeg.measure(never, inputs)


def test_examples_of_unequal_shape():
    class Ragged(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return torch.randn(3 + index % 2), index

    with pytest.raises(ValueError, match=r"unequal shapes, \(3,\) and \(4,\).*Pad text"):
        effdeg.measure(never, Ragged())


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("embd", r"at='embd' is not a layer of this model. Did you mean 'embed'"),
        ("", r"at='' is not a layer of this model"),
        (torch.nn.Linear(2, 2), r"at=Linear\(…\) is not a layer of this model"),
    ],
)
def test_unknown_layer(at, message):
    with pytest.raises(ValueError, match=message):
        effdeg.measure(Tokens(), {"input_ids": torch.arange(20)[:, None], "attention_mask": torch.ones(20, 1)}, at=at)


def test_a_layer_that_is_neither_name_nor_module():
    with pytest.raises(TypeError, match=r"at=3 must be the name of a layer or a module"):
        effdeg.measure(mlp(), X, at=3)


def test_lists_of_unequal_length():
    with pytest.raises(ValueError, match=r"lists of unequal length.*Pad text"):
        effdeg.measure(never, [{"input_ids": [[1, 2], [3]]}])


def test_token_ids_without_a_layer_are_told_where_to_go():
    tokens = {"input_ids": torch.randint(30, (20, 5)), "attention_mask": torch.ones(20, 5, dtype=torch.int64)}
    for model in (Tokens(), torch.compile(Tokens(), backend="eager")):
        with pytest.raises(TypeError, match=r"inputs \('input_ids'\) hold integers.*such as at='embed'"):
            effdeg.measure(model, tokens)


def test_a_layer_that_runs_twice():
    with pytest.raises(ValueError, match=r"the layer 'layer' ran 2 times in one forward pass"):
        effdeg.measure(Shared(), X, at="layer")


def test_a_layer_that_returns_no_tensor():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Inner()

        def forward(self, x):
            return self.layer(x)["x"]

    class Inner(torch.nn.Module):
        def forward(self, x):
            return {"x": x}

    with pytest.raises(TypeError, match=r"the layer 'layer' returns dict; a path needs a layer that returns"):
        effdeg.measure(Odd(), X, at="layer")


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (lambda x: x.mean(0), ValueError, r"shape \(6,\) for a batch of 240; its first dimension must be the batch"),
        (lambda x: x.sum(), ValueError, r"shape \(\) for a batch of 240"),
        (lambda x: x[:, 0], ValueError, r"output='softmax' of a single output"),
        (lambda x: x[:, :0], ValueError, r"the model returned no outputs: a tensor of shape \(\d+, 0\)"),
        (lambda x: "text", TypeError, r"the model returned str, in which there is no tensor"),
    ],
)
def test_outputs(model, error, message):
    with pytest.raises(error, match=message):
        effdeg.measure(model, X, paths=20, nodes=15, degree=5)
    with pytest.raises(error, match=message):
        effdeg.trace(model, X, paths=20, nodes=15).fit(degree=5)


@pytest.mark.parametrize("components", [None, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_outputs_that_are_not_numbers_name_the_path(bad, components):
    inputs = torch.zeros(40, 2)
    inputs[7] = 1.0

    def model(x):
        return torch.where((x[:, :1] > 0.9), bad, x)

    settings = {"degree": 5, "output": "identity", "components": components}
    pairs = effdeg.measure(lambda x: x, inputs, paths=200, nodes=20, **settings).pairs
    first = int((pairs == 7).any(1).nonzero()[0])
    with pytest.raises(ValueError, match=rf"NaN or infinite on path {first}, between the examples"):
        effdeg.measure(model, inputs, paths=200, nodes=20, **settings)
    with pytest.raises(ValueError, match=rf"NaN or infinite on path {first}, between the examples"):
        effdeg.trace(model, inputs, paths=200, nodes=20).fit(**settings)


def test_levels():
    measured = effdeg.measure(mlp(), X, paths=3, nodes=5, degree=2)
    with pytest.raises(ValueError, match=r"level=1.5 must lie between 0 and 1"):
        measured.interval(1.5)
