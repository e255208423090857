"""A killed and resumed run ends in the same weights as one never killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "resume.py"


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    subprocess.run([sys.executable, EXAMPLE, tmp_path / "whole.pt"], check=True, capture_output=True, timeout=120)

    file = tmp_path / "killed.pt"
    process = subprocess.Popen([sys.executable, EXAMPLE, file], stdout=subprocess.PIPE)
    while process.poll() is None and not (file.exists() and torch.load(file, weights_only=True)["step"] >= 60):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not file.with_suffix(".final").exists()

    done = subprocess.run([sys.executable, EXAMPLE, file], check=True, capture_output=True, text=True, timeout=120)
    assert "going on at step" in done.stdout
    whole, resumed = (torch.load(tmp_path / f"{name}.final", weights_only=True) for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
