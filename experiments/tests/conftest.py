"""The tests of all folders can import the helpers here, and each other; runs share no data across tests."""

import sys
from pathlib import Path

import pytest

from effdeg_lab.data import load_shared

sys.path += [str(folder) for folder in Path(__file__).parent.rglob("*/") if folder.name != "__pycache__"]


@pytest.fixture(autouse=True)
def _own_data():
    load_shared.cache_clear()
