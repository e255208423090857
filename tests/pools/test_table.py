import json

import pytest
import torch

from effdeg.pools._checkpoint import OUTPUTS, WEIGHTS
from effdeg.pools._table import PoolTable, lock_table, settings_file

ONE, TWO = "1a" * 32, "2b" * 32  # checksums
SETTINGS = {"paths": 4, "data": "abc", "components": [1, 3]}
KEPT = {WEIGHTS: "a hash", OUTPUTS: torch.zeros(2, 3)}


@pytest.fixture
def file(tmp_path):
    table = PoolTable(tmp_path / "pool.csv", SETTINGS, ["degree", "norm"])
    table.add(["one"], ONE, {"degree": 0.1 + 0.2, "norm": float("nan"), "other": 3.0, **KEPT})
    table.add(["two", "three, really"], TWO, {"degree": 1e-300, "norm": float("inf"), **KEPT})
    return table.file


def test_what_was_written_is_read_to_the_last_digit(file):
    rows = PoolTable(file, SETTINGS, ["degree", "norm"]).rows
    assert list(rows) == ["one", "two", "three, really"]
    assert str(rows["one"]) == str({"model": "one", "degree": 0.1 + 0.2, "norm": float("nan"), "sha256": ONE})
    assert rows["two"] | {"model": ""} == rows["three, really"] | {"model": ""}
    assert rows["two"] == {"model": "two", "degree": 1e-300, "norm": float("inf"), "sha256": TWO}
    assert json.loads(settings_file(file).read_text()) == SETTINGS


def test_other_settings_are_refused_and_named(file):
    text = file.read_text()
    with pytest.raises(ValueError, match="paths= was 4 then and is 5 now; at= was None then and is embed now"):
        PoolTable(file, SETTINGS | {"paths": 5, "at": "embed"}, ["degree", "norm"])
    with pytest.raises(ValueError, match=r"pool\.csv was written by another version of effdeg"):
        PoolTable(file, SETTINGS | {"format": 2}, ["degree", "norm"])
    settings_file(file).unlink()
    with pytest.raises(ValueError, match=r"pool\.settings\.json, which has its settings, is missing"):
        PoolTable(file, SETTINGS, ["degree", "norm"])
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model,degree,norm\na,1,2\n", r"it has no column sha256"),
        ("model,degree,sha256\na,1,b\n", r"it has no column norm"),
        (f"model,degree,norm,sha256\na,1,?,{'1a' * 32}\n", r"could not convert string to float: '\?'"),
        ("model\n\x00", r"line contains NUL|it has no column degree"),
        ("", r"it has no column model"),
    ],
)
def test_a_damaged_table_is_refused(file, text, reason):
    file.write_text(text)
    with pytest.raises(ValueError, match=rf"pool\.csv cannot be continued: .*\({reason}\)"):
        PoolTable(file, SETTINGS, ["degree", "norm"])
    assert file.read_text() == text


@pytest.mark.parametrize("kept", [-2, -70])  # within the checksum, and before it
def test_a_row_that_is_cut_short_is_described_and_dropped(file, kept):
    file.write_text(file.read_text()[:kept])
    with pytest.warns(UserWarning, match=r"pool\.csv has rows that are cut short, of three, really: checkpoints that"):
        assert list(PoolTable(file, SETTINGS, ["degree", "norm"]).rows) == ["one", "two"]


def test_one_process_at_a_time_writes_a_table(file):
    before = sorted(file.parent.iterdir())
    with (
        lock_table(file),
        pytest.raises(ValueError, match=r"pool\.csv is being written by another command\. Wait"),
        lock_table(file),
    ):
        pass
    assert sorted(file.parent.iterdir()) == before
    with pytest.raises(KeyboardInterrupt), lock_table(file):
        raise KeyboardInterrupt
    file.with_suffix(".csv.lock").touch()  # of a process that was killed
    with lock_table(file):
        pass
    assert sorted(file.parent.iterdir()) == before
