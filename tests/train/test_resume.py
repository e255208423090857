"""A killed and resumed run ends in the same weights as one never killed."""

import runpy
import signal
import subprocess
import sys
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "resume.py"
# Runs the example up to its fourth checkpoint, which it begins to write and does not put in place.
KILLED = """
import os, runpy, signal, sys
import torch

save, count = torch.save, 0

def killed(state, file):
    global count
    count += 1
    save(state, file)
    if count == 4:
        os.kill(os.getpid(), signal.SIGKILL)

torch.save = killed
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*arguments, check=True):
    return subprocess.run([sys.executable, *arguments], check=check, capture_output=True, text=True)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "whole.pt")])
    with torch.random.fork_rng():
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    file = tmp_path / "killed.pt"
    assert run("-c", KILLED, EXAMPLE, file, check=False).returncode == -signal.SIGKILL
    assert not file.with_suffix(".final").exists()

    assert "going on at step 40" in run(EXAMPLE, file).stdout
    whole, resumed = (torch.load(tmp_path / f"{name}.final", weights_only=True) for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
