from pathlib import Path

import pytest
import torch

from effdeg.lab.checkpoints import Checkpoints
from tests.lab.disks import full_disk

STATE = {"weights": {"w": torch.arange(1000.0)}, "random": torch.get_rng_state(), "epoch": 0, "lr": [0.1, None]}


def saved(folder, *epochs):
    checkpoints = Checkpoints(folder)
    for epoch in epochs:
        checkpoints.save(STATE | {"epoch": epoch})
    return checkpoints


def truncated(file):
    file.write_bytes(file.read_bytes()[:-100])


def emptied(file):
    file.write_bytes(b"")


def flipped(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_the_two_newest_are_kept_and_the_newest_is_read(tmp_path):
    assert Checkpoints(tmp_path).load() is None
    checkpoints = saved(tmp_path, 1, 2, 3)
    assert [file.name[:18] for file in checkpoints.files()] == ["checkpoint-000002-", "checkpoint-000003-"]
    loaded = Checkpoints(tmp_path).load()
    assert loaded["epoch"] == 3
    assert torch.equal(loaded["weights"]["w"], STATE["weights"]["w"])
    assert torch.equal(loaded["random"], STATE["random"])
    assert loaded["lr"] == [0.1, None]
    assert len(list(tmp_path.iterdir())) == 2
    # It is an ordinary file of torch.
    assert torch.load(checkpoints.files()[-1], weights_only=True)["epoch"] == 3
    checkpoints.delete()
    assert list(tmp_path.iterdir()) == []


def test_numbers_go_on_after_six_digits(tmp_path):
    file = saved(tmp_path, 1).files()[0]
    file.rename(file.with_name(file.name.replace("000001", "999999")))
    saved(tmp_path, 2, 3)
    assert Checkpoints(tmp_path).load()["epoch"] == 3


@pytest.mark.parametrize("damage", [truncated, emptied, flipped])
def test_of_a_damaged_one_the_one_before_is_used(tmp_path, damage):
    newest = saved(tmp_path, 1, 2).files()[-1]
    damage(newest)
    checkpoints = Checkpoints(tmp_path)
    with pytest.warns(RuntimeWarning, match=rf"{newest} is damaged .*; checkpoint-000001-\w+.pt is used instead"):
        assert checkpoints.load()["epoch"] == 1
    # The damaged one does not count among the two that are kept.
    checkpoints.save(STATE | {"epoch": 2})
    assert [torch.load(file, weights_only=True)["epoch"] for file in checkpoints.files()] == [1, 2]


def test_with_none_that_is_good_the_run_starts_again(tmp_path):
    for file in saved(tmp_path, 1, 2).files():
        flipped(file)
    with pytest.warns(RuntimeWarning) as warned:
        assert Checkpoints(tmp_path).load() is None
    assert "checkpoint-000001" in str(warned[0].message)
    assert str(warned[1].message).endswith("the run starts again.")


@pytest.mark.parametrize("error", [PermissionError("not yours"), OSError("the disk is gone"), MemoryError()])
def test_one_that_cannot_be_read_now_is_not_given_up(tmp_path, monkeypatch, error):
    saved(tmp_path, 1, 2)

    def read(_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read)
        with pytest.raises(type(error)):
            Checkpoints(tmp_path).load()
    assert Checkpoints(tmp_path).load()["epoch"] == 2


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"file": Path("x")})  # a pickled class that torch does not trust
    with pytest.warns(RuntimeWarning, match="is damaged .*; the run starts again"):
        assert checkpoints.load() is None


@pytest.mark.parametrize("stage", ["write", "sync", "replace"])
def test_a_full_disk_leaves_the_last_good_one(tmp_path, monkeypatch, stage):
    checkpoints = saved(tmp_path, 1, 2)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    message = rf"(No space left|File too large).*survives, {checkpoints.files()[-1]}: make room"
    with full_disk(monkeypatch, stage, room=1000), pytest.raises(OSError, match=message):
        checkpoints.save(STATE | {"epoch": 3})
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert Checkpoints(tmp_path).load()["epoch"] == 2


def test_a_disk_that_was_full_from_the_beginning(tmp_path, monkeypatch):
    message = r"There is no earlier one: make room, .* goes on from the beginning"
    with full_disk(monkeypatch, "write", room=0), pytest.raises(OSError, match=message):
        Checkpoints(tmp_path).save(STATE)
    assert list(tmp_path.iterdir()) == []
