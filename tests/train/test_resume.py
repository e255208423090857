import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "resume.py"


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch, capsys):
    def run(name):
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / f"{name}.pt")])
        with torch.random.fork_rng():
            runpy.run_path(str(EXAMPLE), run_name="__main__")

    def kill(state, file, save=torch.save):
        """Write the fourth checkpoint, which is not put in place."""
        save(state, file)
        if state["step"] == 60:
            raise InterruptedError

    run("whole")
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", kill)
        with pytest.raises(InterruptedError):
            run("killed")
    assert not (tmp_path / "killed.final").exists()
    run("killed")
    assert "going on at step 40" in capsys.readouterr().out
    whole, resumed = (torch.load(tmp_path / f"{name}.final", weights_only=True) for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
