"""What the tests of commands share: a folder where nothing was run, and a keyboard."""

import sys

import pytest

from effdeg_lab.cli import main
from effdeg_lab.core.runs import RunFolder


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Type a command in an empty folder; return its exit code, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # own_lab.py may change twice within a second
    for name in ("EFFDEG_RUNS", "EFFDEG_DATA"):
        monkeypatch.delenv(name, raising=False)

    def type_command(*arguments):
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return type_command


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "effdeg-runs")
