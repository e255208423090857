import sys

import numpy as np
import pytest
import torch

from effdeg.cli._app import main
from tests.cli import networks


@pytest.fixture
def run(monkeypatch, capsys):
    """Type a command; gives its exit code, its output and its errors."""

    def typed(*arguments, width=200):
        monkeypatch.setattr(sys, "argv", ["effdeg", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", str(width))
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return typed


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, np.random.default_rng(0).random((30, 12), dtype=np.float32))
    return file


@pytest.fixture
def weights(tmp_path):
    files = []
    for scale in (1.0, 4.0, 8.0):
        torch.manual_seed(0)
        model = networks.small()
        with torch.no_grad():
            model[3].weight.mul_(scale)
        files.append(tmp_path / f"scale{scale:g}.pt")
        torch.save({"state_dict": model.state_dict()}, files[-1])
    return files
