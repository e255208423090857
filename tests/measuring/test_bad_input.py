import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import effdeg
from effdeg.io import LoadedData
from tests.models import Tokens, mlp, never

X = torch.randn(20, 6)
LABELS = r"tuple whose second entry .*as labels have.*write images alone, or torch.utils.data.TensorDataset\(images"
BEFORE = [
    ({"nodes": 4, "degree": 4}, ValueError, r"nodes=4 cannot determine a polynomial of degree=4.*nodes=5 or more"),
    ({"degree": 0}, ValueError, r"degree=0 is too small: it must be at least 1"),
    ({"degree": 2.5}, TypeError, r"degree=2.5 must be a whole number"),
    ({"paths": 0}, ValueError, r"paths=0 is too small"),
    ({"nodes": "many"}, TypeError, r"nodes='many' must be a whole number"),
    ({"basis": "chebychev"}, ValueError, r"basis='chebychev' is not known. Did you mean 'chebyshev'"),
    ({"sampling": "cosin"}, ValueError, r"sampling='cosin' is not known. Did you mean 'cosine'"),
    ({"output": "sofmax"}, ValueError, r"output='sofmax' is not known. Did you mean 'softmax'"),
    ({"components": 200}, ValueError, r"components=200 is too many for nodes=200.*components=199 or less"),
    ({"components": 0}, ValueError, r"components=0 is too small"),
    ({"nodes": 1, "components": 1}, ValueError, r"nodes=1 cannot determine"),
    ({"damping": float("inf")}, ValueError, r"damping=inf must be zero or positive and finite"),
    ({"paths": True}, TypeError, r"paths=True must be a whole number, at least 1"),
    ({"damping": -1.0}, ValueError, r"damping=-1.0 must be zero"),
    ({"damping": "none"}, TypeError, r"damping='none' must be a number, zero or positive: .*zero is plain"),
    ({"tolerance": 0.0}, ValueError, r"tolerance=0.0 must be positive and finite: 0.02 stops"),
    ({"tolerance": "a"}, TypeError, r"tolerance='a' must be a number, positive: 0.02 stops"),
    ({"batch_size": 0}, ValueError, r"batch_size=0 is too small"),
    ({"seed": -1}, ValueError, r"seed=-1 is too small"),
    ({"dtype": torch.int64}, TypeError, r"dtype=torch.int64 is not a precision.*Write one of torch.float16, "),
    ({"dtype": torch.float8_e5m2}, TypeError, r"dtype=torch.float8_e5m2 is not a precision"),
    ({"dtype": "float32"}, TypeError, r"dtype='float32' is not a precision.*Write dtype=torch.float32."),
    ({"device": "gpu"}, ValueError, r"device='gpu' is not a device. Write 'cpu', 'cuda', 'cuda:0' or 'mps'"),
    ({"device": "meta"}, ValueError, r"device='meta' has no values"),
    ({"device": "cuda:99"}, ValueError, r"device='cuda:99' was asked for, but torch finds"),
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


class Graph:
    """Entries by name, as in a graph of PyTorch Geometric."""

    x, edge_index = X, torch.zeros(2, 5, dtype=torch.int64)

    def keys(self):
        return ["x", "edge_index"]

    def __len__(self):
        return 2

    def __getitem__(self, name):
        return {"x": self.x, "edge_index": self.edge_index}[name]


def test_graphs():
    model, data = mlp(), DataLoader([(Graph(), 1)] * 20, batch_size=4, collate_fn=lambda items: items[0][0])
    with pytest.raises(TypeError, match=r"a batch of inputs \(Graph\) holds no examples: it has no tensor"):
        effdeg.measure(model, data, at="0")
    with pytest.raises(TypeError, match=r"data \(Graph\) holds no examples"):
        effdeg.proxies.jacobian_norm(model, data, at="0")
    with pytest.raises(TypeError, match=r"x holds no examples"):
        effdeg.Penalty(at="0")(model, Graph())
    edges = torch.randint(20, (30,))
    with pytest.raises(IndexError) as caught:
        effdeg.measure(lambda x: model(x)[edges], X, at=model[0], paths=4, nodes=8, degree=3)
    assert "points are run in batches of any size" in caught.value.__notes__[-1]


def test_weights_in_float8():
    model = nn.Linear(6, 4).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"weights of the model \(Linear\) are in torch.float8.* dtype=torch.float32"):
        effdeg.measure(model, X, paths=4)
    assert effdeg.measure(model, X, paths=4, nodes=8, degree=3, dtype=torch.float32).value > 0


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (X[:1], ValueError, r"a path joins two examples, but inputs hold 1"),
        (torch.tensor(3.0), ValueError, r"inputs hold no examples"),
        ({"input_ids": [[1, 2], [3]]}, ValueError, r"found input_ids.* padding=True, return_tensors='pt'\.$"),
        (["a text", "another"], TypeError, "list of strings. Pass what the model is called with"),
        ((X.to(torch.uint8) * 0 + 7), TypeError, r"hold integers \(torch.uint8\).*images.float\(\) / 255"),
        ({"x": X, "ids": torch.arange(20)}, TypeError, r"inputs \('ids'\) hold integers \(torch.int64"),
        ({"mask": X > 0}, TypeError, r"no floating-point tensor to interpolate, only torch.bool"),
        ([{"text": "a", "label": 0}] * 5, TypeError, r"only str\. .* such as a tokenizer's output"),
        (LoadedData(X, "x.npy", None), TypeError, r"what load_data returned.*load_data\(…\).inputs"),
        ({"x": X, "y": X[:3]}, ValueError, r"examples, their first dimension: x \(20, 6\), y \(3, 6\)"),
        (iter([X, torch.randn(4, 7)]), ValueError, r"do not fit together: \(20, 6\) and \(4, 7\)"),
        ([], ValueError, r"inputs are empty"),
        (iter([]), ValueError, r"inputs are empty: the iterable has no items"),
        ("images.npy", TypeError, r"inputs='images.npy' is a path, which only.*numpy.load\('images.npy'"),
        (X.cfloat(), TypeError, r"inputs hold complex numbers \(torch.complex64\).*view_as_real\(x\)"),
        (X.to_sparse(), TypeError, r"inputs are sparse \(torch.sparse_coo\).*x.to_dense\(\)"),
        (torch.nested.nested_tensor([X, X[:3]], layout=torch.jagged), TypeError, r"nested.*to_padded_tensor"),
        (X.to("meta"), ValueError, r"inputs are on the meta device, where tensors have no values"),
        (X.to(torch.float8_e4m3fn), TypeError, r"inputs are in torch.float8_e4m3fn.* Convert them: .float\(\)"),
        (Graph(), TypeError, r"inputs of type Graph cannot be read as examples"),
        ({"x": X, "types": (X > 0).long()}, TypeError, r"inputs \('types'\) hold integers.*mask, pass booleans: .bool"),
        ((X, torch.arange(20)), TypeError, LABELS),
        ((X, torch.arange(20) % 2), TypeError, LABELS),
        (3, TypeError, r"inputs of type int cannot be read as examples"),
    ],
)
def test_inputs(inputs, error, message):
    with pytest.raises(error, match=message):
        effdeg.measure(never, inputs)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, r"model is None, which cannot be called on a batch. Pass an nn.Module or a function"),
        ("resnet", r"model is 'resnet'.*Names of models are for the command line"),
        (mlp().state_dict(), r"model is of type OrderedDict.*network.load_state_dict"),
        (Tokens, r"model=Tokens is a class. Pass an instance of it: Tokens\(…\)"),
    ],
)
def test_what_is_no_model(model, message):
    inputs = iter([X])
    with pytest.raises(TypeError, match=message):
        effdeg.measure(model, inputs)
    assert next(inputs) is X  # nothing was read
    with pytest.raises(TypeError, match=message):
        effdeg.proxies.jacobian_norm(model, X)


def test_a_model_without_values():
    with torch.device("meta"):
        model = nn.Linear(6, 3)
    for where in ({}, {"device": "cpu"}, {"dtype": torch.float64}):
        with pytest.raises(ValueError, match=r"weights of the model \(Linear\) are on the meta device.*load_state_dic"):
            effdeg.measure(model, X, **where)


def test_real_second_arguments_are_not_taken_for_labels():
    settings = {"paths": 4, "nodes": 8, "degree": 3}
    model = Tokens()
    ids, lengths = torch.randint(30, (20, 5)), torch.randint(1, 6, (20,))

    def with_lengths(ids, lengths):
        return model(ids, torch.arange(5) < lengths[:, None])

    assert effdeg.measure(with_lengths, (ids, lengths), at=model.embed, **settings).value > 0
    assert effdeg.measure(lambda x, t: x * t[:, None], (X, X[:, 0]), **settings).value > 0
    assert effdeg.measure(lambda x, mask: x * mask, (X, X > 0), **settings).value > 0
    assert effdeg.measure(lambda x, mask: x * mask[:, None], {"x": X, "mask": X[:, 0] > 0}, **settings).value > 0


def test_examples_of_unequal_shape():
    class Ragged(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return torch.randn(3 + index % 2), index

    with pytest.raises(ValueError, match=r"unequal shapes, \(3,\) and \(4,\).*pad text"):
        effdeg.measure(never, Ragged())


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("embd", r"at='embd' is not a layer of this model. Did you mean 'embed'"),
        (torch.nn.Linear(2, 2), r"at=Linear\(…\) is not a layer of this model"),
    ],
)
def test_unknown_layer(at, message):
    with pytest.raises(ValueError, match=message):
        effdeg.measure(Tokens(), {"input_ids": torch.arange(20)[:, None], "attention_mask": torch.ones(20, 1)}, at=at)


def test_lists_of_unequal_length():
    with pytest.raises(ValueError, match=r"lists of unequal length.*Pad text"):
        effdeg.measure(never, iter([{"input_ids": [[1, 2], [3]]}]))


def test_token_ids_without_a_layer_are_told_where_to_go():
    tokens = {"input_ids": torch.randint(30, (20, 5)), "attention_mask": torch.ones(20, 5, dtype=torch.int64)}
    for model in (Tokens(), torch.compile(Tokens(), backend="eager")):
        with pytest.raises(TypeError, match=r"inputs \('input_ids'\) hold integers.*such as at='embed'"):
            effdeg.measure(model, tokens)


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


@pytest.mark.parametrize(("bad", "components"), [(torch.nan, None), (torch.inf, 2)])
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
