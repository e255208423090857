import os
from pathlib import Path

import numpy as np
import pytest

from effdeg.lab.data import images, load
from tests.lab.data import sets

TRAIN, TEST = sets.examples(20, (3, 32, 32), seed=0), sets.examples(10, (3, 32, 32), seed=1)


@pytest.fixture
def folder(tmp_path):
    sets.write_cifar10_parquet(tmp_path / "data" / "cifar10", TRAIN, TEST)
    return tmp_path / "data"


@pytest.fixture
def decoding(monkeypatch):
    """Count how many images are decoded."""
    seen = []
    original = images.Pixels.__call__
    monkeypatch.setattr(images.Pixels, "__call__", lambda *given: seen.append(1) or original(*given))
    return seen


def test_images_are_decoded_once(folder, cache, decoding):
    sets.assert_holds(load("cifar10", folder), TRAIN, TEST)
    assert len(decoding) >= 30
    decoding.clear()
    sets.assert_holds(load("cifar10", folder), TRAIN, TEST)
    assert not decoding
    assert [file.suffix for file in cache.iterdir()] == [".npz"]  # nothing temporary stays


def test_other_files_are_decoded_anew(folder, decoding):
    load("cifar10", folder)
    file = folder / "cifar10" / "test-00000-of-00001.parquet"
    before = file.stat()
    other = TEST[0], np.roll(TEST[1], 1)
    sets.write_parquet(file, *other)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    sets.assert_holds(load("cifar10", folder), TRAIN, other)


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "nonsense", "other"])
def test_a_damaged_cache_is_built_again(folder, cache, decoding, damage):
    load("cifar10", folder)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    if damage == "other":
        np.savez(kept, x=np.arange(3))
    else:
        kept.write_bytes({"cut": whole[:-100], "changed": changed, "empty": b"", "nonsense": b"nonsense"}[damage])
    decoding.clear()
    sets.assert_holds(load("cifar10", folder), TRAIN, TEST)
    assert len(decoding) >= 30
    decoding.clear()
    sets.assert_holds(load("cifar10", folder), TRAIN, TEST)
    assert not decoding


def test_a_cache_that_cannot_be_written_is_no_error(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "file"))
    sets.assert_holds(load("cifar10", folder), TRAIN, TEST)

    def full(*given, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("EFFDEG_CACHE", str(tmp_path / "full"))
    monkeypatch.setattr(os, "fsync", full)
    sets.assert_holds(load("cifar10", folder), TRAIN, TEST)
    assert not list((tmp_path / "full" / "data").iterdir())


def test_without_a_setting_the_cache_lies_in_the_home(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("EFFDEG_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load("cifar10", folder)
    assert len(list((tmp_path / "home" / ".cache" / "effdeg" / "data").iterdir())) == 1


def test_without_a_home_nothing_is_kept(folder, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EFFDEG_CACHE")
    monkeypatch.setattr(Path, "home", homeless)
    sets.assert_holds(load("cifar10", folder), TRAIN, TEST)
