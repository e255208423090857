import importlib
from pathlib import Path

import pytest


@pytest.fixture
def docs(monkeypatch):
    """Import a module of docs/, whose scripts import each other as files of one folder."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")
    return importlib.import_module
