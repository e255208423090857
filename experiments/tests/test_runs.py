import json
import math
import shutil
import stat
from pathlib import Path

import pytest
import torch
from disks import full_disk
from toys import Toy, finish, make_job

from effdeg_lab.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from effdeg_lab.runs import BusyError, FinishedError, RunFolder, StoppedError, read_run

STATE = {"weights": {"w": torch.arange(1000.0)}, "random": torch.get_rng_state(), "epoch": 0, "lr": [0.1, None]}


def save(folder, *epochs):
    for epoch in epochs:
        save_checkpoint(folder, "run", STATE | {"epoch": epoch})
    return list_checkpoints(folder)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def empty(file):
    file.write_bytes(b"")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_run_from_its_start_to_its_end(tmp_path):
    folder, settings = RunFolder(tmp_path / "not" / "there"), Toy(names=("a", "b"), lr=0.5, seed=3)
    job = make_job(folder, settings)
    assert not folder.folder.exists()
    assert job.start(data="digits", device="a CPU") is None
    job.log({"epoch": 1, "loss": math.nan, "degree": {"value": -math.inf}, "list": [1.5, math.inf]})
    job.save({"epoch": 1})
    (run,) = folder.read()
    assert not run.finished
    job.finish({"test_accuracy": 0.5, "loss": math.nan, "degree": {"value": 2}}, {"w": torch.arange(3)})

    assert job.file == tmp_path / "not" / "there" / "toy" / "plain-3-lr=0.5-names=a,b.jsonl"
    for run in (*folder.read(), folder.find(settings)):
        assert (run.recipe, run.method, run.kind, run.seed) == ("toy", "plain", "Toy", 3)
        assert run.name == "toy/plain-3-lr=0.5-names=a,b"
        assert run.settings == settings.to_dict()
        assert run.environment.items() >= {"device": "a CPU", "data": "digits", "processes": 1}.items()
        assert run.metrics == [{"epoch": 1, "loss": None, "degree": {"value": None}, "list": [1.5, None]}]
        assert run.summary == {"test_accuracy": 0.5, "loss": None, "degree": {"value": 2}}
        assert run.finished
        assert run.failure is None
        assert run.value("degree.value") == 2
        assert math.isnan(run.value("loss"))
        assert math.isnan(run.value("degree.none"))
    assert torch.equal(torch.load(job.folder / "weights.pt", weights_only=True)["w"], torch.arange(3))
    assert [file.name for file in job.folder.iterdir()] == ["weights.pt"]
    assert list((folder.folder / ".locks").iterdir()) == []
    finish(folder, Toy())
    assert not (folder.folder / "toy" / "plain-0").exists()


def test_evaluations_go_back_to_the_checkpoint(tmp_path):
    job = make_job(tmp_path)
    job.start()
    job.log({"epoch": 1})
    job.save({"epoch": 1})
    job.log({"epoch": 2})
    with job.file.open("ab") as stream:
        stream.write(b'{"epoch": 3, "lo')  # a kill in the middle of a line
    assert [entry["epoch"] for entry in read_run(job.file).metrics] == [1, 2]
    for file in (job.folder / "weights.pt.7.partial", job.file.with_name(f"{job.file.name}.7.partial")):
        file.write_bytes(b"{")  # a kill in the middle of a file
    job.close()

    job = make_job(tmp_path)
    assert job.start() == {"epoch": 1}
    assert read_run(job.file).metrics == [{"epoch": 1}]
    assert not list(tmp_path.rglob("*.partial"))
    job.log({"epoch": 2})
    job.save({"epoch": 2})
    for file in list_checkpoints(job.folder):
        file.unlink()
    job.close()
    assert job.start() is None
    assert read_run(job.file).metrics == []


def test_lost_evaluations_are_reported(tmp_path):
    job = make_job(tmp_path)
    job.start()
    job.log({"epoch": 1})
    job.save({"epoch": 1})
    job.file.unlink()
    job.close()
    with pytest.warns(RuntimeWarning, match=r"plain-0.jsonl has lost 1 of the 1 evaluations"):
        assert job.start() == {"epoch": 1}


def test_a_failure_is_kept_until_the_next_attempt(tmp_path):
    early = make_job(tmp_path, Toy(seed=1))
    early.fail("it did not even start")  # as when the data are missing
    job = make_job(tmp_path)
    job.start()
    job.log({"epoch": 1})
    job.save({"epoch": 1})
    with job.file.open("ab") as stream:
        stream.write(b'{"epoch": 2, "lo')
    job.close()
    make_job(tmp_path).fail("killed by SIGKILL")  # recorded by another process, after a torn line
    failures = {run.seed: (run.failure, run.metrics) for run in RunFolder(tmp_path).read()}
    assert failures == {0: ("killed by SIGKILL", [{"epoch": 1}]), 1: ("it did not even start", [])}
    assert job.start() == {"epoch": 1}
    assert job.read().failure is None
    make_job(tmp_path).fail("of another process, which is late: this one works on the run again")
    assert job.read().failure is None
    job.finish({})
    job.fail("after the end")
    assert job.read().finished
    assert job.read().failure is None


def test_a_run_that_is_asked_to_stop_saves_first(tmp_path):
    asked = []
    job = make_job(tmp_path, asked_to_stop=lambda: bool(asked))
    job.start()
    job.stop_if_asked(lambda: pytest.fail("there is nothing to save"))
    asked.append(True)
    with pytest.raises(StoppedError):
        job.stop_if_asked(lambda: {"epoch": 5})
    job.record_stop()
    assert job.read().stopped
    job.close()
    asked.clear()
    assert job.start() == {"epoch": 5}
    assert not job.read().stopped


def test_only_one_process_works_on_a_run(tmp_path):
    one, other = make_job(tmp_path), make_job(tmp_path, recipe="ablation", method="ed")
    one.claim()
    with pytest.raises(BusyError, match=r"another process works on the run .*: wait for it, or end it"):
        other.start()
    one.start()
    one.close()
    one.close()
    assert other.start() is None
    assert other.file == one.file  # equal settings are one run, whichever recipe it is for
    other.finish({"test_accuracy": 0.5})
    for job in (one, make_job(tmp_path, recipe="ablation")):
        with pytest.raises(FinishedError, match=r"plain-0.jsonl is finished; to run it again, delete that file"):
            job.start()
    assert len(RunFolder(tmp_path).read()) == 1


def test_a_run_is_found_by_its_settings_alone(tmp_path):
    folder = RunFolder(tmp_path)
    job = finish(folder, Toy(lr=0.5))
    renamed = job.file.rename(job.file.with_name("mine.jsonl"))
    assert folder.find(Toy(lr=0.5)).file == renamed
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
    shutil.copy(folder.find(Toy(seed=1)).file, tmp_path / "toy" / "a-copy.jsonl")
    assert folder.find(Toy(seed=1)).finished


def test_names_are_safe_and_different(tmp_path):
    folder, strange = RunFolder(tmp_path), ('a/b:c*"<>|?\\', "ü. ")
    job = make_job(folder, Toy(names=strange), recipe="my.module:RECIPE")
    assert job.file.relative_to(tmp_path).as_posix() == "my.module_RECIPE/plain-0-names=a_b_c_______,_._.jsonl"
    long = [make_job(folder, Toy(names=(f"{letter * 300}{number}",))) for letter in "xü" for number in (1, 2)]
    for each in (job, *long):
        each.start()
        each.finish({}, {"w": torch.zeros(1)})
        assert len(each.file.name.encode()) < 160
    assert len({each.file for each in long}) == 4
    # A name that another run has, a damaged one too, is left to it.
    taken = [make_job(folder).file]
    taken[0].write_text("{")
    taken.append(make_job(folder).file)
    assert taken[1].name == f"plain-0-{Toy().hash[:8]}.jsonl"
    taken[1].write_text("{")
    assert make_job(folder).file not in taken


@pytest.mark.parametrize("place", ["file", "file/below", "read-only"])
def test_where_runs_cannot_be_kept(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "read-only").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    if place == "read-only":
        try:
            (tmp_path / "read-only" / "x").touch()
        except PermissionError:
            pass
        else:
            pytest.skip("root can write everywhere")
    with pytest.raises(OSError, match=rf"^runs cannot be kept in {tmp_path / place}: .*\.$"):
        make_job(tmp_path / place).start()


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
        json.dumps(header | {"format": 3}) + "\n",
        json.dumps({key: value for key, value in header.items() if key != "kind"}) + "\n",
    ):
        file.write_text(damage)
        with pytest.warns(RuntimeWarning, match=rf"a run is left out: {file} is damaged: "):
            assert [run.file for run in folder.read()] == [good[1].file]
        assert folder.find(Toy()) is None


def test_a_brief_look_reads_the_beginning_and_the_end(tmp_path):
    job = make_job(tmp_path)
    job.start()
    for epoch in range(2000):
        with job.file.open("a") as stream:
            stream.write(json.dumps({"epoch": epoch, "filler": "x" * 100}) + "\n")
    with job.file.open("a") as stream:
        stream.write('{"epoch": 2000, "fil')
    brief = read_run(job.file, brief=True)
    assert brief.metrics[-1]["epoch"] == 1999
    assert 10 < len(brief.metrics) < 1000
    assert brief.settings == Toy().to_dict()
    job.close()
    job.start()
    job.log({"epoch": 1})
    job.finish({"long": "x" * 200_000})
    brief = read_run(job.file, brief=True)
    assert (brief.finished, brief.metrics) == (True, [{"epoch": 1}])


def test_runs_are_read_where_nothing_can_be_written(tmp_path):
    job = finish(tmp_path / "results", Toy())
    folders = [job.file.parent, tmp_path / "results"]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert RunFolder(tmp_path / "results").find(Toy()).finished
    finally:
        for folder in folders:
            folder.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("stage", ["write", "sync"])
def test_a_full_disk_leaves_no_half_line_and_no_half_file(tmp_path, monkeypatch, stage):
    job = make_job(tmp_path)
    job.start()
    job.log({"epoch": 1})
    with full_disk(monkeypatch, stage, room=job.file.stat().st_size + 5):
        with pytest.raises(OSError, match=r"No space left|File too large"):
            job.log({"epoch": 2, "more": "than there is room for"})
        with pytest.raises(OSError, match=r"No space left|File too large"):
            job.finish({"test_accuracy": 0.5}, {"w": torch.zeros(2000)})
    assert not job.read().finished
    assert not list(tmp_path.rglob("*.partial"))
    job.log({"epoch": 3})
    assert [entry["epoch"] for entry in job.read().metrics] == [1, 3]


def test_the_two_newest_checkpoints_are_kept_and_the_newest_is_read(tmp_path):
    assert load_checkpoint(tmp_path, "run") is None
    files = save(tmp_path, 1, 2, 3)
    assert [file.name[:18] for file in files] == ["checkpoint-000002-", "checkpoint-000003-"]
    loaded = load_checkpoint(tmp_path, "run")
    assert (loaded["epoch"], loaded["lr"]) == (3, [0.1, None])
    assert torch.equal(loaded["weights"]["w"], STATE["weights"]["w"])
    assert torch.equal(loaded["random"], STATE["random"])
    files[-1].rename(files[-1].with_name(files[-1].name.replace("000003", "999999")))
    save(tmp_path, 4)
    assert load_checkpoint(tmp_path, "run")["epoch"] == 4


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_instead_of_a_damaged_checkpoint_the_one_before_is_used(tmp_path, damage):
    newest = save(tmp_path, 1, 2)[-1]
    damage(newest)
    with pytest.warns(RuntimeWarning, match=rf"{newest} is passed over: its content does not have the hash"):
        assert load_checkpoint(tmp_path, "run")["epoch"] == 1
    assert len(save(tmp_path, 2)) == 2
    assert load_checkpoint(tmp_path, "run")["epoch"] == 2


@pytest.mark.parametrize("content", [{"file": Path("x")}, {"run": "another"}])
def test_a_checkpoint_with_code_or_of_another_run_is_not_used(tmp_path, content):
    save_checkpoint(tmp_path, "run", content)
    with pytest.warns(RuntimeWarning, match="is passed over"):
        assert load_checkpoint(tmp_path, "run") is None


@pytest.mark.parametrize("error", [PermissionError("not yours"), OSError("the disk is gone"), MemoryError()])
def test_a_checkpoint_that_cannot_be_read_now_is_not_given_up(tmp_path, monkeypatch, error):
    save(tmp_path, 1, 2)

    def read(_):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read)
        with pytest.raises(type(error)):
            load_checkpoint(tmp_path, "run")
    assert load_checkpoint(tmp_path, "run")["epoch"] == 2


@pytest.mark.parametrize("stage", ["write", "sync", "replace"])
def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch, stage):
    message = r"(No space left|File too large).*continues from its beginning when it is started again: make room first"
    with full_disk(monkeypatch, stage, room=1000), pytest.raises(OSError, match=message):
        save(tmp_path, 1)
    files = save(tmp_path, 1, 2)
    with full_disk(monkeypatch, stage, room=1000), pytest.raises(OSError, match=f"continues from {files[-1].name}"):
        save(tmp_path, 3)
    assert list_checkpoints(tmp_path) == files == sorted(tmp_path.iterdir())
    assert load_checkpoint(tmp_path, "run")["epoch"] == 2
