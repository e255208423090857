import json
import math
import os
from hashlib import sha256

import pytest

from effdeg._utils.files import checksum, list_weights, make_folder, to_json, write_atomically, write_json


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(28, "No space left on device")

    file = tmp_path / "kept.txt"
    write_atomically(file, b"old")
    monkeypatch.setattr(*(os, "fsync") if call == "fsync" else (type(file), "replace"), full)
    with pytest.raises(OSError, match=r"No space left on device: '.*kept\.txt'$"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_errors_name_the_file_that_was_to_be_written(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none/kept\.txt cannot be written: the folder .*none does not exist"):
        write_atomically(tmp_path / "none" / "kept.txt", b"new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*folder'$"):
        write_atomically(tmp_path / "folder", b"new")
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_json_has_null_for_what_json_does_not_have(tmp_path):
    value = {"a": math.nan, "b": [1.5, math.inf, (2, -math.inf)], "c": "x", "d": None}
    expected = {"a": None, "b": [1.5, None, [2, None]], "c": "x", "d": None}
    assert json.loads(to_json(value)) == expected
    write_json(tmp_path / "value.json", value)
    assert json.loads((tmp_path / "value.json").read_text()) == expected
    assert "\n" not in to_json(value)


def test_a_folder_that_cannot_be_made(tmp_path):
    make_folder(tmp_path / "a" / "b", "figures")
    make_folder(tmp_path / "a" / "b", "figures")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"figures cannot be kept in .*file: it is a file\."):
        make_folder(tmp_path / "file", "figures")
    with pytest.raises(OSError, match=r"figures cannot be kept in .*inside: Not a directory\."):
        make_folder(tmp_path / "file" / "inside", "figures")


def test_checksums_of_one_and_of_several_files(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"one")
    (tmp_path / "b.safetensors").write_bytes(b"two")
    one, two = (sha256(content).hexdigest() for content in (b"one", b"two"))
    files = list_weights(tmp_path)
    assert [file.name for file in files] == ["a.bin", "b.safetensors"]
    assert list_weights(files[0]) == files[:1]
    assert checksum(files[0]) == one
    assert checksum(*files) == sha256(f"{one}{two}".encode()).hexdigest()
