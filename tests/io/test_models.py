import logging
import sys
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import effdeg
from effdeg.io import load_model
from tests.cli import networks

X = torch.rand(20, 12)
FAST = {"paths": 10, "nodes": 8, "degree": 4}


@pytest.mark.parametrize("name", ["small", "Net", "instance"])
def test_from_code(name):
    assert isinstance(load_model(f"tests.cli.networks:{name}"), nn.Module)


def test_a_plain_function_is_a_model_but_takes_no_weights(tmp_path):
    model = load_model("tests.cli.networks:plain_function")
    assert model(X).shape == (20, 12)
    with pytest.raises(ValueError, match=r"not an nn.Module, so it cannot take weights"):
        load_model("tests.cli.networks:plain_function", tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["instance", "cached"])
def test_each_weights_have_a_model_of_their_own(tmp_path, name):
    models = []
    for number in (1.0, 2.0):
        state = {key: torch.full_like(value, number) for key, value in networks.small().state_dict().items()}
        torch.save(state, tmp_path / f"{number}.pt")
        models.append(load_model(f"tests.cli.networks:{name}", tmp_path / f"{number}.pt"))
    assert [model[1].bias[0].item() for model in models] == [1.0, 2.0]


def test_a_model_that_cannot_be_copied_is_made_again(tmp_path):
    torch.save(networks.normed().state_dict(), tmp_path / "w.pt")
    assert isinstance(load_model("tests.cli.networks:normed", tmp_path / "w.pt"), nn.Linear)
    with pytest.raises(ValueError, match="is a single model, which is copied before it gets weights, but cannot be"):
        load_model("tests.cli.networks:NORMED", tmp_path / "w.pt")


def test_a_script_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "my_script.py").write_text("from torch import nn\n\ndef make():\n    return nn.Linear(3, 2)\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(load_model("my_script:make"), nn.Linear)


def test_a_script_that_imports_more_when_it_is_called(tmp_path, monkeypatch):
    (tmp_path / "lazy_helper.py").write_text("from torch import nn\n\nlayer = nn.Linear(3, 2)\n")
    (tmp_path / "lazy_script.py").write_text("def make():\n    from lazy_helper import layer\n\n    return layer\n")
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    assert isinstance(load_model("lazy_script:make"), nn.Linear)
    assert sys.path == before


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"optimizer": {"state": {}, "lr": 0.1}, "model": s, "loss": {"weight": torch.ones(2)}},
        lambda s: {"net": s, "accuracy": 93.1},
    ],
)
@pytest.mark.parametrize("prefix", ["", "module._orig_mod.", "_orig_mod.module.", "net."])
def test_weights_from_the_usual_wrappers(tmp_path, wrap, prefix):
    torch.manual_seed(3)
    expected = networks.small()
    torch.save(wrap({prefix + name: value for name, value in expected.state_dict().items()}), tmp_path / "w.pt")
    found = load_model("tests.cli.networks:small", tmp_path / "w.pt")
    torch.testing.assert_close(found(X), expected(X))


def test_weights_that_do_not_fit(tmp_path):
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"fit Sequential: 4 weights of the model are not in the file \(1.bias"):
        load_model("tests.cli.networks:small", tmp_path / "other.pt")
    state = networks.small().state_dict() | {"1.weight": torch.zeros(8, 13)}
    torch.save(state, tmp_path / "shape.pt")
    with pytest.raises(ValueError, match=r"1.weight is \(8, 13\) in the file and \(8, 12\) in the model"):
        load_model("tests.cli.networks:small", tmp_path / "shape.pt")
    torch.save({}, tmp_path / "empty.pt")
    file = tmp_path / "other names.pt"
    state = networks.normalized().state_dict()
    torch.save({f"net{name}": value for name, value in state.items()}, file)
    # The counter of BatchNorm is no weight.
    said = r"8 weights of the model are not in the file \(.*\), 8 weights of the file are not in the model"
    with pytest.raises(ValueError, match=said):
        load_model("tests.cli.networks:normalized", file)
    torch.save({name: value for name, value in state.items() if name != "0.bias"}, file)
    with pytest.raises(ValueError, match=r": 1 weight of the model is not in the file \(0.bias\)\.$"):
        load_model("tests.cli.networks:normalized", file)
    with pytest.raises(ValueError, match=r"empty.pt does not fit Sequential: 4 weights of the model are not in the"):
        load_model("tests.cli.networks:small", tmp_path / "empty.pt")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
def test_quantized_weights_are_not_taken_for_numbers(tmp_path, dtype):
    state = networks.normalized().state_dict() | {"0.weight": torch.zeros(8, 12, dtype=dtype)}
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "quantized.pt")
    with pytest.raises(ValueError, match=r"holds integers where .*\(0.weight in \w+\).*save the weights in floating"):
        load_model("tests.cli.networks:normalized", tmp_path / "quantized.pt")


def test_files_that_are_not_weights(tmp_path):
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(ValueError, match=r"text.pt is not a file that torch.save wrote, or it is damaged\.$"):
        load_model("tests.cli.networks:small", tmp_path / "text.pt")
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"x.npy holds arrays of numpy, not weights by name"):
        load_model("tests.cli.networks:small", tmp_path / "x.npy")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        torch.jit.save(torch.jit.script(networks.small()), tmp_path / "script.pt")
    with pytest.raises(ValueError, match=r"holds a TorchScript module. Save tensors: torch.save\(model.state_dict\(\)"):
        load_model("tests.cli.networks:small", tmp_path / "script.pt")
    torch.save(networks.small().state_dict() | {"epoch": 3}, tmp_path / "more.pt")
    with pytest.raises(ValueError, match=r"more.pt holds more than weights: epoch. Save the weights alone"):
        load_model("tests.cli.networks:small", tmp_path / "more.pt")
    with pytest.raises(ValueError, match=r"is not a model.*give the code of its model: weights='.*more.pt'\."):
        load_model(str(tmp_path / "more.pt"))
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds list, not weights by name"):
        load_model("tests.cli.networks:small", tmp_path / "list.pt")
    torch.save(networks.small(), tmp_path / "whole.pt")  # a pickled module could run any code
    with pytest.raises(ValueError, match=r"pickled torch.nn.modules.container.Sequential.*model.state_dict") as raised:
        load_model("tests.cli.networks:small", tmp_path / "whole.pt")
    assert "weights_only" not in str(raised.value)


class _Unsafe:
    def __reduce__(self):
        return exec, ("raise SystemExit('the file was run')",)


def test_an_unsafe_pickle_is_refused_and_not_run(tmp_path):
    torch.save({"state_dict": _Unsafe()}, tmp_path / "unsafe.pt")
    with pytest.raises(ValueError, match=r"pickled \S*exec, not tensors alone. Pickled objects are not read") as raised:
        load_model("tests.cli.networks:small", tmp_path / "unsafe.pt")
    assert "weights_only" not in str(raised.value)


def test_averaged_weights(tmp_path):
    expected = networks.small()
    averaged = torch.optim.swa_utils.AveragedModel(expected)
    torch.save({"state_dict_ema": averaged.state_dict()}, tmp_path / "w.pt")
    loaded = load_model("tests.cli.networks:small", tmp_path / "w.pt")
    assert all(map(torch.equal, loaded.parameters(), expected.parameters()))


def test_weights_of_a_loss_next_to_those_of_the_model_are_left_out(tmp_path):
    expected = networks.small()
    state = {f"net.{name}": value for name, value in expected.state_dict().items()} | {"loss.weight": torch.ones(3)}
    torch.save({"state_dict": state}, tmp_path / "w.ckpt")
    with pytest.warns(UserWarning, match=r"w.ckpt has the weights of the model under 'net.'; .* out \(loss.weight\)"):
        loaded = load_model("tests.cli.networks:small", tmp_path / "w.ckpt")
    assert all(map(torch.equal, loaded.parameters(), expected.parameters()))
    torch.save(state | {f"average.{name}": value for name, value in expected.state_dict().items()}, tmp_path / "w.ckpt")
    with pytest.raises(ValueError, match=r"9 weights of the file are not in the model \(average.1.bias"):
        load_model("tests.cli.networks:small", tmp_path / "w.ckpt")


def test_several_sets_of_weights(tmp_path):
    """Those of a name that is usual are taken, and the others are named; else nobody knows which are meant."""
    first, second = networks.small().state_dict(), networks.small().state_dict()
    torch.save({"ema": second, "model": first}, tmp_path / "w.pt")
    with pytest.warns(UserWarning, match=r"w.pt has weights in 'model' and in 'ema': those in 'model' .*\)\['ema'\]"):
        loaded = load_model("tests.cli.networks:small", tmp_path / "w.pt")
    assert all(torch.equal(first[name], value) for name, value in loaded.state_dict().items())
    torch.save({"online": first, "target": second, "epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"w.pt holds several sets of weights: online, target. Save the weights"):
        load_model("tests.cli.networks:small", tmp_path / "w.pt")
    torch.save({"lr": 0.1, "epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"w.pt holds no weights by name \(a state dict\): lr, epoch. Save the"):
        load_model("tests.cli.networks:small", tmp_path / "w.pt")


def test_what_load_state_dict_accepts_is_accepted(tmp_path):
    # torch fills in the counters of BatchNorm that checkpoints before torch 0.4.1 do not have.
    expected = networks.normalized().eval()
    expected[1].running_mean.fill_(0.3)
    old = {f"module.{name}": value for name, value in expected.state_dict().items() if "num_batches" not in name}
    torch.save({"state_dict": old}, tmp_path / "old.th")
    torch.testing.assert_close(load_model("tests.cli.networks:normalized", tmp_path / "old.th").eval()(X), expected(X))
    torch.save(networks.Counting().state_dict(), tmp_path / "extra.pt")
    assert load_model("tests.cli.networks:Counting", tmp_path / "extra.pt").calls == 3
    # Of what is really absent, the counters that torch fills in are no part.
    torch.save({name: value for name, value in old.items() if not name.startswith("module.0")}, tmp_path / "half.pt")
    with pytest.raises(ValueError, match=r"2 weights of the model are not in the file \(0.bias, 0.weight\)\.$"):
        load_model("tests.cli.networks:normalized", tmp_path / "half.pt")


def test_a_model_that_refuses_its_weights_says_why(tmp_path):
    torch.save(networks.Counting().state_dict() | {"_extra_state": {}}, tmp_path / "extra.pt")
    with pytest.raises(ValueError, match=r"extra.pt does not fit Counting: 'calls'"):
        load_model("tests.cli.networks:Counting", tmp_path / "extra.pt")


def test_an_exported_program(tmp_path):
    torch.manual_seed(0)
    model = networks.small().eval()
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (X,), dynamic_shapes=({0: batch},)), tmp_path / "m.pt2")
    loaded = load_model(str(tmp_path / "m.pt2"))
    measured = effdeg.measure(loaded, X, **FAST)
    torch.testing.assert_close(measured.per_path, effdeg.measure(model, X, **FAST).per_path, rtol=1e-5, atol=1e-8)
    exact = effdeg.measure(loaded, X, dtype=torch.float64, **FAST)
    torch.testing.assert_close(measured.per_path, exact.per_path, rtol=1e-3, atol=1e-6)
    whole = (tmp_path / "m.pt2").read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    with (
        mock.patch.object(logging.getLogger("torch.export"), "handle") as logged,
        pytest.raises(ValueError, match=r"cut.pt2 is not a program that torch.export saved, or it is damaged"),
    ):
        load_model(str(tmp_path / "cut.pt2"))
    logged.assert_not_called()
    with pytest.raises(ValueError, match="has its own weights"):
        load_model(str(tmp_path / "m.pt2"), tmp_path / "w.pt")


def test_a_hugging_face_folder(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path / "bert")
    ids = torch.randint(30, (10, 5))
    capsys.readouterr()
    torch.testing.assert_close(load_model(str(tmp_path / "bert"))(ids).logits, model(ids).logits)
    assert capsys.readouterr().err == ""  # no progress bar
    assert transformers.utils.logging.is_progress_bar_enabled()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"a folder without config.json"):
        load_model(str(tmp_path / "empty"))
