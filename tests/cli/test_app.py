import sys
from pathlib import Path

import numpy as np
import pytest

import effdeg
from effdeg.cli._app import main
from tests.cli.networks import SMALL


def test_help_and_version(run):
    assert run("pool", "-h")[1] == run("pool", "--help")[1]
    assert "--install-completion" in run("-h")[1]
    assert run("--version")[1] == f"effdeg {effdeg.__version__}\n"
    code, out, _ = run("measure", "--help")
    assert code == 0
    for text in ("Hugging Face", ".pt2", "--tolerance", "--at", "No labels are needed"):
        assert text in out
    assert "as soon as it is measured; after an interruption, the same command continues" in run("pool", "--help")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", "tests.cli.networks:smal"], "has no 'smal'. Did you mean 'small'"),
        (["measure", "tests.cli.networks"], "expected package.module:callable, a Hugging Face model folder"),
        (["measure", "tests.cli.networks:number"], "is a int; expected an nn.Module"),
        (["measure", SMALL, "--degree", "300"], "--nodes 200 cannot determine a polynomial of --degree 300"),
        (["measure", SMALL, "--at", "9"], "--at 9 is not a layer of this model"),
        (["measure", SMALL, "--plot", "figure.gif"], "expected a file that ends in .pdf or .png or .svg"),
        (["measure", SMALL, "--plot", "absent/figure.png"], "the folder absent does not exist"),
        (["measure", SMALL, "--save", "m.txt"], "expected a file that ends in .json"),
        (["measure", SMALL, "--device", "foo"], "--device foo is not a device. Write 'cpu', 'cuda', 'cuda:0' or"),
        (["measure", SMALL, "--weights", "absent.pt"], "absent.pt does not exist"),
        (["measure", "tests/cli/networks.py:small"], "as in an import, relative to the working directory: tests.cli"),
        (["measure", "tests.cli.networks:wide"], "called without arguments and must return the model, but wide needs"),
        (["measure", "tests.cli.networks:Wide"], "but Wide needs width"),
        (["measure", SMALL, "--mean", "a,b"], "--mean 'a,b' is not a list of numbers"),
        (
            ["measure", SMALL, "--mean", "0,0", "--std", "0.2,0"],
            "--std 0.2,0.0: images are divided by it, so it must be positive",
        ),
        (["measure", SMALL, "--mean", "0.5"], "--mean and --std belong together"),
        (["compare", SMALL], "a comparison needs at least two models"),
        (["compare", SMALL, SMALL, "--weights", "a.pt"], "2 models and 1 weights"),
    ],
)
def test_mistakes_end_with_one_clear_sentence(run, data, arguments, message):
    code, out, err = run(*arguments, "--data", data)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert "Traceback" not in err


def test_a_model_that_fails_says_so_and_where_on_request(run, tmp_path, monkeypatch):
    np.save(tmp_path / "bad.npy", np.zeros((5, 7), dtype=np.float32))
    code, _, err = run("measure", SMALL, "--data", tmp_path / "bad.npy")
    assert code == 2
    assert "RuntimeError, probably raised by the model's own code; effdeg --traceback" in err
    monkeypatch.setattr(sys, "argv", ["effdeg", "--traceback", "measure", SMALL, "--data", str(tmp_path / "bad.npy")])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        main()


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
