"""The command line, typed."""

import sys

import pytest

from effdeg.cli._app import main


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
