"""How the program starts and ends, in processes of its own."""

import importlib
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import effdeg


def imported(code, *names):
    """Run code in a fresh process; gives which of these modules it imported."""
    code = f"import sys\n{code}\nprint([name for name in {list(names)} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stderr.splitlines()[-1]


def test_the_library_does_not_import_the_command_line_or_the_extras():
    code = "import effdeg\nfor name in effdeg.__all__: getattr(effdeg, name)\neffdeg.Penalty()"
    extras = ("matplotlib", "transformers", "peft", "lightning", "pyarrow", "safetensors")
    assert imported(code, "torch", "rich", "typer", *extras) == "['torch']"


@pytest.mark.parametrize(
    "commands",
    [
        [["--help"], ["--version"], ["measure", "nets:mlp", "--dta", "x.npy"], ["mesure"]],
        [[command, "--help"] for command in ("measure", "compare", "pool", "rank", "demo")],
    ],
)
def test_help_and_mistyped_options_do_not_wait_for_torch(commands):
    code = f"from effdeg.cli._app import main\nfor each in {commands}:\n  try: main(each)\n  except SystemExit: pass"
    assert imported(code, "torch", "numpy", "typer") == "['typer']"


def test_the_names_of_the_library_are_found_when_they_are_used():
    assert set(effdeg.__all__) <= set(dir(effdeg))
    for name in effdeg.__all__:
        assert getattr(effdeg, name) is not None
    importlib.import_module("effdeg.measuring")
    assert effdeg.measure.__module__ == "effdeg.measuring._estimator", "the function, not the folder"
    with pytest.raises(AttributeError, match="module 'effdeg' has no attribute 'mesure'"):
        effdeg.mesure  # noqa: B018
    code = "from effdeg import *\nfrom effdeg import Penalty\nimport effdeg\neffdeg.functional.fit, measure, Penalty"
    assert imported(code, "effdeg.train._penalty") == "['effdeg.train._penalty']"


def test_importing_the_main_module_runs_nothing():
    module = "effdeg.__main__"
    assert imported(f"sys.argv = ['x', '--version']\nimport {module}", module) == f"['{module}']"


def test_an_interrupt_ends_with_130(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 12), dtype=np.float32))
    (tmp_path / "slow_nets.py").write_text(
        "import sys, time\n\ndef mlp():\n    print('ready', file=sys.stderr, flush=True)\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "effdeg", "measure", "slow_nets:mlp", "--data", "x.npy", "--json"]
    # A job in the background, as the tests may be, ignores interrupts, and so would its child.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, preexec_fn=heed, **pipes) as process:
        assert process.stderr.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
