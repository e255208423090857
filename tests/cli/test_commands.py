"""The commands as a user types them, in processes of their own where that matters."""

import hashlib
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import effdeg
from effdeg.cli._app import main
from tests.cli import networks

FAST = ["--paths", "20", "--nodes", "12", "--degree", "6"]
SMALL = "tests.cli.networks:small"


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, np.random.default_rng(0).random((30, 12), dtype=np.float32))
    return file


@pytest.fixture
def weights(tmp_path):
    """Checkpoints of one network, ever sharper."""
    files = []
    for scale in (1.0, 4.0, 8.0):
        torch.manual_seed(0)
        model = networks.small()
        with torch.no_grad():
            model[3].weight.mul_(scale)
        files.append(tmp_path / f"scale{scale:g}.pt")
        torch.save({"state_dict": model.state_dict()}, files[-1])
    return files


def test_measure_prints_what_the_library_measures(run, data, weights, tmp_path):
    plot, kept = tmp_path / "figure.png", tmp_path / "m.json"
    code, out, _ = run("measure", SMALL, "--weights", weights[0], "--data", data, *FAST, "--plot", plot, "--save", kept)
    assert code == 0
    model = networks.small()
    model.load_state_dict(torch.load(weights[0], weights_only=True)["state_dict"])
    expected = effdeg.measure(model, np.load(data), paths=20, nodes=12, degree=6)
    assert f"{expected.value:.4g} ± {expected.stderr:.2g}" in out
    assert effdeg.Measurement.load(kept).value == pytest.approx(expected.value)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_measure_as_json(run, data):
    code, out, _ = run("measure", SMALL, "--data", data, *FAST, "--json", "--basis", "legendre", "--components", 2)
    record = json.loads(out)
    assert code == 0
    assert record["settings"]["basis"] == "legendre"
    assert record["settings"]["components"] == 2
    assert len(record["per_path"]) == 20


def test_compare_ranks_checkpoints_of_one_model(run, data, weights, tmp_path):
    plot = tmp_path / "ranking.png"
    given = [argument for file in weights for argument in ("--weights", file)]
    code, out, _ = run("compare", SMALL, *given, "--data", data, *FAST, "--plot", plot)
    assert code == 0
    positions = [out.index(name) for name in ("scale1 ", "scale4 ", "scale8 ")]
    assert positions == sorted(positions)
    assert "The simplest is scale1, significantly so" in out
    assert plot.exists()
    code, out, _ = run(
        "compare", SMALL, SMALL, "--weights", weights[2], "--weights", weights[0], "--data", data, *FAST, "--json"
    )
    assert json.loads(out)["ranking"] == [f"{SMALL} (2)", f"{SMALL} (1)"]


def test_compare_says_when_models_cannot_be_told_apart(run, data, weights):
    code, out, _ = run("compare", SMALL, "--weights", weights[0], "--weights", weights[0], "--data", data, *FAST)
    assert code == 0
    assert "is not distinguishable from" in out


def test_demo_writes_its_folder_and_its_command_works(run, tmp_path):
    folder = tmp_path / "demo"
    code, out, _ = run("demo", "--out", folder)
    assert code == 0
    names = {file.name for file in folder.iterdir()}
    figures = {
        f"{name}-{theme}.png" for name in ("method", "training", "comparison", "penalty") for theme in ("light", "dark")
    }
    assert names == figures | {"index.html", "comparison.json", "penalty.json", "digits.npy", "gentle.pt", "hasty.pt"}
    effect = json.loads((folder / "penalty.json").read_text())
    assert len(effect["plain"]) == len(effect["penalized"]) == len(effect["seeds"])
    assert effect["differences"]["degree"]["high"] < 0  # whatever else it does, the penalty makes networks simpler
    page = (folder / "index.html").read_text()
    assert "width=device-width, initial-scale=1" in page
    # On a phone, tables and figures scroll by themselves, not the page.
    assert page.count('<div class="scroll"><table>') == 1
    assert page.count('<div class="scroll"><picture') == 4
    alts = re.findall(r'alt="([^"]*)"', page)
    assert all(len(alt) > 100 for alt in alts)
    assert len(set(alts)) == 4
    # The difference of the accuracies has an interval, and a sentence joins the two halves.
    for text in (page, out):
        assert re.search(r"held-out labels .* against .* points\)\. Its loss is .*95% interval", html.unescape(text))
        assert "making a network simpler need not make it better" in text
    assert "Trained with the penalty" in page
    assert "Trained with the penalty" in out
    command = out.strip().splitlines()[-1].split()[1:]
    code, out, _ = run(*command, "--json")
    assert code == 0
    record = json.loads(out)
    stored = json.loads((folder / "comparison.json").read_text())
    assert record["ranking"] == stored["ranking"]
    assert record["measurements"]["gentle"]["value"] == pytest.approx(
        stored["measurements"]["gentle"]["value"], rel=1e-5
    )


def test_help_and_version(run):
    assert run("--version")[1] == f"effdeg {effdeg.__version__}\n"
    code, out, _ = run("measure", "--help")
    assert code == 0
    for text in ("Hugging Face", ".pt2", "--tolerance", "--at", "No labels are needed"):
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", "tests.cli.networks:smal"], "has no 'smal'. Did you mean 'small'"),
        (["measure", "no.such.module:small"], "there is no Python module 'no'"),
        (["measure", "tests.cli.networks"], "expected package.module:callable, a Hugging Face model folder"),
        (["measure", "tests.cli.networks:number"], "is a int; expected an nn.Module"),
        (["measure", SMALL, "--degree", "300"], "--nodes 200 cannot determine a polynomial of --degree 300"),
        (["measure", SMALL, "--at", "9"], "--at 9 is not a layer of this model"),
        (["measure", SMALL, "--plot", "figure.gif"], "expected a file that ends in .pdf or .png or .svg"),
        (["measure", SMALL, "--plot", "absent/figure.png"], "the folder absent does not exist"),
        (["measure", SMALL, "--save", "m.txt"], "expected a file that ends in .json or .safetensors"),
        (["measure", SMALL, "--device", "cuda:77"], "cuda"),
        (
            ["measure", SMALL, "--device", "foo"],
            "--device foo is not a device. Write 'cpu', 'cuda', 'cuda:0' or 'mps'.",
        ),
        (["measure", SMALL, "--weights", "absent.pt"], "absent.pt does not exist"),
        (["measure", "../../etc:passwd"], "'../../etc' is not the name of a Python module"),
        (
            ["measure", "tests/cli/networks.py:small"],
            "as in an import, relative to the working directory: tests.cli.netw",
        ),
        (["measure", "tests.cli.networks:wide"], "called without arguments and must return the model, but wide needs"),
        (["measure", "tests.cli.networks:wide"], "such as def make(): return wide(…), or, if wide is the model itself"),
        (["measure", "tests.cli.networks:Wide"], "but Wide needs width"),
        (["measure", SMALL, "--mean", "a,b"], "--mean 'a,b' is not a list of numbers"),
        (["measure", SMALL, "--std", "0.2,0"], "--std 0.2,0.0: images are divided by it, so it must be positive"),
        (["measure", SMALL, "--size", "0"], "Invalid value for '--size'"),
        (["compare", SMALL], "a comparison needs at least two models"),
        (["compare", SMALL, SMALL, "--weights", "a.pt"], "2 models and 1 weights"),
    ],
)
def test_mistakes_end_with_one_clear_sentence(run, data, arguments, message):
    code, out, err = run(*arguments, "--data", data)
    assert code == 2
    assert out == ""
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err


def test_a_model_that_fails_says_so_and_where_on_request(run, tmp_path, monkeypatch):
    np.save(tmp_path / "bad.npy", np.zeros((5, 7), dtype=np.float32))
    code, _, err = run("measure", SMALL, "--data", tmp_path / "bad.npy")
    assert code == 2
    assert "RuntimeError, probably raised by the code of a model or recipe; effdeg --traceback" in err
    monkeypatch.setattr(sys, "argv", ["effdeg", "--traceback", "measure", SMALL, "--data", str(tmp_path / "bad.npy")])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        main()


def test_under_torchrun_one_process_prints_the_single_process_result(data, weights):
    arguments = ["-m", "effdeg", "measure", SMALL, "--weights", str(weights[1]), "--data", str(data), *FAST, "--json"]
    options = {"capture_output": True, "text": True, "check": True, "timeout": 120}
    single = subprocess.run([sys.executable, *arguments], **options)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    shared = subprocess.run([*launcher, *arguments], **options)
    assert json.loads(shared.stdout)["value"] == pytest.approx(json.loads(single.stdout)["value"], rel=1e-6)


def test_weights_that_code_draws_are_drawn_from_the_seed_and_said_to_be_untrained(run, data):
    command = ["tests.cli.networks:drawn", "--data", data, *FAST, "--json"]
    first, again, other = (run("measure", *command, "--seed", seed) for seed in (0, 0, 1))
    values = [json.loads(out)["value"] for _, out, _ in (first, again, other)]
    assert values[0] == values[1] != values[2]
    assert "note: no --weights: tests.cli.networks:drawn is measured as its code makes it with --seed 0" in first[2]
    _, out, err = run("compare", "tests.cli.networks:drawn", SMALL, "--data", data, *FAST, "--json")
    compared = json.loads(out)["measurements"]
    assert compared["tests.cli.networks:drawn"]["value"] == values[0]
    assert err.count("note: no --weights: tests.cli.networks:drawn, tests.cli.networks:small") == 1
    assert compared[SMALL]["settings"]["weights"] == "as tests.cli.networks:small makes them with seed 0"
    assert compared[SMALL]["settings"]["weights_sha256"] is None


def test_a_measurement_says_what_was_measured(run, weights, tmp_path):
    np.savez(
        tmp_path / "x.npz", x=np.random.default_rng(0).integers(0, 256, (9, 3, 2, 2), dtype=np.uint8), y=np.arange(9)
    )
    kept = tmp_path / "m.safetensors"
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


def test_compare_passes_on_the_notes_of_each_model(run, data, weights):
    code, out, _ = run(
        "compare", SMALL, "--weights", weights[0], "--weights", weights[2], "--data", data, *FAST[:4], "--degree", 11
    )
    assert code == 0
    # What all models have in common is printed once.
    assert out.count("note: nodes = degree + 1") == 1
    for name in ("scale1", "scale8"):
        assert re.search(rf"note on {name}: \d+% of the value lies in the upper half", out)


@pytest.mark.parametrize("option", ["--save", "--plot"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_result_is_printed_before_it_is_written(run, data, tmp_path, monkeypatch, option, form):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(effdeg.Measurement, "save", full)
    monkeypatch.setattr("effdeg.cli._measure.write_figure", full)
    file = tmp_path / ("m.json" if option == "--save" else "m.png")
    code, out, err = run("measure", SMALL, "--data", data, *FAST, option, file, *form)
    assert code == 2
    assert "effective degree" in out or json.loads(out)["value"] > 0
    assert f"error: {file} could not be written: No space left on device. The result above is complete." in err
    assert not list(tmp_path.glob("m.*"))


@pytest.mark.parametrize(
    "command",
    [
        ["measure", SMALL, "--data", "x.npy", "--save", "{}/m.json"],
        ["measure", SMALL, "--data", "x.npy", "--plot", "{}/m.png"],
        ["compare", SMALL, SMALL, "--data", "x.npy", "--plot", "{}/m.png"],
        ["rank", "pool.csv", "--plot", "{}/m.png"],
        ["demo", "--out", "{}"],
    ],
)
def test_where_nothing_can_be_written_no_work_is_done(run, tmp_path, monkeypatch, command):
    def read_only(**options):
        assert Path(options["dir"]) == tmp_path
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    code, out, err = run(*(part.format(tmp_path) for part in command))
    assert (code, out) == (2, "")
    assert f"{command[-2]}: no file can be written into {tmp_path}: Read-only file system" in err


def test_the_folder_of_the_demo_is_no_file(run, tmp_path):
    (tmp_path / "taken").write_text("")
    code, out, err = run("demo", "--out", tmp_path / "taken")
    assert (code, out) == (2, "")
    assert f"--out: the demonstration cannot be kept in {tmp_path / 'taken'}: it is a file." in err


def test_a_folder_is_no_file(run, data, tmp_path):
    (tmp_path / "m.json").mkdir()
    code, _, err = run("measure", SMALL, "--data", data, *FAST, "--save", tmp_path / "m.json")
    assert code == 2
    assert "m.json: this is a folder; expected the name of a file" in err


def test_progress_can_be_silenced(run, data, weights):
    given = ["--weights", weights[0], "--data", data, *FAST]
    assert run("measure", SMALL, *given)[2] != ""
    assert run("measure", SMALL, *given, "--quiet")[2] == ""
    assert run("compare", SMALL, *given, "--weights", weights[1], "--quiet")[2] == ""


def test_images_with_the_channels_last_get_a_hint(run, tmp_path):
    np.save(tmp_path / "hwc.npy", np.zeros((6, 9, 9, 3), dtype=np.uint8))
    code, _, err = run("measure", "tests.cli.networks:colours", "--data", tmp_path / "hwc.npy", *FAST)
    assert code == 2
    assert "seems to hold images as N × height × width × channels, (6, 9, 9, 3)" in err
    assert "x.transpose(0, 3, 1, 2)" in err


def test_an_error_in_the_users_module_says_where(run, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_nets.py").write_text("import os\nimport doesnotexist\n")
    code, _, err = run("measure", "broken_nets:mlp", "--data", data)
    assert code == 2
    assert "No module named 'doesnotexist'" in err
    assert f"Raised by {tmp_path / 'broken_nets.py'}, line 2, while 'broken_nets' was imported." in err
    (tmp_path / "typo_nets.py").write_text("def mlp(:\n")
    code, _, err = run("measure", "typo_nets:mlp", "--data", data)
    assert code == 2
    assert "(typo_nets.py, line 1)" in err
    assert "Raised while 'typo_nets' was imported." in err
    (tmp_path / "odd_nets.py").write_text("def mlp():\n    return undefined_name\n")
    code, _, err = run("measure", "odd_nets:mlp", "--data", data)
    assert code == 2
    assert "name 'undefined_name' is not defined" in err
    assert str(tmp_path) not in sys.path


def test_weights_as_safetensors(run, data, tmp_path):
    save_file(networks.small().state_dict(), tmp_path / "w.safetensors")
    assert run("measure", SMALL, "--weights", tmp_path / "w.safetensors", "--data", data, *FAST)[0] == 0
