import math
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import effdeg
from effdeg import measure_pool, pools
from effdeg.measuring import IllConditionedFit
from effdeg.pools import _checkpoint
from effdeg.pools._pool import name_checkpoints
from tests.models import mlp

FAST = {"paths": 20, "nodes": 30, "degree": 8}


@pytest.fixture
def loaded(monkeypatch):
    names, load = [], _checkpoint.load_weights

    def record(model, file):
        names.append(file.stem)
        load(model, file)

    monkeypatch.setattr(_checkpoint, "load_weights", record)
    return names


def without_disagreement(rows):
    return [{name: value for name, value in row.items() if name != "disagreement"} for row in rows]


def test_a_pool_is_continued_where_it_ended(folder, data, tmp_path, loaded):
    out = tmp_path / "pool.csv"
    expected = measure_pool(mlp(), [folder], data, **FAST)
    assert loaded == ["a", "b", "c"]
    first = measure_pool(mlp(), [folder / "b.pt"], data, out=out, **FAST)
    assert without_disagreement(first) == without_disagreement([expected[1]])
    assert math.isnan(first[0]["disagreement"])  # there is no other model
    assert measure_pool(mlp(), [folder], data, out=out, **FAST) == expected
    assert loaded == ["a", "b", "c", "b", "a", "c"]
    assert measure_pool(mlp(), [folder], data, out=out, batch_size=5, **FAST) == expected
    assert loaded == ["a", "b", "c", "b", "a", "c"]
    assert list(pools.read_table(out)["model"]) == ["b", "a", "c"]
    # One that was trained again is measured again.
    torch.save(mlp(seed=9).state_dict(), folder / "a.pt")
    with pytest.warns(UserWarning, match="measured again, since the weights have changed: a$"):
        rows = measure_pool(mlp(), [folder], data, out=out, **FAST)
    assert loaded[6:] == ["a"]
    assert without_disagreement(rows[1:]) == without_disagreement(expected[1:])
    assert rows == measure_pool(mlp(), [folder], data, **FAST)
    assert rows[0]["effective_degree"] != expected[0]["effective_degree"]


def test_the_same_weights_are_measured_once(folder, data, tmp_path, loaded):
    shutil.copy(folder / "a.pt", folder / "twin.pt")
    rows = measure_pool(mlp(), [folder], data, out=tmp_path / "pool.csv", **FAST)
    assert loaded == ["a", "b", "c"]
    assert [row["model"] for row in rows] == ["a", "b", "c", "twin"]
    assert rows[0] | {"model": "twin"} == rows[3]
    assert rows[:3] == measure_pool(mlp(), [folder / f"{name}.pt" for name in "abc"], data, **FAST)
    del loaded[3:]
    shutil.move(folder / "b.pt", folder / "renamed.pt")
    rows = measure_pool(mlp(), [folder], data, out=tmp_path / "pool.csv", **FAST)
    assert [row["model"] for row in rows] == ["a", "c", "renamed", "twin"]
    assert sorted(pools.read_table(tmp_path / "pool.csv")["model"]) == ["a", "c", "renamed", "twin"]
    assert len(loaded) == 3


def test_an_interrupted_pool_ends_as_one_that_was_not(folder, data, tmp_path, monkeypatch):
    outs = [tmp_path / part / "pool.csv" for part in ("whole", "parts")]
    for out in outs:
        out.parent.mkdir()
    measure_pool(mlp(), [folder], data, out=outs[0], **FAST)
    for interrupted in ("b", "c"):

        def load(model, file, name=interrupted, load=_checkpoint.load_weights):
            if file.stem == name:
                raise KeyboardInterrupt
            load(model, file)

        with monkeypatch.context() as patch:
            patch.setattr(_checkpoint, "load_weights", load)
            with pytest.raises(KeyboardInterrupt):
                measure_pool(mlp(), [folder], data, out=outs[1], **FAST)
    measure_pool(mlp(), [folder], data, out=outs[1], **FAST)
    whole, parts = ({file.name: file.read_bytes() for file in out.parent.iterdir()} for out in outs)
    assert parts == whole
    assert sorted(whole) == ["pool.csv", "pool.predictions.npz", "pool.settings.json"]


def test_standard_errors_are_not_ranked(folder, data, train):
    rows = measure_pool(mlp(), [folder], data, train=train, components=2, **FAST)
    assert {"effective_degree_stderr", "effective_degree_normalized_stderr@2"} <= rows[0].keys()
    ranked = pools.rank(rows, resamples=100)
    assert {"effective_degree", "effective_degree_normalized@2"} <= ranked.scores.keys()
    assert not [name for name in (*ranked.scores, *ranked.notes()) if "_stderr" in name]


@pytest.mark.parametrize("lost", ["all", "damaged", "one", "of other settings"])
def test_checkpoints_without_predictions_are_measured_again(folder, data, tmp_path, loaded, lost):
    out, kept = tmp_path / "pool.csv", tmp_path / "pool.predictions.npz"
    measure_pool(mlp(), [folder], data, out=out, **FAST)
    out.write_text("".join(f"{line},lr\n" for line in out.read_text().splitlines()))
    table, predictions = out.read_bytes(), kept.read_bytes()
    arrays = dict(np.load(kept))
    if lost == "all":
        kept.unlink()
    elif lost == "damaged":
        kept.write_bytes(predictions[:-30])
    elif lost == "one":
        np.savez(kept, **arrays | {name: arrays[name][[0, 2]] for name in ("sha256", "weights", "outputs", "classes")})
    else:
        np.savez(kept, **arrays | {"settings": "{}", "classes": 1 - arrays["classes"]})
    again = ["b"] if lost == "one" else ["a", "b", "c"]
    with pytest.warns(UserWarning, match=rf"since .*pool\.predictions\.npz lacks .*: {', '.join(again)}$"):
        measure_pool(mlp(), [folder], data, out=out, **FAST)
    assert loaded == ["a", "b", "c", *again]
    assert out.read_bytes() == table
    assert lost == "one" or kept.read_bytes() == predictions


def test_disagreement_is_with_all_rows_of_the_table(folder, data, tmp_path):
    out = tmp_path / "pool.csv"
    expected = measure_pool(mlp(), [folder], data, out=out, **FAST)
    (folder / "c.pt").unlink()
    assert measure_pool(mlp(), [folder], data, out=out, **FAST) == expected[:2]
    out.write_text("".join(out.read_text().splitlines(keepends=True)[:-1]))  # delete the row of c
    rows = measure_pool(mlp(), [folder], data, out=out, **FAST)
    assert rows == measure_pool(mlp(), [folder], data, **FAST)
    assert rows[0]["disagreement"] == rows[1]["disagreement"] != expected[0]["disagreement"]
    assert pools.read_table(out)["disagreement"].tolist() == [row["disagreement"] for row in rows]


def test_the_same_weights_in_another_file_count_once(folder, data, tmp_path):
    expected = measure_pool(mlp(), [folder], data, **FAST)
    torch.save({"state_dict": mlp(seed=2).state_dict(), "epoch": 3}, folder / "nested.pt")
    for _ in ("new", "continued"):
        rows = measure_pool(mlp(), [folder], data, out=tmp_path / "pool.csv", **FAST)
        assert rows[:3] == expected
        assert rows[3]["disagreement"] == rows[1]["disagreement"]


def test_columns_and_rows_that_the_call_does_not_know_are_kept(folder, data, tmp_path):
    out = tmp_path / "pool.csv"
    shutil.copy(folder / "a.pt", folder / "twin.pt")
    measure_pool(mlp(), [folder], data, out=out, **FAST)
    head, *lines = out.read_text().splitlines()
    out.write_text("\n".join([f"{head},lr", *(f"{line},of {line.split(',')[0]}" for line in lines)]) + "\n")
    shutil.move(folder / "twin.pt", folder / "renamed.pt")
    shutil.copy(folder / "c.pt", folder / "b.pt")  # measured before, under another name
    with pytest.warns(UserWarning, match="measured again, since the weights have changed: b$"):
        rows = measure_pool(mlp(), [folder], data, out=out, **FAST)
    expected = {name: f"of {name}" for name in "abc"} | {"renamed": "of twin"}
    assert {row["model"]: row["lr"] for row in rows} == expected
    assert rows[1]["effective_degree"] == rows[2]["effective_degree"]
    table = pools.read_table(out)
    assert dict(zip(table["model"], table["lr"], strict=True)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, r"seed= was 0 then and is 1 now"),
        ({"proxies": ["parameter_norm"]}, r"proxies= was \[\] then and is \['parameter_norm'\] now"),
        ({"components": [2, 3]}, r"components= was \[\] then and is \[2, 3\] now"),
        ({"dtype": torch.float64}, r"dtype= was None then and is float64 now"),
        ({"train": (torch.zeros(4, 6), [0, 1, 2, 3])}, "train= are other examples or labels"),
        ({"model": torch.nn.Linear(6, 4)}, "the model has other layers"),
        ({"model": mlp().double()}, "the model has other layers, weights of another shape or precision"),
        ({"model": mlp(activation=nn.ReLU)}, "the model has other layers"),
        ({"data": torch.zeros(40, 6)}, "data= are other examples or labels"),
    ],
)
def test_other_settings_are_refused(folder, data, tmp_path, options, message):
    given = {"model": mlp(), "weights": [folder], "data": data, "out": tmp_path / "pool.csv", **FAST}
    measure_pool(**given)
    text = given["out"].read_text()
    with pytest.raises(ValueError, match=message):
        measure_pool(**given | options)
    assert given["out"].read_text() == text


@pytest.mark.parametrize(("precision", "dtype"), [(torch.float16, None), (torch.float32, torch.bfloat16)])
def test_half_precision_is_warned_of_once(folder, data, precision, dtype):
    with pytest.warns(UserWarning, match=r"float16, whose rounding counts as complexity.*dtype=torch.float3") as caught:
        measure_pool(mlp().to(precision), [folder], data, proxies=["margin@10"], dtype=dtype, **FAST)
    assert len(caught) == 1
    measure_pool(mlp().to(precision), [folder], data, dtype=torch.float32, **FAST)


def test_checkpoints_that_cannot_be_measured_are_left_out(folder, data, tmp_path):
    (folder / "broken.pt").write_bytes((folder / "a.pt").read_bytes()[:200])
    torch.save(mlp(inputs=5).state_dict(), folder / "other.pt")
    diverged = mlp()
    with torch.no_grad():
        diverged[0].bias[3] = torch.nan
    torch.save(diverged.state_dict(), folder / "diverged.pt")
    out = tmp_path / "pool.csv"
    with pytest.warns(UserWarning, match="left out") as warned:
        rows = measure_pool(mlp(), [folder], data, out=out, **FAST)
    messages = [str(each.message) for each in warned]
    assert len(messages) == 3
    assert "broken left out: " in messages[0]
    assert "it is damaged" in messages[0]
    assert messages[1].startswith("diverged left out: the outputs are NaN or infinite at example 0")
    assert "other left out: " in messages[2]
    assert "1 shapes differ" in messages[2]
    assert [row["model"] for row in rows] == ["a", "b", "c"]
    assert rows == measure_pool(mlp(), [folder / f"{name}.pt" for name in "abc"], data, **FAST)
    # They are tried again, and the table has only rows that can be ranked.
    diverged[0].bias.data[3] = 0
    torch.save(diverged.state_dict(), folder / "diverged.pt")
    with pytest.warns(UserWarning, match="left out"):
        rows = measure_pool(mlp(), [folder], data, out=out, **FAST)
    assert [row["model"] for row in rows] == ["a", "b", "c", "diverged"]
    with (
        pytest.warns(UserWarning, match="broken left out"),
        pytest.raises(ValueError, match=r"no checkpoint could be measured \(1 file\); warnings say why\."),
    ):
        measure_pool(mlp(), [folder / "broken.pt"], data, **FAST)


def test_a_changed_checkpoint_that_fails_has_no_row(folder, data, tmp_path):
    out = tmp_path / "pool.csv"
    measure_pool(mlp(), [folder], data, out=out, **FAST)
    (folder / "b.pt").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="b") as warned:
        rows = measure_pool(mlp(), [folder], data, out=out, **FAST)
    assert "weights have changed: b" in str(warned[0].message)
    assert "b left out" in str(warned[1].message)
    assert [row["model"] for row in rows] == pools.read_table(out)["model"].tolist() == ["a", "c"]


def test_checkpoints_have_the_shortest_names_that_differ(folder):
    assert list(name_checkpoints(folder)) == list(name_checkpoints([folder, folder / "b.pt"])) == ["a", "b", "c"]
    shutil.copy(folder / "a.pt", folder / "epoch=3-step=90.ckpt")  # as Lightning names it
    assert list(name_checkpoints(folder)) == ["a", "b", "c", "epoch=3-step=90"]
    assert name_checkpoints({"first": folder / "a.pt"}) == {"first": folder / "a.pt"}
    (folder / "more").mkdir()
    shutil.copy(folder / "a.pt", folder / "more" / "a.pt")
    both = [folder / "a.pt", folder / "more" / "a.pt"]
    assert name_checkpoints([*both, folder / "b.pt"]) == {str(file): file for file in both} | {"b": folder / "b.pt"}
    with pytest.raises(FileNotFoundError, match=r"d\.pt does not exist\. weights= takes .*\.pt.*, and folders of them"):
        name_checkpoints([folder, folder / "d.pt"])
    with pytest.raises(FileNotFoundError, match=r"\*\.pt does not exist\. Patterns are not expanded"):
        name_checkpoints(folder / "*.pt")
    with pytest.raises(FileNotFoundError, match=r"last: .*more is neither a file nor a Hugging Face model folder"):
        name_checkpoints({"last": folder / "more"})
    for given in ({"last": mlp().state_dict()}, [mlp().state_dict()]):
        with pytest.raises(TypeError, match=r"weights= holds a OrderedDict; expected names of files\. Save"):
            name_checkpoints(given)
    with pytest.raises(ValueError, match="names no checkpoints"):
        name_checkpoints([])
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds no checkpoints \(\.ckpt, \.pt, \.pth, \.safetensors"):
        name_checkpoints([folder / "empty"])
    (folder / "empty" / "run").mkdir()
    (folder / "empty" / "run" / "last.pt").touch()
    with pytest.raises(ValueError, match=r"Folders in it are not searched: name their files, such as .*run.last\.pt\."):
        name_checkpoints([folder / "empty"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "nets:mlp"}, TypeError, "Names of models are for the command line"),
        ({"model": torch.tanh}, TypeError, "checkpoints are loaded into an nn.Module"),
        ({"data": (torch.ones(40, 6).byte(), torch.arange(40) % 4)}, TypeError, r"hold integers \(torch.uint8\)"),
        ({"out": "pool.parquet"}, ValueError, r"out= pool\.parquet: expected a file that ends in \.csv"),
        ({"out": "/proc/pool.csv"}, ValueError, "out=: no file can be written into /proc"),
        ({"out": "no/such/pool.csv"}, ValueError, "the folder no/such does not exist"),
        ({"device": "cuda:99"}, ValueError, "was asked for, but torch finds"),
    ],
)
def test_bad_input_is_refused(folder, data, options, error, message):
    with pytest.raises(error, match=message):
        measure_pool(**{"model": mlp(), "weights": [folder], "data": data} | options)


def test_notes_on_the_fits_are_said_once(folder, data):
    settings = {"paths": 20, "nodes": 10, "degree": 3}
    files = {}
    for scale in (0.1, 4, 9):
        model = mlp(seed=1)
        with torch.no_grad():
            model[0].weight.mul_(scale)
        files[f"scale{scale}"] = folder / f"scale{scale}.pt"
        torch.save(model.state_dict(), files[f"scale{scale}"])
    with pytest.warns(UserWarning, match="of 3 models") as warned:
        measure_pool(mlp(), files, data[0], components=[2], **settings)
    messages = [str(each.message) for each in warned]
    highest = max(effdeg.measure(model, data[0], components=each, **settings).upper_half for each in (None, 2))
    assert len(messages) == 2
    assert messages[0].startswith(
        "for 1 of 3 models (scale0.1): predictions are nearly uniform, each of 4 classes about as likely"
    )
    assert messages[1].startswith(
        f"for 2 of 3 models (scale4, scale9): up to {highest:.0%} of the value lies in the upper half of the "
    )
    with pytest.warns(UserWarning, match="for 1 of 1 model: components=9, but 4 outputs that sum to 1"):
        measure_pool(mlp(), [folder / "a.pt"], data[0], components=[9], **FAST)


@pytest.mark.parametrize("rows", [slice(None), torch.randperm(40), slice(30)], ids=["same", "reordered", "part"])
@pytest.mark.parametrize("kind", [tuple, lambda each: torch.utils.data.TensorDataset(*each)], ids=["batch", "data set"])
def test_examples_that_should_differ_are_refused(folder, data, train, loaded, rows, kind):
    again = tuple(each[rows].clone() for each in data)
    with pytest.raises(ValueError, match=r"data= and train= are the same.*so that every gap would be 0"):
        measure_pool(mlp(), [folder], data, train=kind(again), **FAST)
    assert not loaded
    (row,) = measure_pool(mlp(), [folder / "a.pt"], data[0], train=again, **FAST)
    assert "gap" not in row  # without labels, measures may be those of training examples


def test_what_is_suspicious_about_accuracies(folder):
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    files, classes = [folder / "a.pt"], mlp(seed=1)(x).argmax(1)
    shifted = (classes + 1) % 4
    with pytest.warns(UserWarning, match=r"far below that of guessing, 1 in 4: are the labels") as warned:
        measure_pool(mlp(), files, (x, shifted), **FAST)
    assert len(warned) == 1
    with pytest.warns(UserWarning, match="test accuracy is far below that of guessing, 1 in 4") as warned:
        measure_pool(mlp(), files, (x, shifted), train=(x + 1e-6, classes), **FAST)
    assert len(warned) == 1
    half = torch.where(torch.arange(300) < 150, classes, shifted)
    with pytest.warns(UserWarning, match=r"every model is better on data= than on train=.*swapped\?") as warned:
        measure_pool(mlp(), files, (x[100:200], half[100:200]), train=(x[150:], half[150:]), **FAST)
    assert len(warned) == 1
    measure_pool(mlp(), files, (x[150:], half[150:]), train=(x[100:200], half[100:200]), **FAST)


def test_a_fit_that_is_ill_conditioned_is_said_once(folder, data):
    with pytest.warns(IllConditionedFit) as warned:
        measure_pool(mlp(), [folder], data, paths=5, nodes=41, degree=40, sampling="uniform")
    assert len(warned) == 1


def test_functions_in_a_model_do_not_keep_a_table_from_being_continued(data, tmp_path):
    class Module(nn.Linear):
        def extra_repr(self):
            return repr(lambda: self)  # with an address

    torch.save(nn.Linear(6, 4).state_dict(), tmp_path / "a.pt")
    one, other = (measure_pool(Module(6, 4), tmp_path, data, out=tmp_path / "pool.csv", **FAST) for _ in range(2))
    assert one == other


def test_a_broken_link_among_checkpoints_is_left_out_and_named(folder, data):
    (folder / "aa.pt").symlink_to("gone.pt")
    with pytest.warns(UserWarning, match=r"aa is not measured: .*aa\.pt, a link to gone\.pt: No such file"):
        rows = measure_pool(mlp(), [folder], data, **FAST)
    assert [row["model"] for row in rows] == ["a", "b", "c"]
    with (
        pytest.warns(UserWarning, match="aa is not measured"),
        pytest.raises(ValueError, match="no checkpoint could be measured"),
    ):
        measure_pool(mlp(), [folder / "aa.pt"], data, **FAST)


def test_rows_become_a_frame_and_a_table(folder, data):
    rows = measure_pool(mlp(), {"<a>": folder / "a.pt", "b": folder / "b.pt"}, data, **FAST)
    assert rows == list(rows)
    assert rows.to_frame()["effective_degree"].tolist() == [row["effective_degree"] for row in rows]
    shown, first = rows._repr_html_(), rows[0]
    assert ">&lt;a&gt;</td>" in shown
    assert f">{first['effective_degree']:.4g} ± {first['effective_degree_stderr']:.2g}</td>" in shown
    assert first["sha256"] not in shown


class Scaled(torch.nn.Module):
    """A network with a factor that is not among its weights and not in what it prints."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.network, self.factor = mlp(), factor

    def forward(self, x):
        return self.network(x) * self.factor


def test_a_table_of_another_number_that_is_no_weight_is_not_continued(data, tmp_path):
    for name in "ab":
        torch.save(Scaled().state_dict(), tmp_path / f"{name}.pt")
    settings = {**FAST, "out": tmp_path / "pool.csv"}
    measure_pool(Scaled(1.0), [tmp_path / "a.pt"], data, **settings)
    measure_pool(Scaled(1.0).eval(), [tmp_path / "a.pt"], data, **settings)
    with pytest.raises(ValueError, match=r"the model has .* or other numbers"):
        measure_pool(Scaled(1.001), [tmp_path], data, **settings)


class Ordered(torch.nn.Module):
    def __init__(self, order):
        super().__init__()
        self.network, self.reorder = mlp(), lambda outputs: outputs[:, order]

    def forward(self, x):
        return self.reorder(self.network(x))


def test_a_table_of_another_order_of_classes_is_not_continued(data, tmp_path):
    for seed, name in enumerate("abc"):
        state = {f"network.{key}": value for key, value in mlp(seed=seed).state_dict().items()}
        torch.save(state, tmp_path / f"{name}.pt")
    settings = {**FAST, "out": tmp_path / "pool.csv"}
    measure_pool(Ordered([0, 1, 2, 3]), [tmp_path / "b.pt"], data, **settings)
    table = (tmp_path / "pool.csv").read_bytes()
    with pytest.raises(ValueError, match=r"something else than when b was measured.*order of its classes"):
        measure_pool(Ordered([1, 0, 2, 3]), [tmp_path], data, **settings)
    assert (tmp_path / "pool.csv").read_bytes() == table
    with pytest.warns(UserWarning, match="rows, but of none of the checkpoints in weights="):
        measure_pool(Ordered([0, 1, 2, 3]), [tmp_path / "a.pt"], data, **settings)
    measure_pool(Ordered([0, 1, 2, 3]), [tmp_path], data, **settings)


def test_a_table_of_other_examples_is_not_continued(folder, tmp_path):
    x, y = torch.randn(300, 6), torch.arange(300) % 4
    settings = {**FAST, "out": tmp_path / "pool.csv"}
    measure_pool(mlp(), [folder], (x, y), **settings)
    one_label = torch.where(torch.arange(300) == 201, (y + 1) % 4, y)
    with pytest.raises(ValueError, match="data= are other examples or labels"):
        measure_pool(mlp(), [folder], (x, one_label), **settings)
