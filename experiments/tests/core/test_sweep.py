"""Planning, workers and sweeps, with a toy recipe whose runs take milliseconds."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
import toys
from toys import HELD_AT, NAME, RECIPE, Toy, finish, make_job, wait_for_hold

from effdeg_lab.cli._running import REQUEUE
from effdeg_lab.core import sweep as sweeping
from effdeg_lab.core import workers
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.runs import BusyError, RunFolder, StoppedError
from effdeg_lab.core.sweep import Plan, sweep
from effdeg_lab.core.workers import execute

ED = Toy(regularizer="ed", weight=2.0)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs")


@pytest.fixture
def in_this_process(monkeypatch):
    """Carry out runs one after the other without starting processes; return what was carried out."""
    done = []

    class Pool:
        def __init__(self, place, processes):
            self.place = place

        def carry_out(self, planned):
            for each in list(planned):
                done.extend(settings_of(each))
                yield self.place.work(each)

        def close(self):
            pass

    monkeypatch.setattr(sweeping, "WorkerPool", Pool)
    monkeypatch.setattr(workers, "_print_to", lambda log: log.parent.mkdir(parents=True, exist_ok=True))
    return done


def run_sweep(folder, *, recipe=None, processes=1, **plan):
    plan, cpu = Plan(recipe or find_recipe(NAME), **plan), torch.device("cpu")
    return sweep(plan, runs=folder, device=cpu, processes=processes)


def settings_of(planned):
    return [each.settings for each in planned]


def list_ended(outcome, ending):
    return [each.planned.settings for each in outcome if each.ending == ending]


def carry_out(folder, settings, method="plain"):
    job = make_job(folder, settings, method)
    execute(RECIPE, job)
    return job


def assert_same(run, other):
    """Compare all that runs gave, except for which process they were."""
    assert (run.metrics, run.summary) == (other.metrics, other.summary)
    weights = [each.file.with_suffix("") / "weights.pt" for each in (run, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_the_runs_that_tune():
    planned = Plan(RECIPE).plan_tuning()
    assert settings_of(planned) == [replace(ED, weight=weight, held_out=100, epochs=2) for weight in (2.0, 7.0, 20.0)]
    assert {(each.method, each.purpose) for each in planned} == {("ed", "tuning")}
    changed = Plan(RECIPE, changes={"epochs": 9, "lr": 0.5}).plan_tuning()
    # What the recipe says of tuning wins over changes to all runs.
    assert changed[0].settings == replace(ED, lr=0.5, held_out=100, epochs=2)
    for plan in ({"methods": ["plain", "broken"]}, {"tune": False}, {"changes": {"weight": 3.0}}):
        assert Plan(RECIPE, **plan).plan_tuning() == []


def test_the_runs_that_results_come_from(folder):
    planned = Plan(RECIPE, methods=["plain", "ed"]).plan_final([])
    assert settings_of(planned) == [Toy(), Toy(seed=1), ED, replace(ED, seed=1)]
    for each in Plan(RECIPE).plan_tuning():
        finish(folder, each.settings, "ed")
    runs = folder.read(brief=True)
    # Tuned with other settings, or on other examples, it is another matter; and a user's value wins.
    for weight, changes in (
        (7.0, {}),
        (2.0, {"changes": {"lr": 0.5}}),
        (3.0, {"changes": {"weight": 3.0}}),
    ):
        (planned,) = Plan(RECIPE, methods=["ed"], seeds=[7], **changes).plan_final(runs)
        assert (planned.settings.weight, planned.settings.seed) == (weight, 7)
    grid = replace(RECIPE, grid={"lr": (0.1, 0.2), "held_out": (0, 1)})
    planned = settings_of(Plan(grid, methods=["plain"], seeds=[0]).plan_final([]))
    assert [(each.lr, each.held_out) for each in planned] == [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    search = replace(RECIPE, search=({"epochs": 3, "lr": 0.1}, {"lr": 0.2, "epochs": 5}), grid={"held_out": (0, 1)})
    planned = settings_of(Plan(search, methods=["plain"], seeds=[0]).plan_final([]))
    found = [(each.held_out, each.epochs, each.lr) for each in planned]
    assert found == [(0, 3, 0.1), (0, 5, 0.2), (1, 3, 0.1), (1, 5, 0.2)]
    assert search.points()[1] == {"held_out": 0, "epochs": 5, "lr": 0.2}
    # A user's value for an axis makes points equal.
    assert len(Plan(grid, methods=["plain"], seeds=[0], changes={"lr": 0.3}).plan_final([])) == 2


def test_the_runs_at_equal_time(folder):
    plan = Plan(replace(RECIPE, grid={"lr": (0.1, 0.2)}), methods=["plain", "ed", "broken"], equal_time="ed")
    finals = plan.plan_final([])
    for lr, seconds in ((0.1, 25.0), (0.2, 30.0)):
        finish(folder, Toy(lr=lr), seconds=10.0)
        finish(folder, replace(ED, lr=lr), "ed", seconds=seconds)
    finish(folder, Toy(seed=1), seconds=1000.0)  # the first seed decides
    finish(folder, Toy(regularizer="broken"), "broken")
    # Ten seconds for 4 epochs, so 10 epochs for 25; a run that does not say how long it took has no pace.
    with pytest.warns(RuntimeWarning, match="broken has no run at equal time"):
        planned = plan.plan_equal_time(finals, folder)
    times = {0.1: 10, 0.2: 12}
    assert settings_of(planned) == [Toy(lr=lr, seed=seed, epochs=times[lr]) for lr in times for seed in (0, 1)]
    assert {each.purpose for each in planned} == {"equal time"}
    back = Plan(RECIPE, methods=["plain", "ed"], seeds=[0], equal_time="plain")
    assert settings_of(back.plan_equal_time(back.plan_final([]), folder)) == [replace(ED, epochs=2)]
    file = folder.find(ED).file
    file.write_text(file.read_text().replace('"environment": {', '"environment": {"shared": true, '))
    with pytest.warns(RuntimeWarning, match="ed has no run at equal time"):  # a shared GPU says nothing of time
        assert back.plan_equal_time(back.plan_final([]), folder) == []


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"methods": ["plian"]}, "'plian' is not a method of toys:RECIPE. Did you mean 'plain'"),
        ({"changes": {"wieght": 3.0}}, "'wieght' is not a setting. Did you mean 'weight'"),
        ({"seeds": [2**32]}, "seed=4294967296 is out of range: it must be at most 4294967295"),
        ({"equal_time": "edd"}, "'edd' is not a method of toys:RECIPE. Did you mean 'ed'"),
        ({"methods": ["plain"], "equal_time": "ed"}, "not among the methods of this sweep; add --method ed"),
        ({"processes": 0}, "--processes 0 is too small"),
        ({"recipe": RECIPE}, "'toy' is not a recipe"),
        ({"recipe": replace(toys.WITH_DATA, name="toys:WITH_DATA")}, "no cifar10 in None"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(folder, in_this_process, monkeypatch, plan, message):
    def check(name, data):
        raise ValueError(f"no {name} in {data}")

    monkeypatch.setattr("effdeg_lab.data.check", check)
    with pytest.raises(ValueError, match=message):
        run_sweep(folder, **plan)
    assert in_this_process == []
    assert not folder.folder.exists()


def test_a_run_leaves_random_numbers_and_signals_as_they_were(folder):
    before, handler = torch.get_rng_state(), signal.getsignal(signal.SIGTERM)
    carry_out(folder, Toy())
    assert torch.equal(torch.get_rng_state(), before)
    assert signal.getsignal(signal.SIGTERM) is handler
    with pytest.raises(ValueError, match="beyond repair"):
        carry_out(folder, Toy(regularizer="broken"), "broken")
    failure = folder.find(Toy(regularizer="broken")).failure.splitlines()
    assert (failure[0], failure[-1]) == ("Traceback (most recent call last):", "beyond repair")
    for leave, said in ((lambda *_: None, ""), (lambda *_: sys.exit(0), r" by sys.exit\(0\)")):
        with pytest.raises(ValueError, match=f"toy ended without a summary{said}: its run must call job.finish"):
            execute(replace(RECIPE, run=leave), make_job(folder, Toy(seed=3)))
    assert folder.find(Toy(seed=3)).failure.endswith("its run must call job.finish(summary).\n")
    execute(replace(RECIPE, run=lambda settings, job: sys.exit(job.finish({}))), make_job(folder, Toy(seed=5)))
    assert folder.find(Toy(seed=5)).finished
    job = make_job(folder, Toy(seed=4))
    job.claim()
    with pytest.raises(BusyError):  # before anything is loaded
        execute(replace(RECIPE, run=lambda *_: pytest.fail("it was called")), make_job(folder, Toy(seed=4)))


def test_it_tunes_first_and_runs_with_what_was_best(folder, in_this_process):
    outcome = run_sweep(folder, methods=["plain", "ed"])
    best = replace(ED, weight=7.0)
    tuning = [replace(ED, weight=weight, held_out=100, epochs=2) for weight in (2.0, 7.0, 20.0)]
    final = [Toy(), Toy(seed=1), best, replace(best, seed=1)]
    assert in_this_process == list_ended(outcome, "finished") == tuning + final
    assert {each.ending for each in run_sweep(folder, methods=["plain", "ed", "ed"])} == {"finished before"}
    # Without tuning, what was tuned before still holds.
    run_sweep(folder, methods=["ed"], tune=False, seeds=[2])
    run_sweep(folder, methods=["ed"], seeds=[0], changes={"weight": 3})
    assert in_this_process[7:] == [replace(best, seed=2), replace(ED, weight=3.0)]


def test_a_method_of_which_no_tuning_run_finishes_is_not_run(folder, in_this_process):
    recipe, broken = find_recipe("toys:UNTUNED"), Toy(**toys.BROKEN)
    outcome = run_sweep(folder, recipe=recipe, seeds=[0])
    ended = [(each.planned.method, each.planned.purpose, each.ending) for each in outcome]
    assert sorted(ended) == [
        ("fixed", "final", "failed"),
        ("plain", "final", "finished"),
        ("tuned", "final", "not run"),
        *[("tuned", "tuning", "failed")] * 2,
    ]
    (reason,) = (each.note for each in outcome if each.ending == "not run")
    assert reason.startswith("not run, as none of its 2 tuning runs finished.")
    assert "--set weight=VALUE" in reason
    # Untuned if that is asked for, and tuned by what has finished.
    (folder.folder / "healed").touch()
    for options in ({"tune": False}, {"changes": {"weight": 3.0}}):
        outcome = run_sweep(folder, recipe=recipe, methods=["tuned"], seeds=[1], **options)
        assert [each.ending for each in outcome] == ["finished"]
    finish(folder, replace(broken, weight=20.0, held_out=100, epochs=2), "broken")
    (folder.folder / "healed").unlink()
    outcome = run_sweep(folder, recipe=recipe, methods=["tuned"], seeds=[0])
    assert list_ended(outcome, "failed")[-1] == replace(broken, weight=20.0)


def test_failures_are_kept_apart_and_every_method_gets_the_time_of_one(folder, in_this_process, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take it for a terminal
    finish(folder, replace(ED, weight=3.0), "ed", seconds=5.0)
    plan = {"methods": ["plain", "ed", "broken"], "seeds": [0], "changes": {"weight": 3.0}, "equal_time": "ed"}
    with pytest.warns(RuntimeWarning, match="broken has no run at equal time"):
        outcome = run_sweep(folder, **plan)
    printed = capsys.readouterr().err  # where the bar is, so that lines appear above it
    # The toy says that 4 epochs take 1.5 seconds, hence 13 take 5.
    assert list_ended(outcome, "finished") == [Toy(weight=3.0), Toy(weight=3.0, epochs=13)]
    assert "Broken, seed 0: failed, beyond repair" in printed
    assert "Plain, seed 0: finished" in printed
    assert "3/3" in printed
    # The next sweep tries again what failed, and nothing else.
    (folder.folder / "healed").touch()
    again = run_sweep(folder, **{**plan, "equal_time": None})
    assert list_ended(again, "finished") == [Toy(regularizer="broken", weight=3.0)]


@pytest.mark.parametrize("end", ["finished", "given up"])
def test_a_run_that_another_process_works_on_is_waited_for(folder, in_this_process, monkeypatch, end):
    job = make_job(folder)
    job.start()
    job.log({"epoch": 1})

    def sleep(seconds):
        assert len(job.read().metrics) == 1  # nothing was touched in the meantime
        if end == "finished":
            job.finish({"test_accuracy": 0.5})
        job.close()

    monkeypatch.setattr(sweeping.time, "sleep", sleep)
    (ended,) = run_sweep(folder, methods=["plain"], seeds=[0])
    assert ended.ending == ("finished elsewhere" if end == "finished" else "finished")
    assert in_this_process == [Toy(), Toy()]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, StoppedError), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_a_sweep_after_the_runs_under_way(folder, in_this_process, monkeypatch, number, error):
    def work(self, planned, work=workers.Workplace.work):
        os.kill(os.getpid(), number)
        return work(self, planned)

    monkeypatch.setattr(workers.Workplace, "work", work)
    with pytest.raises(error):
        run_sweep(folder, methods=["plain"])
    assert len(in_this_process) == 1


def test_workers_share_the_cores_and_the_gpus(monkeypatch):
    def share(device):
        pool = workers.WorkerPool(workers.Workplace(NAME, Path(), None, device), 3)
        return [(each.place.device, each.threads, each.decoders) for each in pool.workers]

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert share("cpu") == [("cpu", 2, None)] * 3
    assert share("cuda") == [("cuda:0", None, 3), ("cuda:1", None, 3), ("cuda:0", None, 3)]
    assert share("cuda:1") == [("cuda:1", None, None)] * 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert share("cpu") == [("cpu", None, None)] * 3


@pytest.mark.parametrize("processes", [1, 2])
def test_runs_for_which_others_left_no_memory_are_tried_again_alone(monkeypatch, processes):
    running, crowded, tried = set(), set(), []

    class Worker(MagicMock):
        def send(self, planned):
            running.add(self)
            crowded.update(running if len(running) > 1 else ())
            tried.extend(planned)
            self.connection, theirs = multiprocessing.Pipe()
            theirs.send(None)

        def receive(self, planned):
            end = ("failed", "CUDA out of memory.") if self in crowded or planned == ["large"] else ("finished",)
            running.discard(self)
            crowded.discard(self)
            return [workers.Ended(each, *end) for each in planned]

    monkeypatch.setattr(workers, "_Worker", Worker)
    pool = workers.WorkerPool(workers.Workplace(NAME, Path(), None, "cpu"), processes)
    ended = [each for some in pool.carry_out([["one"], ["two"], ["large"]]) for each in some]
    assert sorted(each[:2] for each in ended) == [("large", "failed"), ("one", "finished"), ("two", "finished")]
    assert tried == (["one", "two", "large"] if processes == 1 else ["one", "two", "large", "one", "two"])


def test_a_worker_decodes_in_its_share_of_processes_unless_told_otherwise(monkeypatch):
    closed = MagicMock(recv=MagicMock(side_effect=EOFError))
    for name in ("faulthandler", "signal", "end_with_parent"):
        monkeypatch.setattr(workers, name, MagicMock())
    monkeypatch.setenv("EFFDEG_DECODERS", "")  # so that it is put back
    for given, expected in ((None, "3"), ("5", "5")):
        monkeypatch.delenv("EFFDEG_DECODERS")
        if given:
            monkeypatch.setenv("EFFDEG_DECODERS", given)
        workers._serve(closed, workers.Workplace(NAME, Path(), None, "cuda:1"), None, 3)
        assert os.environ["EFFDEG_DECODERS"] == expected


def test_runs_in_processes_of_which_one_fails_and_one_is_killed(folder, tmp_path, monkeypatch):
    """Carry out a run that finishes, one that fails and one that is killed; compare the first with one in here."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # the logs must be complete without it
    outcome = run_sweep(folder, methods=["plain", "broken", "killed"], seeds=[0], changes={"epochs": 3}, processes=2)
    ended, runs = {each.planned.method: each[1:] for each in outcome}, {run.method: run for run in folder.read()}
    assert (ended["plain"], ended["broken"]) == (("finished", "finished"), ("failed", "beyond repair"))
    assert ended["killed"][1] == "killed by SIGKILL (perhaps out of memory); the next sweep continues it"
    assert ended["killed"] == ("failed", runs["killed"].failure)
    assert runs["broken"].failure.startswith("Traceback")
    assert_same(runs["plain"], carry_out(tmp_path / "alone", Toy(epochs=3)).read())
    logs = {method: (run.file.with_suffix("") / "log.txt").read_text() for method, run in runs.items()}
    assert logs["killed"] == "starting at epoch 0\n"
    assert "ValueError: it is broken\nbeyond repair" in logs["broken"]


def test_two_sweeps_share_a_folder_and_one_continues_what_the_other_saved_bit_for_bit(folder, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = os.pathsep.join([str(Path(toys.__file__).parent), *sys.path])
    options = ["--method", "plain", "--seeds", "0,1,2", "--set", "epochs=6", "--device", "cpu", "--runs", folder.folder]
    environment = os.environ | {"PYTHONPATH": path, "TOY_HOLD": str(pipe)}
    other = subprocess.Popen(
        [sys.executable, "-m", "effdeg_lab", "sweep", NAME, *options], env=environment, stdout=subprocess.PIPE
    )
    wait_for_hold(pipe)

    def end_other():
        while not all(run and run.finished for run in folder.find_all([Toy(seed=seed, epochs=6) for seed in (1, 2)])):
            time.sleep(0.05)
        other.terminate()

    ending = threading.Thread(target=end_other)
    ending.start()
    outcome = run_sweep(folder, methods=["plain"], seeds=[0, 1, 2], changes={"epochs": 6})
    ending.join()
    other.communicate()
    assert other.returncode == REQUEUE
    assert {each.planned.settings.seed: each.ending for each in outcome} == dict.fromkeys(range(3), "finished")
    first, *others = folder.read()
    # The toy saves at every epoch before it holds; at the one where it holds, only when it is asked to stop.
    log = (first.file.with_suffix("") / "log.txt").read_text()
    assert log == f"starting at epoch 0\nstarting at epoch {HELD_AT}\n"
    assert {run.environment["process"] for run in others} == {first.environment["process"]}  # one warm worker
    assert_same(first, carry_out(tmp_path / "whole", Toy(epochs=6)).read())


def test_a_worker_that_waits_is_ended_in_order(folder):
    worker = workers._Worker(workers.Workplace(NAME, folder.folder, None, "cpu"))
    worker.send([])
    assert worker.connection.poll(120)
    assert worker.receive([]) == []
    worker.process.terminate()
    worker.end()
    assert worker.process.exitcode == 128 + signal.SIGTERM
    planned = workers.Planned("plain", Toy(), "final")
    assert worker.place.record_death(planned, worker.process.exitcode).ending == "stopped"
