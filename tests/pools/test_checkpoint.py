"""The row of a checkpoint, against each of its numbers computed alone."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

import effdeg
from effdeg import measure_pool
from effdeg._adapters.arguments import ItemReader
from effdeg.pools._identity import LabeledExamples
from tests.models import Tokens, mlp

FAST = {"paths": 20, "nodes": 30, "degree": 8}


def count_correct(model, data):
    return sum(
        int(model(x[None])[0].tolist().index(model(x[None])[0].max().item()) == y) for x, y in zip(*data, strict=True)
    )


def test_a_row_holds_what_each_measure_gives_alone(folder, data, train):
    names = ["sharpness@0.05", "jacobian_norm", "parameter_norm"]
    settings = {"components": [1, 3], "proxy_examples": 20, "seed": 4, **FAST}
    rows = measure_pool(mlp(), [folder], data, train=train, proxies=names, **settings)
    for seed, row in enumerate(rows, start=1):
        model = mlp(seed=seed)
        options = {"examples": 20, "seed": 4}
        expected = {"model": "abc"[seed - 1]}
        for components, after in ((None, ""), (1, "@1"), (3, "@3")):
            settings = {**FAST, "seed": 4, "components": components}
            raw = effdeg.measure(model, data[0], **settings)
            logits = effdeg.measure(model, data[0], output="identity", **settings)
            expected[f"effective_degree{after}"] = pytest.approx(raw.value)
            expected[f"effective_degree_stderr{after}"] = pytest.approx(raw.stderr)
            expected[f"effective_degree_normalized{after}"] = pytest.approx(logits.normalized)
            expected[f"effective_degree_normalized_stderr{after}"] = pytest.approx(logits.normalized_stderr)
        for name in ("total_variation", "decision_regions"):  # in every row, of the paths between all examples
            along = getattr(effdeg.proxies, name)(model, data[0], seed=4, **FAST)
            expected[name] = pytest.approx(along.value)
        for name in ("confidence", "entropy", "nuclear_norm"):  # in every row
            expected[name] = getattr(effdeg.proxies, name)(model, data[0], **options).value
        others = [mlp(seed=each) for each in (1, 2, 3) if each != seed]
        expected["disagreement"] = pytest.approx(effdeg.proxies.disagreement(model, data[0], others, **options).value)
        expected["sharpness@0.05"] = effdeg.proxies.sharpness(model, train, cross_entropy, rho=0.05, **options).value
        expected["jacobian_norm"] = effdeg.proxies.jacobian_norm(model, data, **options).value
        expected["parameter_norm"] = effdeg.proxies.parameter_norm(model).value
        expected["train_accuracy"] = count_correct(model, train) / 30
        expected["test_accuracy"] = count_correct(model, data) / 40
        expected["gap"] = expected["train_accuracy"] - expected["test_accuracy"]
        assert list(row) == [*expected, "sha256"]
        assert {name: row[name] for name in expected} == expected


def test_measures_of_predictions(folder, data):
    (row,) = measure_pool(mlp(), [folder / "a.pt"], data[0], **FAST)
    model = mlp(seed=1)
    probabilities = model(data[0]).softmax(1).detach().double()
    assert row["confidence"] == pytest.approx(probabilities.amax(1).mean().item())
    assert row["entropy"] == pytest.approx(-(probabilities * probabilities.log()).sum(1).mean().item())
    names = ["confidence", "entropy", "nuclear_norm", "disagreement"]
    assert list(row)[5:-1] == ["total_variation", "decision_regions", *names]
    for name in ("entropy", "disagreement"):  # in its own place, if it is requested
        (same,) = measure_pool(mlp(), [folder / "a.pt"], data[0], proxies=name, **FAST)
        assert same == row
        assert list(same)[7:-1] == [*(each for each in names if each != name), name]
    with pytest.raises(effdeg.proxies.NotApplicable, match="labeled="):
        measure_pool(mlp(), [folder / "a.pt"], data, proxies=["thresholded_confidence"], **FAST)


@pytest.mark.filterwarnings("ignore:for 1 of 1 model. softmax is over the last of")
def test_a_model_with_several_predictions_per_example_has_no_measures_of_them(tmp_path, data):
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Unflatten(1, (4, 3)))
    torch.save(model.state_dict(), tmp_path / "a.pt")
    (row,) = measure_pool(model, [tmp_path], data[0], **FAST)
    along = ["total_variation", "decision_regions"]
    degrees = ["effective_degree", "effective_degree_normalized"]
    assert list(row) == ["model", *(each + after for each in degrees for after in ("", "_stderr")), *along, "sha256"]
    for name in along:
        alone = getattr(effdeg.proxies, name)(model, data[0], **FAST).value
        assert row[name] == pytest.approx(alone)
    assert measure_pool(model, [tmp_path], data[0], out=tmp_path / "pool.csv", **FAST) == [row]
    assert measure_pool(model, [tmp_path], data[0], out=tmp_path / "pool.csv", **FAST) == [row]  # continued
    for asked in ({"proxies": ["confidence"]}, {"proxies": ["disagreement"]}):
        with pytest.raises(effdeg.proxies.NotApplicable, match="one prediction per example"):
            measure_pool(model, [tmp_path], data[0], **asked, **FAST)


class _Images(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])


@pytest.mark.parametrize("workers", [0, 1])
def test_data_of_any_kind_give_the_same_row(folder, data, workers):
    (expected,) = measure_pool(mlp(), [folder / "a.pt"], data, batch_size=7, **FAST)
    (row,) = measure_pool(mlp(), [folder / "a.pt"], _Images(*data), batch_size=7, workers=workers, **FAST)
    assert row == expected
    if workers:
        return
    for other in (
        (data[0].numpy(), data[1].numpy().astype(np.uint8)),
        (data[0], data[1].tolist()),
        (data[0], data[1][:, None]),
        DataLoader(TensorDataset(*data), batch_size=9),
    ):
        assert measure_pool(mlp(), [folder / "a.pt"], other, batch_size=7, **FAST) == [expected]


@pytest.mark.filterwarnings("ignore:for 1 of 1 model. predictions are nearly uniform")
def test_text_with_paths_at_the_embeddings(tmp_path):
    model = Tokens()
    torch.save(model.state_dict(), tmp_path / "text.pt")
    ids = torch.randint(30, (12, 5), generator=torch.Generator().manual_seed(0))
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(12) % 3}
    (row,) = measure_pool(Tokens(), [tmp_path / "text.pt"], data, at="embed", proxies=["margin@50"], **FAST)
    inputs = {name: data[name] for name in ("input_ids", "attention_mask")}
    logits = model(**inputs)["logits"].detach()
    assert row["test_accuracy"] == (logits.argmax(1) == data["labels"]).sum().item() / 12
    assert row["effective_degree"] == pytest.approx(effdeg.measure(model, inputs, at="embed", **FAST).value)
    assert row["margin@50"] == pytest.approx(effdeg.proxies.margin(model, data, percentile=50).value)


@pytest.mark.filterwarnings("ignore:for 3 of 3 models")  # notes on the fit
@pytest.mark.parametrize("by_loader", [False, True])
def test_examples_that_are_drawn_leave_the_random_state_alone(folder, by_loader):
    class Noise(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return torch.randn(6) + index, index % 4

    model, data = mlp(), Noise()
    if by_loader:
        data = DataLoader(data, batch_size=5, sampler=RandomSampler(data, replacement=True))
    torch.manual_seed(3)
    rows = measure_pool(model, [folder], data, out=folder / "pool.csv", **FAST)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert measure_pool(model, [folder], data, out=folder / "pool.csv", **FAST) == rows  # not refused
    assert measure_pool(model, [folder], data, **FAST) == rows
    assert torch.equal(torch.get_rng_state(), before)


def test_a_large_data_set_is_known_by_examples_that_are_no_regular_part_of_it():
    class Periodic(torch.utils.data.Dataset):
        def __init__(self, changed):
            self.changed = changed

        def __len__(self):
            return 8000

        def __getitem__(self, index):
            return torch.full((2,), float(self.changed and index % 4 == 3)), 0

    one, other = (LabeledExamples(Periodic(changed), "data", ItemReader(len)) for changed in (False, True))
    assert one.fingerprint(0) == one.fingerprint(0)
    assert one.fingerprint(0) != other.fingerprint(0)
    assert not one.shares_inputs_with(other, 0)


def test_the_model_is_run_in_evaluation_mode_and_left_as_it_was(folder, data):
    model = nn.Sequential(*mlp(), nn.Dropout(0.5)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (row,) = measure_pool(model, [folder / "a.pt"], data, **FAST)
    (plain,) = measure_pool(mlp(), [folder / "a.pt"], data, **FAST)
    assert row == plain
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_model_that_begins_with_a_head_of_zeros(folder, data):
    model = mlp()
    nn.init.zeros_(model[2].weight)
    names = ["spectral_margin@10", "mixup_margin"]
    rows = measure_pool(model, [folder], data, proxies=names, **FAST)
    assert rows == measure_pool(mlp(), [folder], data, proxies=names, **FAST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proxies": ["sharpnes@0.05"]}, "is not a known proxy"),
        ({"proxies": ["effective_degree"]}, "has the effective degree anyway"),
        ({"proxies": ["path_norm", "path_norm"]}, "proxies='path_norm' is given twice"),
        ({"components": [3, 1, 1]}, "components=1 is given twice"),
        ({"components": [40]}, "components=40 is too many for nodes=30"),
        ({"degree": 30}, "nodes=30 cannot determine"),
        ({"proxy_examples": 0}, "proxy_examples=0 is too small"),
        ({"workers": -1}, "workers=-1 is too small"),
        ({"train": torch.zeros(4, 6)}, "train= holds no labels"),
        ({"train": (torch.zeros(4, 6), torch.arange(4) + 1)}, "labels of train go from 1 to 4, .* 4 classes"),
        ({"train": (torch.zeros(4, 6), torch.rand(4))}, "labels of train must be class ids"),
    ],
)
def test_bad_settings_are_refused_before_any_work(folder, data, options, message, monkeypatch):
    monkeypatch.setattr("effdeg.pools._checkpoint.load_weights", lambda *_: pytest.fail("work was started"))
    with pytest.raises(ValueError, match=message):
        measure_pool(mlp(), [folder], data, **FAST | options)


def test_proxies_that_need_labels_are_refused_without_them(folder, data):
    with pytest.raises(ValueError, match=r"proxies='sharpness@0\.05' needs labels: give .* train="):
        measure_pool(mlp(), [folder], data[0], proxies=["sharpness@0.05"], **FAST)
    with pytest.raises(ValueError, match="data must hold at least two examples, not 1"):
        measure_pool(mlp(), [folder], data[0][:1], **FAST)


class Reshaped(nn.Module):
    def __init__(self, outputs, reshape):
        super().__init__()
        self.linear, self.reshape = nn.Linear(6, outputs), reshape

    def forward(self, x):
        return self.reshape(self.linear(x))


@pytest.mark.filterwarnings("ignore:for . of . model.*upper half")
def test_notes_and_errors_advise_what_a_pool_has(tmp_path, data):
    def measure(outputs, reshape):
        model = Reshaped(outputs, reshape)
        torch.save(model.state_dict(), tmp_path / "w.pt")
        return measure_pool(model, [tmp_path / "w.pt"], data[0], **FAST)

    with pytest.warns(UserWarning, match="use a model that returns such logits") as words:
        measure(12, lambda y: y.view(-1, 3, 4))
    with pytest.warns(UserWarning, match="To measure another, use a model that returns it alone") as tensors:
        measure(4, lambda y: {"a": y, "b": 2 * y})
    assert not any("output=" in str(each.message) for each in (*words, *tensors))
    with pytest.raises(ValueError, match="probabilities already") as error:
        measure(4, lambda y: y.softmax(-1))
    assert error.value.__notes__ == ["A pool has no output=, since it fits softmax: use a model that returns logits."]
