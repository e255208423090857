import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import effdeg
from tests.cli import networks
from tests.cli.networks import FAST, SMALL


def test_measure_prints_what_the_library_measures(run, data, weights, tmp_path):
    plot, kept = tmp_path / "figure.png", tmp_path / "m.json"
    code, out, _ = run("measure", SMALL, "--weights", weights[0], "--data", data, *FAST, "--plot", plot, "--save", kept)
    assert code == 0
    model = networks.small()
    model.load_state_dict(torch.load(weights[0], weights_only=True)["state_dict"])
    expected = effdeg.measure(model, np.load(data), paths=20, nodes=12, degree=6)
    assert f"{expected.value:.4g} ± {expected.stderr:.2g}" in out
    assert "±: standard error" in out
    assert effdeg.Measurement.load(kept).value == pytest.approx(expected.value)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_measure_as_json(run, data):
    code, out, _ = run("measure", SMALL, "--data", data, *FAST, "--json", "--basis", "legendre", "--components", 2)
    record = json.loads(out)
    assert (code, record["settings"]["basis"], record["settings"]["components"]) == (0, "legendre", 2)
    assert len(record["per_path"]) == 20


def test_under_torchrun_one_process_prints_the_single_process_result(run, data, weights):
    arguments = ["measure", SMALL, "--weights", str(weights[1]), "--data", str(data), *FAST, "--json"]
    code, single, _ = run(*arguments)
    assert code == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "effdeg"]
    shared = subprocess.run([*launcher, *arguments], capture_output=True, text=True, check=True, timeout=540)
    assert json.loads(shared.stdout)["value"] == pytest.approx(json.loads(single)["value"], rel=1e-6)


def test_weights_that_code_draws_are_drawn_from_the_seed_and_said_to_be_untrained(run, data):
    command = ["tests.cli.networks:drawn", "--data", data, *FAST, "--json"]
    first, again, other = (run("measure", *command, "--seed", seed) for seed in (0, 0, 1))
    values = [json.loads(out)["value"] for _, out, _ in (first, again, other)]
    assert values[0] == values[1] != values[2]
    assert "note: no --weights: tests.cli.networks:drawn is measured as its code returns it with --seed 0" in first[2]
    _, out, err = run("compare", "tests.cli.networks:drawn", SMALL, "--data", data, *FAST, "--json")
    compared = json.loads(out)["measurements"]
    assert compared["tests.cli.networks:drawn"]["value"] == values[0]
    assert err.count("note: no --weights: tests.cli.networks:drawn, tests.cli.networks:small") == 1
    assert compared[SMALL]["settings"]["weights"] == "as tests.cli.networks:small makes them with seed 0"
    assert compared[SMALL]["settings"]["weights_sha256"] is None


def test_a_measurement_says_what_was_measured(run, weights, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).integers(0, 256, (9, 3, 2, 2), "u1"), y=np.arange(9))
    kept = tmp_path / "m.json"
    examples = f"--data {tmp_path / 'x.npz'} --key x --mean 0.5,0.4,0.3 --std 0.2".split()
    code, out, err = run("measure", SMALL, "--weights", weights[0], *examples, *FAST, "--save", kept, width=400)
    assert code == 0
    assert "no --weights" not in err
    settings = effdeg.Measurement.load(kept).settings
    assert settings.data == f"{tmp_path / 'x.npz'}, key x"
    assert settings.preprocessing == "mean 0.5,0.4,0.3, std 0.2, bytes scaled to [0, 1]"
    assert settings.weights == str(weights[0])
    assert settings.weights_sha256 == hashlib.sha256(weights[0].read_bytes()).hexdigest()
    for text in (settings.data, "9 examples", settings.preprocessing, settings.weights, settings.weights_sha256[:12]):
        assert text in out
    several = [argument for file in weights for argument in ("--weights", file)]
    code, out, _ = run("compare", SMALL, *several, *examples, *FAST, width=400)
    assert f"data: {settings.data}, 9 examples ({settings.preprocessing})" in out
    code, out, _ = run("compare", SMALL, *several, *examples, *FAST, "--json")
    assert json.loads(out)["measurements"]["scale1"]["settings"]["weights_sha256"] == settings.weights_sha256


def test_an_exported_program_brings_its_weights(run, data, tmp_path):
    exported = torch.export.export(networks.small(), (torch.rand(4, 12),), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(exported, tmp_path / "m.pt2")
    _, out, err = run("measure", tmp_path / "m.pt2", "--data", data, *FAST, "--json")
    settings = json.loads(out)["settings"]
    assert "no --weights" not in err
    assert settings["weights"] == str(tmp_path / "m.pt2")
    assert settings["weights_sha256"] == hashlib.sha256((tmp_path / "m.pt2").read_bytes()).hexdigest()


@pytest.mark.parametrize(("option", "form"), [("--save", []), ("--plot", ["--json"])])
def test_a_result_is_printed_before_it_is_written(run, data, tmp_path, monkeypatch, option, form):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(effdeg.Measurement, "save", full)
    monkeypatch.setattr("effdeg.cli._output.write_figure", full)
    file = tmp_path / ("m.json" if option == "--save" else "m.png")
    code, out, err = run("measure", SMALL, "--data", data, *FAST, option, file, *form)
    assert code == 2
    assert "effective degree" in out or json.loads(out)["value"] > 0
    assert f"error: {file} could not be written: No space left on device. The result above is complete." in err
    assert not list(tmp_path.glob("m.*"))


def test_progress_can_be_silenced(run, data, weights, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take it for a terminal
    given = ["--weights", weights[0], "--data", data, *FAST]
    assert run("measure", SMALL, *given)[2] != ""
    assert run("measure", SMALL, *given, "--quiet")[2] == ""
    assert run("compare", SMALL, *given, "--weights", weights[1], "--quiet")[2] == ""


def test_a_file_with_several_arrays_says_how_to_choose_one(run, data, tmp_path):
    np.savez(tmp_path / "two.npz", np.load(data), np.load(data))
    command = ["measure", SMALL, "--data", tmp_path / "two.npz", *FAST]
    code, _, err = run(*command)
    assert code == 2
    assert "two.npz holds several arrays, which the model gets by name: arr_0, arr_1" in err
    assert "--key arr_0." in err
    assert "(inputs,)" not in err
    assert run(*command, "--key", "arr_0")[0] == 0
    np.savez(tmp_path / "two.npz", x_train=np.load(data), x_test=np.load(data)[:9])
    assert "--key x_train." in run(*command)[2]


@pytest.fixture
def images(tmp_path):
    file = tmp_path / "images.npy"
    np.save(file, np.random.default_rng(0).random((20, 3, 6, 6), dtype=np.float32))
    return file


@pytest.mark.filterwarnings("ignore:.*upper half of the degrees")
def test_partners_by_name(run, images, tmp_path):
    command = ["tests.cli.networks:colors", "--data", images, *FAST, "--json"]
    given = ["--partners", "mirror", "--partners", "mirror+shift(1)"]
    code, out, _ = run("measure", *command, *given)
    assert code == 0
    torch.manual_seed(0)
    model = networks.colors()
    several = [effdeg.changes.mirror, effdeg.changes.compose(effdeg.changes.mirror, effdeg.changes.shift(1))]
    expected = effdeg.measure(model, np.load(images), paths=20, nodes=12, degree=6, partners=several)
    assert json.loads(out)["value"] == pytest.approx(expected.value)
    assert json.loads(out)["settings"]["partners"] == "mirror or mirror + shift(1)"
    torch.save(model.state_dict(), tmp_path / "a.pt")
    torch.save(networks.colors().state_dict(), tmp_path / "b.pt")
    files = [each for name in "ab" for each in ("--weights", tmp_path / f"{name}.pt")]
    code, out, _ = run("compare", *command, *given, *files)
    assert json.loads(out)["measurements"]["a"]["value"] == pytest.approx(expected.value)
