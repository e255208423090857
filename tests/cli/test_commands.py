"""The commands as a user types them, in processes of their own where that matters."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import effdeg
from effdeg.cli.app import main
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
        f"{name}-{theme}.png" for name in ("method", "training", "comparison", "contest") for theme in ("light", "dark")
    }
    assert names == figures | {"index.html", "comparison.json", "contest.json", "digits.npy", "gentle.pt", "hasty.pt"}
    contest = json.loads((folder / "contest.json").read_text())
    assert len(contest["plain"]) == len(contest["penalized"]) == len(contest["seeds"])
    assert contest["differences"]["degree"]["high"] < 0  # whatever else it does, the penalty makes networks simpler
    page = (folder / "index.html").read_text()
    assert "held-out labels" in page
    assert "held-out labels" in out
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
        (["measure", SMALL, "--device", "foo"], "--device foo is not a device: expected cpu, cuda"),
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


def test_the_library_does_not_import_the_command_line_or_the_extras():
    extras = ["rich", "typer", "matplotlib", "transformers", "pyarrow", "safetensors"]
    code = f"import effdeg, sys; print([name for name in {extras} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_weights_as_safetensors(run, data, tmp_path):
    save_file(networks.small().state_dict(), tmp_path / "w.safetensors")
    assert run("measure", SMALL, "--weights", tmp_path / "w.safetensors", "--data", data, *FAST)[0] == 0
