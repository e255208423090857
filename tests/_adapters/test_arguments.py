import re
from collections import namedtuple
from dataclasses import make_dataclass
from functools import partial

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from tests.models import mlp

FAST = {"paths": 10, "nodes": 8, "degree": 4}
AT = FAST | {"at": "bert.embeddings"}
N, T = 20, 7
random = torch.Generator().manual_seed(0)
LENGTHS = torch.randint(2, T + 1, (N,), generator=random)
MASK = (torch.arange(T) < LENGTHS[:, None]).long()
IDS = torch.randint(3, 40, (N, T), generator=random) * MASK
Y = torch.randint(2, (N,), generator=random)
NAMED = {"input_ids": IDS, "attention_mask": MASK}
X, EXTRA = torch.randn(N, 6, generator=random), torch.randn(N, 6, generator=random)


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=40, initializer_range=0.8, **small)
    return transformers.BertForSequenceClassification(config).eval()


LAYOUTS = {
    "integers": (IDS, MASK),
    "floats": (IDS, MASK.float()),
    "data set": TensorDataset(IDS, MASK, Y),
    "booleans in a data set": TensorDataset(IDS, MASK.bool(), Y),
    "data set without labels": TensorDataset(IDS, MASK),
    "data set of one-hot labels": TensorDataset(IDS, MASK, torch.eye(2)[Y]),
    "labels of tokens": TensorDataset(IDS, MASK, IDS),
    "loader": DataLoader(TensorDataset(IDS, MASK, Y), batch_size=6),
    "dict of a data set": [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(IDS, MASK, Y)],  # noqa: B905
    "arguments in a data set": [((i, m), int(y)) for i, m, y in zip(IDS, MASK, Y)],  # noqa: B905
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_mask_counts_in_every_layout_as_in_a_dict(bert, kind):
    expected = effdeg.measure(bert, NAMED, **AT)
    assert expected.value != pytest.approx(effdeg.measure(bert, IDS, **AT).value, rel=0.01)
    measured = effdeg.measure(bert, LAYOUTS[kind], **AT)
    assert torch.equal(measured.per_path, expected.per_path)
    traced = effdeg.trace(bert, LAYOUTS[kind], paths=10, nodes=8, at="bert.embeddings").fit(degree=4)
    torch.testing.assert_close(traced.per_path, expected.per_path)


@pytest.mark.filterwarnings("ignore:of each item of the data", "ignore:for 1 of 1 model")
@pytest.mark.parametrize("kind", ["integers", "loader"])
def test_a_mask_counts_in_proxies_and_pools(bert, kind, tmp_path):
    torch.save(bert.state_dict(), tmp_path / "a.pt")
    pool = partial(effdeg.measure_pool, bert, [tmp_path / "a.pt"], **AT)
    proxy = partial(effdeg.proxies.confidence, bert)
    assert proxy(LAYOUTS[kind]).value == pytest.approx(proxy((NAMED, Y)).value, rel=1e-6)
    (row,), (expected,) = pool(LAYOUTS[kind]), pool((NAMED, Y))
    for name in ("effective_degree", "confidence", "test_accuracy"):
        assert row.get(name, expected[name]) == pytest.approx(expected[name], rel=1e-6)


@pytest.mark.parametrize("anchor", [None, "labels"])
def test_a_mask_counts_in_a_penalty(bert, anchor):
    def run(x, model=bert):
        penalty = effdeg.Penalty(anchor=anchor, at="bert.embeddings", generator=torch.Generator().manual_seed(0))
        return penalty(model, x, Y)[1]

    for mask in (MASK, MASK.bool(), MASK.float()):
        assert torch.equal(run((IDS, mask)), run(NAMED))
    wrapped = torch.optim.swa_utils.AveragedModel(bert)
    assert torch.equal(run((IDS, MASK), wrapped), run(NAMED))
    with pytest.raises(TypeError, match="are they a mask"):
        effdeg.Penalty(at="bert.embeddings").points((IDS, MASK))


class TwoInputs(nn.Module):
    """A model with an optional second input, whose name is that of a mask or not."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        return self.net(x if extra is None else x * extra)


class Required(TwoInputs):
    def forward(self, x, extra):
        return super().forward(x, extra)


class Masked(TwoInputs):
    def forward(self, x, mask=None, scale=1.0):
        return super().forward(x, mask) * scale


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("wrap", [lambda model: model, torch.jit.script], ids=["module", "script"])
def test_an_optional_second_input_is_used(wrap):
    model = wrap(TwoInputs())
    expected = effdeg.measure(model, {"x": X, "extra": EXTRA}, **FAST)
    measured = effdeg.measure(model, TensorDataset(X, EXTRA, Y), **FAST)
    assert torch.equal(measured.per_path, expected.per_path)
    assert "passed to the model: x, extra" in str(measured)
    assert "passed to the model" not in str(effdeg.measure(model, TensorDataset(X, Y), **FAST))


@pytest.mark.parametrize("data", [TensorDataset(X, EXTRA, Y), TensorDataset(X, EXTRA)], ids=["labels", "no labels"])
def test_required_inputs_are_used(data):
    expected = effdeg.measure(Required(), (X, EXTRA), **FAST)
    assert torch.equal(effdeg.measure(Required(), data, **FAST).per_path, expected.per_path)


@pytest.mark.parametrize("mask", [(X > 0), (X > 0).long().clamp(min=MASK[:, :6])], ids=["booleans", "integers"])
def test_masks_among_floating_inputs(mask):
    expected = effdeg.measure(Masked(), {"x": X, "mask": mask}, **FAST)
    for data in ((X, mask), TensorDataset(X, mask, Y), TensorDataset(X, mask)):
        assert torch.equal(effdeg.measure(Masked(), data, **FAST).per_path, expected.per_path)


def test_what_no_parameter_takes_is_noted():
    measured = effdeg.measure(mlp(), TensorDataset(X, Y, EXTRA), **FAST)
    assert torch.equal(measured.per_path, effdeg.measure(mlp(), X, **FAST).per_path)
    assert "of each item of the data, [2] (6,) is not used" in str(measured)
    two = effdeg.measure(mlp(), TensorDataset(X, Y, Y, torch.zeros(N, 3, 2)), **FAST)
    assert "of each item of the data, [2] (), [3] (3, 2) are not used" in str(two)
    masked = effdeg.measure(mlp(), TensorDataset(X, X > 0, Y), **FAST)
    assert "of each item of the data, [1] (6,), [2] () are not used" in str(masked)
    # One number per example is no mask.
    assert "[2] () is not used" in str(effdeg.measure(Masked(), TensorDataset(X, Y, Y), **FAST))
    assert not effdeg.measure(mlp(), TensorDataset(X, Y), **FAST).settings.notes


@pytest.mark.parametrize(
    ("model", "entries"),
    [
        *((model, (X, X > 0, Y)) for model in (lambda x, labels=None, mask=None: x, lambda x, y=None: x)),
        *((lambda x, labels=None, mask=None: x, (X, (X > -9).long(), *rest)) for rest in ((), (Y,))),
        *((model, (X, X > 0)) for model in (lambda x, z=None: x, lambda x, *, mask=None: x)),
        *((lambda x, **more: x, entries) for entries in ((X, X > 0), (X, X > 0, Y))),
        *((model, (X, e)) for model in (lambda x, *more: x, lambda *given: given[0]) for e in (X > 0, EXTRA)),
    ],
)
def test_a_mask_is_not_taken_for_labels(model, entries):
    with pytest.raises(TypeError, match=r"\[0\] \(6,\), \[1\] \(6,\).*not clear which entries are inputs"):
        effdeg.measure(model, TensorDataset(*entries), **FAST)


@pytest.mark.parametrize("model", [mlp(), torch.tanh, lambda x, y=None: x, lambda x, flag=False: x])
@pytest.mark.parametrize("labels", [X > 0, EXTRA, Y > 0], ids=["booleans", "floats", "one boolean"])
def test_a_model_of_one_input_takes_pairs_with_any_labels(model, labels):
    measured = effdeg.measure(model, TensorDataset(X, labels), **FAST)
    assert torch.equal(measured.per_path, effdeg.measure(model, X, **FAST).per_path)
    assert "of each item" not in str(measured)


def test_a_mask_is_passed_by_a_keyword_of_its_name():
    net, mask = mlp(), X > 0
    measured = effdeg.measure(lambda x, *, mask=None: net(x * mask), TensorDataset(X, mask, Y), **FAST)
    assert torch.equal(measured.per_path, effdeg.measure(Masked(), {"x": X, "mask": mask}, **FAST).per_path)
    assert "passed to the model: x, mask" in str(measured)


def test_names_that_match_no_parameter_are_noted(bert):
    note = "'mask' matches no parameter of BertForSequenceClassification by name; it may ignore it."
    wrong = {"input_ids": IDS, "mask": MASK}
    for data in (wrong, [{**{k: v[i] for k, v in wrong.items()}, "labels": 0} for i in range(N)]):
        assert note in str(effdeg.measure(bert, data, **AT))
    assert "no parameter" not in str(effdeg.measure(bert, NAMED, **AT))
    assert "no parameter" not in str(effdeg.measure(lambda **x: bert(**x), NAMED, **FAST, at=bert.bert.embeddings))


@pytest.mark.parametrize(
    "entries",
    [(IDS, 0 * MASK, Y), (IDS, MASK, MASK, Y), (IDS, IDS), (IDS, Y, Y), (IDS, MASK, MASK)],
    ids=["token types", "two inputs", "labels of tokens", "index", "mask and token types"],
)
def test_what_is_unclear_is_refused(bert, entries):
    advice = r"takes input_ids, attention_mask,.*dicts by the names of its parameters, \{'input_ids': …, 'attention_"
    with pytest.raises(TypeError, match=r"each item of the data holds \[0\] \(7,\), \[1\] \(.*not clear.*" + advice):
        effdeg.measure(bert, TensorDataset(*entries), **AT)


def test_an_unclear_pair_is_refused():
    with pytest.raises(TypeError, match=r"TwoInputs takes x, extra.*\{'x': …, 'extra': …, 'labels': …\}"):
        effdeg.measure(TwoInputs(), TensorDataset(X, EXTRA), **FAST)
    with pytest.raises(TypeError, match=r"names of the parameters of the model.*are not known"):
        effdeg.measure(lambda *given: given[0], TensorDataset(X, EXTRA, Y), **FAST)


def test_a_possible_mask_without_a_name_is_not_passed_over(bert):
    layer = bert.bert.embeddings
    with pytest.raises(TypeError, match=r"inputs \('\[1\]'\) hold integers.*are they a mask\? Pass a mask as booleans"):
        effdeg.measure(lambda *given: bert(*given).logits, (IDS, MASK), at=layer, **FAST)
    measured = effdeg.measure(lambda i, m: bert(i, m).logits, (IDS, MASK), at=layer, **FAST)
    assert "hold the integers 0 and 1, and stay those of the first example" in str(measured)


@pytest.mark.parametrize("flags", [MASK.bool(), MASK], ids=["booleans", "integers"])
def test_a_mask_is_not_passed_as_another_argument(flags):
    def model(ids, past=None, types=None, attention_mask=None):
        return mlp()(torch.nn.functional.one_hot(ids % 6, 6).float().mean(1))

    advice = r"inputs \('past', by their place\) may be a mask.*as 'attention_mask'.*\{'ids': …, 'attention_mask': …\}"
    for run in (partial(effdeg.measure, **FAST), effdeg.Penalty(at="0")):
        with pytest.raises(TypeError, match=advice):
            run(model, (IDS, flags))


def test_a_padding_mask_by_position_is_joined_as_by_name():
    net, hidden = mlp(), torch.rand(X.shape, generator=torch.Generator().manual_seed(0)) < 0.4

    def model(x, pad=None):
        return net(x.masked_fill(pad, 0.0))

    traced = effdeg.trace(model, (X, hidden), paths=10, nodes=8)
    (first, second), alpha = traced.pairs.T, traced.alpha[..., None].float()
    points = alpha * X[first, None] + (1 - alpha) * X[second, None]
    expected = net(points.masked_fill((hidden[first] & hidden[second])[:, None], 0.0)).flatten(0, 1)
    torch.testing.assert_close(traced.outputs, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "low"), [("mask", -torch.inf), ("mask", -1e9), ("pad", -1e9), ("mask", -100.0)])
def test_a_mask_that_is_added_to_scores_is_not_interpolated(name, low):
    scores = torch.zeros(N, 6).masked_fill(MASK[:, :6] == 0, low)
    with pytest.raises(ValueError, match=rf"inputs \('{name}'\) hold -(inf|1e\+09|100), as a mask that is added to"):
        effdeg.measure(lambda x, **more: mlp()(x + more[name].exp()), {"x": X, name: scores}, **FAST)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (namedtuple("Tokens", NAMED), r"Tokens was passed as one argument.*inputs\._asdict\(\)"),
        (make_dataclass("Words", NAMED), r"Words was passed as one argument.*vars\(inputs\)"),
    ],
)
def test_the_error_of_a_model_that_gets_an_object_says_so(bert, make, advice):
    with pytest.raises(AttributeError) as raised:
        effdeg.measure(bert, make(**NAMED), **AT)
    assert any(re.search(advice, note) for note in raised.value.__notes__)


def test_other_positions_of_parameters():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=8, pad_token_id=0, bos_token_id=1, eos_token_id=1
    )
    gpt = transformers.GPT2ForSequenceClassification(config)
    run = partial(effdeg.measure, gpt, at="transformer.wte", **FAST)
    ids, mask = IDS.flip(1), MASK.flip(1)  # padded on the left, where words would see the padding
    expected = run({"input_ids": ids, "attention_mask": mask})
    assert not torch.equal(run(ids).per_path, expected.per_path)
    assert torch.equal(run(TensorDataset(ids, mask, Y)).per_path, expected.per_path)
    with pytest.raises(TypeError, match=r"it is not clear.*\{'input_ids': …, 'attention_mask': …, 'labels': …\}"):
        run(TensorDataset(IDS, MASK))


def test_a_mask_in_floating_point_among_the_inputs_is_noted():
    """It is interpolated, and so gives another value than the same mask as booleans."""
    x, mask = torch.randn(10, 4, 6), (torch.arange(4) < 1 + torch.arange(10)[:, None] % 4).float()

    def model(x, mask):
        return (x * mask[..., None]).sum(1)

    settings = {"paths": 4, "nodes": 12, "degree": 4}
    for data in ({"x": x, "mask": mask}, (x, mask)):
        assert any("mask in floating point" in note for note in effdeg.measure(model, data, **settings).notes())
    noted = effdeg.measure(model, {"x": x, "mask": mask.bool()}, **settings).notes()
    assert not any("mask in floating point" in note for note in noted)
    with pytest.warns(UserWarning, match=r"inputs \('mask'\) are a mask in floating point"):
        effdeg.Penalty()(model, {"x": x, "mask": mask})


class TakesMore(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = mlp()

    def forward(self, x, more=None):
        return self.network(x) if more is None else self.network(x + more.mean(1, keepdim=True))


def test_amounts_that_are_taken_for_labels_are_noted_where_the_model_may_take_them():
    amounts, note = torch.arange(2.0 * N).view(N, 2), "[1] is taken for labels, not for 'more'; to pass it, give dicts"
    labels = {"amounts": amounts, "soft labels": amounts.softmax(1), "numbers": amounts[:, 0], "classes": Y}
    noted = {
        name: any(note in each for each in effdeg.measure(TakesMore(), TensorDataset(X, each), **FAST).warnings())
        for name, each in labels.items()
    }
    assert noted == {"amounts": True, "soft labels": False, "numbers": False, "classes": False}
    assert not any(note in each for each in effdeg.measure(mlp(), TensorDataset(X, amounts), **FAST).warnings())


@pytest.mark.parametrize("labels", [Y.float(), EXTRA[:, :1]], ids=["float", "targets"])
def test_more_tensors_than_the_model_takes_are_named(labels):
    with pytest.raises(
        TypeError, match=r"inputs are 2 tensors, but Sequential takes input\. Give inputs without labels"
    ):
        effdeg.measure(mlp(), (X, labels), **FAST)
