import gc
import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from effdeg.lab.assignments import Assignment
from effdeg.lab.records import last_entry
from effdeg.lab.settings import digest, to_dict
from effdeg.lab.store import RefusedError, Store
from effdeg.lab.task import Task
from tests.lab.disks import full_disk
from tests.lab.toys import HELD_AT, Toy, finish, train, wait_for_hold

CPU = torch.device("cpu")


def trained(store, settings):
    run = store.run(settings)
    train(settings, Task(run, None, CPU))
    return run


def test_a_run_from_its_beginning_to_its_end(tmp_path):
    store, settings = Store(tmp_path / "not" / "there"), Toy(names=("a", "b"))
    run = store.run(settings)
    assert not store.folder.exists()
    assert not run.finished
    assert run.begin({"device": "a CPU"}) is None
    run.log({"epoch": 1, "loss": math.nan, "degree": {"value": -math.inf}, "list": [1.5, math.inf]})
    run.save({"epoch": 1})
    assert not run.finished
    (record,) = store.records()
    assert not record.finished
    run.finish({"test_accuracy": 0.5, "loss": math.nan}, {"w": torch.arange(3)})
    assert run.finished
    assert store.run(settings).finished

    (record,) = store.records()
    assert record.folder == tmp_path / "not" / "there" / digest(settings)
    assert record.kind == "Toy"
    assert record.settings == to_dict(settings)
    assert record.environment == {"device": "a CPU"}
    assert record.metrics == [{"epoch": 1, "loss": None, "degree": {"value": None}, "list": [1.5, None]}]
    assert record.summary == {"test_accuracy": 0.5, "loss": None}
    assert record.failure is None
    assert record.finished
    assert run.record() == record
    written = json.loads((run.folder / "settings.json").read_text())
    assert written == {"format": 1, "kind": "Toy", "settings": to_dict(settings)}
    assert torch.equal(torch.load(run.folder / "weights.pt", weights_only=True)["w"], torch.arange(3))
    files = {file.name for file in run.folder.iterdir()}
    assert files == {"settings.json", "environment.json", "metrics.jsonl", "summary.json", "weights.pt"}


def test_metrics_go_back_to_the_checkpoint(tmp_path):
    run = Store(tmp_path).run(Toy())
    run.begin({})
    run.log({"epoch": 1})
    run.save({"epoch": 1})
    run.log({"epoch": 2})
    with (run.folder / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"epoch": 3, "lo')  # a kill in the middle of a line
    assert [entry["epoch"] for entry in Store(tmp_path).records()[0].metrics] == [1, 2]
    (run.folder / "summary.json.partial").write_bytes(b"{")  # a kill in the middle of a file

    del run
    run = Store(tmp_path).run(Toy())
    assert run.begin({}) == {"epoch": 1}
    assert (run.folder / "metrics.jsonl").read_text() == '{"epoch": 1}\n'
    assert not list(run.folder.glob("*.partial"))
    run.log({"epoch": 2})
    run.save({"epoch": 2})
    for file in run.folder.glob("checkpoint-*"):
        file.unlink()
    del run
    run = Store(tmp_path).run(Toy())
    assert run.begin({}) is None
    assert run.record().metrics == []


def test_lost_metrics_are_reported(tmp_path):
    run = Store(tmp_path).run(Toy())
    run.begin({})
    run.log({"epoch": 1})
    run.save({"epoch": 1})
    (run.folder / "metrics.jsonl").unlink()
    with pytest.warns(RuntimeWarning, match=r"metrics.jsonl has lost 1 of the 1 lines"):
        assert run.begin({}) == {"epoch": 1}


def test_a_failure_is_kept_until_the_next_attempt(tmp_path):
    store = Store(tmp_path)
    early = store.run(Toy(seed=1))
    early.fail("it did not even begin")  # as when the data are missing
    run = store.run(Toy())
    run.begin({})
    run.save({"epoch": 1})
    run.fail("Traceback\nValueError: no")
    assert {record.settings["seed"]: record.failure for record in store.records()} == {
        0: "Traceback\nValueError: no",
        1: "it did not even begin",
    }
    # The failed run, still referred to, lets others try again.
    again = store.run(Toy())
    assert again.begin({}) == {"epoch": 1}
    assert store.run(Toy()).record().failure is None
    early.begin({})
    early.fail("again")
    early.begin({})
    early.finish({})
    assert early.record().failure is None


def test_only_one_works_on_a_run(tmp_path):
    store = Store(tmp_path)
    run, other = store.run(Toy()), store.run(Toy())
    run.begin({})
    with pytest.raises(RefusedError, match=r"this process or another works on the run .*: wait for it, or end it"):
        other.begin({})
    run.log({"epoch": 1})
    run.begin({})  # one's own lock is no obstacle
    run.close()
    run.close()
    assert other.begin({}) is None
    other.close()
    run.begin({})
    del run
    gc.collect()
    assert other.begin({}) is None
    other.finish({"test_accuracy": 0.5})
    with pytest.raises(RefusedError, match=r"is finished; to run it again, delete that folder"):
        store.run(Toy()).begin({})


def test_where_runs_cannot_be_kept(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=rf"runs cannot be kept in {folder}/\w+: Not a directory\."):
            Store(folder).run(Toy()).begin({})


def test_without_locks_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr("effdeg.lab.locks.fcntl", None)
    run = Store(tmp_path).run(Toy())
    run.begin({})
    Store(tmp_path).run(Toy()).begin({})
    run.finish({})
    assert run.finished


def test_folders_that_are_not_this_run_are_refused_and_left_alone(tmp_path):
    store = Store(tmp_path)
    run = finish(store, Toy())
    file = run.folder / "settings.json"
    ours = json.loads(file.read_text())
    for wrong, message in (
        (ours | {"format": 2}, r"settings.json is of format 2, this version of effdeg reads format 1\. Move or delete"),
        (ours | {"settings": to_dict(Toy(lr=0.5))}, r"does not hold the settings .* Move or delete the folder"),
        (ours | {"kind": "Other"}, r"does not hold the settings .* Move or delete the folder"),
        ("{", r"settings.json is damaged .* Move or delete the folder"),
        ([], r"settings.json is damaged .* Move or delete the folder"),
        ({"format": 1}, r"settings.json is damaged .* Move or delete the folder"),
    ):
        file.write_text(wrong if isinstance(wrong, str) else json.dumps(wrong))
        before = file.read_text()
        assert not store.run(Toy()).finished
        with pytest.raises(RefusedError, match=message):
            store.run(Toy()).begin({})
        assert file.read_text() == before


def test_records_leave_out_what_is_damaged_and_say_so(tmp_path):
    store = Store(tmp_path)
    assert Store(tmp_path / "absent").records() == []
    good = [finish(store, Toy(seed=seed)) for seed in range(3)]
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("no run")
    assert [record.folder for record in store.records()] == sorted(run.folder for run in good)

    (good[0].folder / "summary.json").write_text('{"test_accuracy": 0.')
    with pytest.warns(RuntimeWarning, match=rf"the run {good[0].folder} is left out: .*summary.json is damaged"):
        assert len(store.records()) == 2
    shutil.rmtree(good[0].folder)
    (good[1].folder / "metrics.jsonl").write_text('{"epoch": 1\n{"epoch": 2}\n')
    with pytest.warns(RuntimeWarning, match=r"metrics.jsonl is damaged"):
        assert len(store.records()) == 1
    shutil.rmtree(good[1].folder)
    settings = json.loads((good[2].folder / "settings.json").read_text())
    (good[2].folder / "settings.json").write_text(json.dumps(settings | {"format": 3}))
    with pytest.warns(RuntimeWarning, match=r"of format 3, this version of effdeg reads format 1"):
        assert store.records() == []


def test_records_read_what_cannot_be_written(tmp_path):
    store = Store(tmp_path / "results")
    run = finish(store, Toy())
    (run.folder / "environment.json").unlink()
    folders = [run.folder, store.folder]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        (record,) = store.records()
        assert record.finished
        assert record.environment == {}
        assert store.run(Toy()).finished
    finally:
        for folder in folders:
            folder.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("stage", ["write", "sync"])
def test_a_full_disk_leaves_no_half_line_and_no_half_file(tmp_path, monkeypatch, stage):
    run = Store(tmp_path).run(Toy())
    run.begin({})
    run.log({"epoch": 1})
    with full_disk(monkeypatch, stage, room=20):
        with pytest.raises(OSError, match=r"No space left|File too large"):
            run.log({"epoch": 2, "more": "than there is room for"})
        with pytest.raises(OSError, match=r"No space left|File too large"):
            run.finish({"test_accuracy": 0.5}, {"w": torch.zeros(2)})
    assert not run.finished
    assert not list(run.folder.glob("*.partial"))
    run.log({"epoch": 3})
    assert [entry["epoch"] for entry in run.record().metrics] == [1, 3]


def test_the_last_entry_is_the_last_whole_line(tmp_path):
    assert last_entry(tmp_path) == {}
    file = tmp_path / "metrics.jsonl"
    for text, expected in (
        ("", {}),
        ('{"epoch": 1', {}),
        ('{"epoch": 1}\n', {"epoch": 1}),
        ('{"epoch": 1}\n{"epoch": 2}\n{"ep', {"epoch": 2}),
        ('{"epoch": 1}\n' * 10_000 + '{"epoch": 2}\n', {"epoch": 2}),
    ):
        file.write_text(text)
        assert last_entry(tmp_path) == expected


@pytest.mark.parametrize("end", ["killed", "its sweep is killed"])
def test_a_worker_that_was_ended_goes_on_and_ends_as_if_nothing_had_happened(tmp_path, end):
    settings = Toy(epochs=6)
    whole = trained(Store(tmp_path / "whole"), settings)
    store = Store(tmp_path / "killed")
    run, pipe = store.run(settings), tmp_path / "pipe"
    os.mkfifo(pipe)
    assignment = Assignment("tests.lab.toys:RECIPE", to_dict(settings), str(store.folder), None, "cpu")
    order = {"assignment": asdict(assignment), "log": str(tmp_path / "log.txt")}
    process = subprocess.Popen(
        [sys.executable, "-m", "effdeg.lab.workers"],
        env=os.environ | {"TOY_HOLD": str(pipe)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    wait_for_hold(pipe)
    with pytest.raises(RefusedError, match="this process or another works on the run"):
        run.begin({})
    if end == "killed":
        os.kill(run.record().environment["process"], signal.SIGKILL)
        assert process.stdout.readline() == b"-9\n"
    process.communicate()
    assert process.returncode == 0
    assert not run.finished
    assert len(run.record().metrics) == HELD_AT

    resumed = trained(store, settings)
    assert resumed.finished
    for name in ("metrics.jsonl", "summary.json", "weights.pt"):
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()
