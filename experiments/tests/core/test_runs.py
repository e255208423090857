"""Runs on disk: what a kill, a full disk, a damaged file and two processes leave of them."""

import errno
import json
import math
import os
import resource
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from toys import Toy, finish, make_job

from effdeg_lab.core.runs import BusyError, FinishedError, RunFolder, read_run

STATE = {"weights": {"w": torch.arange(1000.0)}, "random": torch.get_rng_state(), "epoch": 0, "lr": [0.1, None]}


@pytest.fixture
def job(tmp_path):
    job = make_job(tmp_path)
    job.start()
    job.log({"epoch": 1})
    job.save(STATE | {"epoch": 1})
    yield job
    job.close()


def tear(file):
    """Leave what a kill leaves in the middle of a line."""
    with file.open("ab") as stream:
        stream.write(b'{"epoch": 3, "lo')


def list_checkpoints(job):
    return sorted(job.folder.glob("checkpoint-*"))


@contextmanager
def full_disk(monkeypatch, stage, *, room):
    """Make files refuse more than some bytes, part of which is written, or their syncing."""
    if stage == "write":
        former = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, former[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, former)
        return

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield


def test_a_run_from_its_start_to_its_end(tmp_path):
    folder, settings = RunFolder(tmp_path / "not" / "there"), Toy(names=("a", "b"), lr=0.5, seed=3)
    job = make_job(folder, settings)
    assert not folder.folder.exists()
    assert job.start(data="digits", device="a CPU") is None
    job.log({"epoch": 1, "loss": math.nan, "degree": {"value": -math.inf}, "list": [1.5, math.inf]})
    job.save({"epoch": 1})
    assert not folder.read()[0].finished
    job.finish({"test_accuracy": 0.5, "loss": math.nan, "degree": {"value": 2}}, {"w": torch.arange(3)})
    for run in (*folder.read(), folder.find(settings)):
        assert (run.recipe, run.method, run.kind, run.seed) == ("toy", "plain", "toys.Toy", 3)
        assert (run.file, run.name) == (job.file, "toy/plain-3-lr=0.5-names=a,b")
        assert run.settings == settings.to_dict()
        assert run.environment.items() >= {"device": "a CPU", "data": "digits", "processes": 1}.items()
        assert run.metrics == [{"epoch": 1, "loss": None, "degree": {"value": None}, "list": [1.5, None]}]
        assert run.summary == {"test_accuracy": 0.5, "loss": None, "degree": {"value": 2}}
        assert (run.finished, run.failure, run.value("degree.value")) == (True, None, 2)
        assert math.isnan(run.value("loss"))
        assert math.isnan(run.value("degree.none"))
    assert torch.equal(torch.load(job.folder / "weights.pt", weights_only=True)["w"], torch.arange(3))
    assert [file.name for file in job.folder.iterdir()] == ["weights.pt"]
    finish(folder, Toy())
    assert not (folder.folder / "toy" / "plain-0").exists()
    assert [file.name for file in (folder.folder / ".locks").iterdir()] in ([], ["names.lock"])


def test_evaluations_go_back_to_the_checkpoint(tmp_path, job):
    job.log({"epoch": 2})
    tear(job.file)
    assert [entry["epoch"] for entry in read_run(job.file).metrics] == [1, 2]
    brief = read_run(job.file, brief=True)  # the beginning and the end
    assert (brief.metrics, brief.settings) == ([{"epoch": 2}], Toy().to_dict())
    for file in (job.folder / "weights.pt.7.partial", job.file.with_name(f"{job.file.name}.7.partial")):
        file.write_bytes(b"{")  # a kill in the middle of a file
    job.close()
    job = make_job(tmp_path)
    assert job.start()["epoch"] == 1
    assert read_run(job.file).metrics == [{"epoch": 1}]
    assert not list(tmp_path.rglob("*.partial"))
    job.file.unlink()  # as one does to run it again
    job.close()
    assert job.start() is None
    assert read_run(job.file).metrics == []
    job.save(STATE)  # before the first evaluation
    job.file.unlink()
    job.close()
    assert job.start() is None


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_is_set_aside_starts_anew(tmp_path, job, finished):
    if finished:
        job.finish({"test_accuracy": 0.5})
    else:
        with pytest.raises(BusyError):
            make_job(tmp_path).set_aside()
        job.close()
    before = job.file.read_text()
    again = make_job(tmp_path)
    again.set_aside()
    assert (tmp_path / "toy" / "plain-0.jsonl.old").read_text() == before
    assert again.start() is None
    assert (again.file, again.read().metrics) == (job.file, [])
    for number in (2, 3):
        again.finish({"number": number})
        again.set_aside()
        again.start()
    kept = [read_run(tmp_path / "toy" / f"plain-0.jsonl.old{number}").summary for number in (2, 3)]
    assert kept == [{"number": 2}, {"number": 3}]
    assert (tmp_path / "toy" / "plain-0.jsonl.old").read_text() == before
    again.close()


def test_tensors_and_arrays_are_logged_as_numbers(job):
    bad, bits = np.float32("nan"), torch.tensor(2.5, dtype=torch.bfloat16)
    job.log({"a": np.float32(0.5), "b": bad, "c": bits, "d": np.arange(2), "e": torch.tensor(math.inf)})
    assert job.read().metrics[-1] == {"a": 0.5, "b": None, "c": 2.5, "d": [0, 1], "e": None}
    with pytest.raises(TypeError, match="PosixPath is not JSON serializable: log numbers, text, tensors, lists"):
        job.log({"file": Path("x")})
    job.finish({"test_accuracy": torch.tensor(0.5)})
    assert job.read().value("test_accuracy") == 0.5


def test_a_failure_is_kept_until_the_next_attempt(tmp_path, job):
    make_job(tmp_path, Toy(seed=1)).fail("it did not even start")  # as when the data are missing
    tear(job.file)
    job.close()
    make_job(tmp_path).fail("killed by SIGKILL")  # recorded by another process, after a torn line
    failures = {run.seed: (run.failure, run.metrics) for run in RunFolder(tmp_path).read()}
    assert failures == {0: ("killed by SIGKILL", [{"epoch": 1}]), 1: ("it did not even start", [])}
    assert job.start()["epoch"] == 1
    make_job(tmp_path).fail("of another process, which is late: this one works on the run again")
    assert job.read().failure is None
    job.finish({})
    job.fail("after the end")
    assert (job.read().finished, job.read().failure) == (True, None)


def test_only_one_process_works_on_a_run(tmp_path):
    one, other = make_job(tmp_path), make_job(tmp_path, recipe="ablation", method="ed")
    one.claim()
    with pytest.raises(BusyError, match=r"another process is working on the run .*: wait for it, or end it"):
        other.start()
    one.start()
    one.close()
    one.close()
    assert other.start() is None
    assert other.file == one.file  # equal settings are one run, whichever recipe it is for
    other.finish({"test_accuracy": 0.5})
    for job in (one, make_job(tmp_path, recipe="ablation")):
        with pytest.raises(FinishedError, match=r"plain-0.jsonl is finished; effdeg-lab run --again runs it again"):
            job.start()
    assert len(RunFolder(tmp_path).read()) == 1


def test_whether_a_process_works_on_a_run_is_told_by_its_lock(tmp_path, monkeypatch, job):
    folder = RunFolder(tmp_path)
    (run,) = folder.read()
    os.utime(job.file, (0, 0))
    assert folder.is_running(run) is True
    job.close()  # as the end of its process does, whatever the reason
    assert folder.is_running(run) is False
    job.claim()
    assert folder.is_running(run) is True
    with monkeypatch.context() as patched:
        patched.setattr("effdeg_lab.core.runs._identify_machine", lambda: "another")
        assert folder.is_running(run) is None
        job.close()
        job.claim()
    assert folder.is_running(run) is None
    job.finish({})
    assert folder.is_running(run) is False  # also if its last line is cut off later
    assert not (tmp_path / ".locks" / "toy@plain-0.txt").exists()


def test_a_look_at_the_lock_of_a_run_does_not_keep_it_from_starting(tmp_path, monkeypatch, job):
    job.close()
    (run,), lock, waits = RunFolder(tmp_path).read(), RunFolder.lock, threading.Event()
    starting = threading.Thread(target=job.claim)

    def start_run(release):
        """Start the run while the look has its lock, and release that when the run waits for the end of the look."""
        with pytest.raises(filelock.Timeout):
            lock(RunFolder(tmp_path), "looking").acquire(timeout=0)
        starting.start()
        assert waits.wait(300)
        release()

    def watch(folder, name):
        found, ours = lock(folder, name), threading.current_thread() is not starting
        if name == "looking" and not ours:
            waits.set()
        elif name != "looking" and ours:
            monkeypatch.setattr(found, "release", partial(start_run, found.release))
        return found

    monkeypatch.setattr(RunFolder, "lock", watch)
    assert RunFolder(tmp_path).is_running(run) is False
    starting.join()
    assert job.claimed


def test_a_run_is_found_by_its_settings_alone(tmp_path):
    folder = RunFolder(tmp_path)
    job = finish(folder, Toy(lr=0.5))
    renamed = job.file.rename(job.file.with_name("mine.jsonl"))
    lines = renamed.read_text().splitlines()
    header = json.loads(lines[0])
    del header["settings"]["names"]  # made before there was such a setting
    renamed.write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    assert folder.find(Toy(lr=0.5)).file == renamed
    header["settings"]["also"] = 1  # made with a setting that is unknown here
    renamed.write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    assert folder.find(Toy(lr=0.5)) is None
    finish(folder, Toy(seed=1))
    make_job(folder, Toy(seed=2)).fail("no")
    found = folder.find_all([Toy(seed=2), Toy(seed=3), Toy(seed=1)])
    assert [run and run.finished for run in found] == [False, None, True]
    shutil.copy(folder.find(Toy(seed=2)).file, tmp_path / "toy" / "a-copy.jsonl")
    finish(folder, Toy(seed=2))
    assert folder.find(Toy(seed=2)).finished


def test_names_are_short_safe_and_different(tmp_path):
    def name(recipe="toy", **settings):
        return make_job(tmp_path, Toy(**settings), recipe=recipe).file.relative_to(tmp_path).as_posix()

    assert name(lr=1 / 3, weight=2.0, epochs=8) == "toy/plain-0-weight=2-lr=0.3333-epochs=8.jsonl"
    assert name(names=("x" * 25,), evaluate_every=3, seed=2) == "toy/plain-2.jsonl"
    strange = name("my.module:RECIPE", names=('a/b:c*"<>|?\\', "ü. "))
    assert strange == "my.module_RECIPE/plain-0-names=a_b_c_______,_._.jsonl"
    # A name that another run has, or is about to have, is left to it.
    one, other = make_job(tmp_path), make_job(tmp_path, Toy(evaluate_every=3))
    one.claim()
    other.claim()
    assert one.file.name == "plain-0.jsonl"
    assert other.file.name == f"plain-0-{Toy(evaluate_every=3).hash[:8]}.jsonl"
    assert {run.settings["evaluate_every"] for run in RunFolder(tmp_path).read()} == {1, 3}


def test_reading_leaves_out_what_is_damaged_and_reports_it(tmp_path):
    folder = RunFolder(tmp_path)
    assert RunFolder(tmp_path / "absent").read() == []
    good = [finish(folder, Toy(seed=seed)) for seed in range(2)]
    (tmp_path / "README.md").write_text("no run")
    assert [run.file for run in folder.read()] == [job.file for job in good]
    file, content = good[0].file, good[0].file.read_text()
    header = json.loads(content.splitlines()[0])
    for damage in (
        "",
        "{\n",
        "[]\n",
        content.replace('"summary"', "summary"),
        content + "5\n",
        json.dumps(header | {"format": 4}) + "\n",
        content.replace('{"summary"', '{"metrics": {}}\n{"epo\n{"summary"'),
        content + '{"epoch": 1}\n',
        json.dumps({key: value for key, value in header.items() if key != "kind"}) + "\n",
    ):
        file.write_text(damage)
        for brief in (False, True):
            with pytest.warns(RuntimeWarning, match=rf"a run is left out: {file} is damaged: "):
                assert [run.file for run in folder.read(brief=brief)] == [good[1].file]
        assert folder.find(Toy()) is None
    for damage in ("", content[:20]):
        file.write_text(damage)
        with pytest.raises(ValueError, match="it is empty, or its first line is not complete"):
            read_run(file)


@pytest.mark.parametrize("stage", ["write", "sync"])
def test_a_full_disk_leaves_no_half_line_no_half_file_and_the_last_good_checkpoint(tmp_path, monkeypatch, job, stage):
    files = list_checkpoints(job)
    with full_disk(monkeypatch, stage, room=job.file.stat().st_size + 5):
        for write, message in (
            (lambda: job.log({"epoch": 2, "more": "than there is room for"}), r".*\.jsonl'$"),
            (lambda: job.finish({"test_accuracy": 0.5}, {"w": torch.zeros(2000)}), r".*weights\.pt'$"),
            (lambda: job.save(STATE | {"epoch": 2}), r".*checkpoint-000002-.*Free some space, and start the run again"),
        ):
            with pytest.raises(OSError, match=rf"(?=.*(No space left|File too large)){message}"):
                write()
    assert not job.read().finished
    assert list_checkpoints(job) == files == sorted(job.folder.iterdir())
    assert not list(tmp_path.rglob("*.partial"))
    job.log({"epoch": 3})
    assert [entry["epoch"] for entry in job.read().metrics] == [1, 3]


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "code", "of another run"])
def test_instead_of_a_damaged_checkpoint_the_one_before_is_used(job, damage):
    job.settings = Toy(lr=0.5) if damage == "of another run" else Toy()
    job.save({"epoch": 2, "state": Path("x") if damage == "code" else STATE})
    job.settings = Toy()
    newest = list_checkpoints(job)[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= damage == "flipped"
    newest.write_bytes(content[: {"truncated": -100, "empty": 0}.get(damage)])
    job.close()
    with pytest.warns(RuntimeWarning, match=rf"{newest} is skipped: "):
        assert job.start()["epoch"] == 1


def test_nothing_is_added_to_a_finished_run(job):
    job.finish({"test_accuracy": 0.5}, {"w": torch.zeros(1)})
    for add in (job.log, job.finish):
        with pytest.raises(ValueError, match=r"nothing can be added to the run .*: it was not started, or it is"):
            add({"test_accuracy": 0.6})
    assert job.read().summary == {"test_accuracy": 0.5}
