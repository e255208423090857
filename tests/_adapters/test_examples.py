import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, SubsetRandomSampler, TensorDataset

import effdeg
from effdeg._adapters import examples as examples_module
from tests.models import mlp, never

FAST = {"paths": 10, "nodes": 8, "degree": 4}
X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (30,), generator=torch.Generator().manual_seed(1))


class Recording(Dataset):
    def __init__(self, item):
        self.item, self.asked = item, set()

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.asked.add(index)
        return self.item(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def generator():
    for start in range(0, 30, 7):
        yield X[start : start + 7], Y[start : start + 7]


SAME = {
    "array": X.numpy(),
    "pairs": TensorDataset(X, Y),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=7),
    "shuffled loader": DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True),
    "loader of one batch an item": DataLoader([(X[:20], Y[:20]), (X[20:], Y[20:])], batch_size=None),
    "stream": DataLoader(Stream(), batch_size=4),
    "subset": DataLoader(TensorDataset(X, Y), batch_size=4, sampler=range(30)),
    "generator": generator(),
    "examples from a stream": Stream(),
    "list of examples with labels": list(zip(X, Y.tolist(), strict=True)),
    "list of named examples with labels": [{"input": x, "label": y} for x, y in zip(X, Y, strict=True)],
    "loader over a list": DataLoader([(x, torch.eye(4)[y]) for x, y in zip(X, Y, strict=True)]),
    "data set of arrays": Recording(lambda index: (X[index].numpy(), int(Y[index]))),
}


@pytest.mark.parametrize("kind", SAME)
def test_every_kind_of_inputs_gives_the_same_result(kind):
    expected = effdeg.measure(mlp(), X, **FAST)
    assert torch.equal(effdeg.measure(mlp(), SAME[kind], **FAST).per_path, expected.per_path)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (list(X), r"list of 30 Tensors, the first of shape \(6,\),.*torch.stack\(inputs\).*torch.cat\(inputs\)"),
        (list(X.numpy()), r"list of 30 ndarrays.*np.stack\(inputs\).*np.concatenate\(inputs\)"),
        ([(X[:11], Y[:11]), (X[11:], Y[11:])], r"entries of type tuple.*DataLoader\(inputs\).*iter\(inputs\)"),
        ([{"x": x} for x in X], r"entries of type dict.*DataLoader\(inputs\).*iter\(inputs\)"),
        (X.tolist(), r"a list of numbers. Write torch.tensor\(inputs\)"),
        ([X, Y], r"the last of shape \(30,\). If they are inputs and labels, pass the inputs alone"),
    ],
)
def test_a_list_of_examples_or_of_batches_is_not_guessed(inputs, message):
    with pytest.raises(TypeError, match=message):
        effdeg.measure(mlp(), inputs, **FAST)


class DataFrame:
    """As that of pandas, it has columns as items, and rows as its length."""

    def __len__(self):
        return 6

    def __getitem__(self, column):
        return self.to_numpy()[:, column]

    def to_numpy(self):
        return X[:6].numpy()


def test_columns_of_a_data_frame_are_not_taken_for_examples():
    with pytest.raises(TypeError, match=r"inputs are a DataFrame\. Write torch.tensor\(inputs.to_numpy\(\)"):
        effdeg.measure(mlp(), DataFrame(), **FAST)


def test_an_iterator_of_single_examples_is_not_taken_for_batches():
    with pytest.raises(ValueError, match=r"single label or number each.*Write list\(inputs\)"):
        effdeg.measure(mlp(), iter(list(zip(X, Y, strict=True))), **FAST)
    for alone in (TensorDataset(X, Y), TensorDataset(X[:, None].expand(-1, 7, -1))):
        with pytest.raises(ValueError, match="those of a TensorDataset are single examples"):
            effdeg.measure(mlp(), DataLoader(alone, batch_size=None), **FAST)


def test_an_iterator_may_write_every_batch_into_the_same_memory():
    def read(memory, batch):
        memory[:] = batch
        return memory

    for memory in (torch.empty(5, X.shape[1]), np.empty((5, X.shape[1]), dtype=np.float32)):
        batches = (read(memory, batch) for batch in X[:20].split(5))
        assert effdeg.measure(mlp(), batches, **FAST).value == effdeg.measure(mlp(), X[:20], **FAST).value


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.cycle(X)


@pytest.mark.parametrize(
    ("inputs", "line"),
    [
        (itertools.repeat(X), r"itertools.islice\(inputs, 10\)"),
        (DataLoader(Endless(), batch_size=50), r"itertools.islice\(inputs, 10\)"),
        (Endless(), r"itertools.islice\(DataLoader\(inputs, batch_size=100\), 10\)"),
    ],
    ids=["batches", "loader", "stream"],
)
@pytest.mark.parametrize("limit", ["MOST_EXAMPLES", "MOST_BYTES"])
def test_an_endless_iterable_is_left_in_time(inputs, line, limit, monkeypatch):
    monkeypatch.setattr(examples_module, limit, 1000)
    with pytest.raises(ValueError, match=rf"inputs go on after .* and may never end.*{line}"):
        effdeg.measure(mlp(), inputs, **FAST)
    line = line.replace("\\", "").replace("inputs", "given")
    part = eval(line, {"itertools": itertools, "DataLoader": DataLoader, "given": inputs})
    monkeypatch.undo()
    assert effdeg.measure(mlp(), part, **FAST).settings.examples >= 30


BROKEN = X.clone()
BROKEN[17, 2], BROKEN[23] = torch.nan, torch.inf


@pytest.mark.parametrize("kind", ["tensor", "array", "dict", "batches"])
def test_bad_numbers_in_the_data_are_found_before_any_forward_pass(kind):
    inputs = {
        "tensor": BROKEN,
        "array": BROKEN.numpy(),
        "dict": {"x": X, "y": BROKEN},
        "batches": iter(BROKEN.split(7)),
    }[kind]
    where = r" \('y'\)" if kind == "dict" else ""
    with pytest.raises(ValueError, match=rf"the data are NaN or infinite: inputs{where} in example 17 \(and in 1 more"):
        effdeg.measure(never, inputs, paths=1, nodes=5, degree=2)


@pytest.mark.parametrize("wrap", [lambda data: data, DataLoader], ids=["data set", "loader"])
def test_bad_numbers_in_a_data_set_are_named_by_index(wrap):
    data = wrap(TensorDataset(BROKEN, Y))
    pairs = effdeg.measure(mlp(), X, paths=100, nodes=8, degree=4).pairs
    block = next(each for each in pairs.split(16) if ((each == 17) | (each == 23)).any())
    first = next(index for index in block.T.flatten().tolist() if index in {17, 23})
    with pytest.raises(ValueError, match=rf"the data are NaN or infinite: inputs in example {first}\b"):
        effdeg.measure(mlp(), data, paths=100, nodes=8, degree=4)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [(row, 0) for row in x]], ids=["array", "examples"])
def test_a_masked_array_is_refused(wrap):
    with pytest.raises(TypeError, match=r"masked array of numpy.*x.filled\(0.0\).*x.compressed\(\)"):
        effdeg.measure(never, wrap(np.ma.masked_greater(X.numpy(), 1.0)), **FAST)


def test_labels_that_are_no_tensors_do_no_harm():
    boxes = [torch.ones(index % 3, 4) for index in range(len(X))]
    expected = effdeg.measure(mlp(), X, **FAST)
    for labels in (boxes, [{"boxes": each} for each in boxes], list("ab" * 15), [[1] * (i % 4) for i in range(30)]):
        for data in (Recording(lambda index, those=labels: (X[index], those[index])), zip([X], [labels], strict=True)):
            assert torch.equal(effdeg.measure(mlp(), data, **FAST).per_path, expected.per_path)


def test_a_mask_that_is_added_may_be_infinite_at_a_layer_only():
    model = nn.Linear(6, 4)
    inputs = {"x": X, "mask": torch.where(X[:, :4] > 0, 0.0, -torch.inf)}
    run = partial(effdeg.measure, lambda x, mask: (model(x) + mask).softmax(-1), inputs, output="identity", **FAST)
    assert run(at=model).value > 0
    with pytest.raises(ValueError, match=r"inputs \('mask'\) hold -inf.*Give booleans"):
        run()


def test_a_data_set_is_asked_for_drawn_examples_only():
    data = Recording(lambda index: X[index])
    measured = effdeg.measure(mlp(), data, paths=4, nodes=8, degree=4)
    assert data.asked == set(measured.pairs.flatten().tolist())
    loaded = Recording(lambda index: X[index])
    effdeg.measure(mlp(), DataLoader(loaded, batch_size=5, shuffle=True), paths=4, nodes=8, degree=4)
    assert loaded.asked == data.asked


class OwnOrder(SequentialSampler):
    """A sampler of a kind that reads all examples in order, but does not."""

    def __iter__(self):
        return iter([13, 8, 5, 3])


SOME = {
    "own order": {"batch_size": 2, "sampler": OwnOrder(X)},
    "subset": {"batch_size": 2, "sampler": SubsetRandomSampler([3, 5, 8, 13])},
    "own batches": {"batch_sampler": [[0, 1], [2, 3]]},
    "batches of a subset": {
        "batch_sampler": torch.utils.data.BatchSampler(SubsetRandomSampler([3, 5, 8, 13]), 2, False)
    },
}


@pytest.mark.parametrize("kind", SOME)
def test_a_sampler_decides_which_examples_there_are(kind):
    measured = effdeg.measure(mlp(), DataLoader(TensorDataset(X, Y), **SOME[kind]), **FAST)
    assert measured.settings.examples == 4


def test_a_distributed_sampler_shares_out_all_examples():
    sampler = torch.utils.data.DistributedSampler(TensorDataset(X, Y), num_replicas=2, rank=1)
    measured = effdeg.measure(mlp(), DataLoader(TensorDataset(X, Y), batch_size=4, sampler=sampler), **FAST)
    assert torch.equal(measured.per_path, effdeg.measure(mlp(), X, **FAST).per_path)


def test_a_loader_that_pads_each_batch_pads_both_ends_alike():
    texts = [torch.randn(3 + index % 5, 2) for index in range(20)]

    def pad(items):
        return torch.nn.utils.rnn.pad_sequence(items, batch_first=True)

    measured = effdeg.measure(lambda x: x.sum(1), DataLoader(texts, batch_size=4, collate_fn=pad), **FAST)
    assert measured.value > 0
    with pytest.raises(ValueError, match=r"cannot make one batch of 20 drawn examples.*pad text to one length"):
        effdeg.measure(lambda x: x.sum(1), DataLoader(texts, batch_size=4), **FAST)


def test_constants_beside_tensors_reach_the_model():
    inputs = {"x": X, "scale": 2, "flag": True}
    measured = effdeg.measure(lambda x, scale, flag: x * scale if flag else None, inputs, **FAST)
    assert torch.equal(measured.per_path, effdeg.measure(lambda x: 2 * x, X, **FAST).per_path)


def test_a_model_that_writes_all_its_outputs_into_the_same_memory():
    model, buffer, output = mlp(), torch.empty(256, 4), "identity"  # 40 paths of 8 nodes take two batches

    def reusing(x):
        return buffer[: len(x)].copy_(model(x))

    expected = effdeg.measure(model, X, output=output, paths=40, nodes=8, degree=4)
    measured = effdeg.measure(reusing, X, output=output, paths=40, nodes=8, degree=4)
    torch.testing.assert_close(measured.per_path, expected.per_path)
    traced = effdeg.trace(reusing, X, paths=40, nodes=8).fit(degree=4, output=output)
    torch.testing.assert_close(traced.per_path, expected.per_path)


@pytest.mark.parametrize(
    "wrap",
    [
        partial(torch.utils.data.Subset, indices=range(5)),
        lambda items: items,
        lambda items: DataLoader(items, batch_size=2),
    ],
)
def test_images_of_pillow_are_told_how_to_become_tensors(wrap):
    items = [(Image.new("L", (4, 3), 40 * label), label) for label in range(5)]
    with pytest.raises(TypeError, match=r"are images of Pillow, not tensors\. Convert each: (.*), or give") as raised:
        effdeg.measure(nn.Flatten(), wrap(items), paths=5)
    code = re.search(r"Convert each: (.*), or give", str(raised.value))[1]
    converted = [(eval(code, {"image": image, "torch": torch, "numpy": np}), label) for image, label in items]
    assert effdeg.measure(nn.Flatten(), converted, paths=5).settings.outputs == (36,)


def test_a_missing_item_is_named():
    class Holes(Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return None if index == 3 else (torch.zeros(2), index)

    with pytest.raises(TypeError, match=r"inputs\[3\] is None"):
        effdeg.measure(nn.Identity(), Holes(), paths=20)


@pytest.mark.parametrize(("change", "shape"), [(lambda x: x[1:], "9, 6"), (lambda x: x.repeat(2, 1), "20, 6")])
def test_a_loader_returns_a_row_for_each_example(change, shape):
    loader = DataLoader(TensorDataset(X), 3, collate_fn=lambda items: change(torch.stack([x for (x,) in items])))
    with pytest.raises(ValueError, match=rf"the loader returned \({shape}\) for 10 drawn examples; each needs one row"):
        effdeg.measure(nn.Identity(), loader, paths=5)
    expected = effdeg.measure(nn.Identity(), torch.cat([change(x) for x in X.split(3)]), paths=5)
    assert torch.equal(effdeg.measure(nn.Identity(), iter(loader), paths=5).per_path, expected.per_path)
