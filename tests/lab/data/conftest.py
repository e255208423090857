import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache for each test alone."""
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"
