"""Planning, workers and sweeps, with a toy recipe whose runs take milliseconds."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import toys
from toys import HELD_AT, NAME, RECIPE, Toy, finish, make_job, recipe, wait_for_hold

from effdeg_lab import plan as planning
from effdeg_lab import sweep as sweeping
from effdeg_lab import workers
from effdeg_lab.plan import Plan
from effdeg_lab.results import Choice
from effdeg_lab.runs import REQUEUE, BusyError, RunFolder, StoppedError
from effdeg_lab.sweep import execute, sweep
from effdeg_lab.workers import Ended, Order

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def choose(monkeypatch):
    """Choose the best finished run on held-out examples, at any scale."""

    def choose(recipe, method, runs, changes):
        wanted = recipe.resolve(method, changes).to_dict()
        tried = {
            run.settings["weight"]: run.value("test_accuracy")
            for run in runs
            if run.finished and all(run.settings[key] == wanted[key] for key in ("held_out", "lr", "regularizer"))
        }
        best = max(tried, key=tried.get, default=None)
        return Choice({"weight": best}, tried[best], [], 2) if tried else None

    monkeypatch.setattr(planning, "choose", choose)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs")


@pytest.fixture
def in_this_process(monkeypatch):
    """Carry out runs one after the other without starting processes; return what was carried out."""
    done = []

    class Pool:
        def __init__(self, processes):
            pass

        def carry_out(self, orders):
            for order in orders:
                done.append(order.open()[1].settings)
                yield [], [Ended(order, *workers._work(order))]

        def close(self):
            pass

    monkeypatch.setattr(sweeping, "WorkerPool", Pool)
    return done


def run_sweep(folder, *, recipe=None, processes=1, progress=False, **plan):
    plan = Plan(recipe or toys.recipe(), **plan)
    return sweep(plan, runs=folder, device=CPU, processes=processes, progress=progress)


def settings_of(planned):
    return [each.settings for each in planned]


def carry_out(folder, settings, method="plain"):
    """Carry out a run alone in this process."""
    job = make_job(folder, settings, method)
    execute(RECIPE, job)
    return job


def without_process(run):
    """Return all that a run gave, except for which process it was."""
    return run.metrics, run.summary


# Planning


def test_the_runs_that_tune():
    planned = Plan(RECIPE).plan_tuning()
    assert settings_of(planned) == [
        Toy(regularizer="ed", weight=weight, held_out=100, epochs=2) for weight in (2.0, 7.0, 20.0)
    ]
    assert {(each.method, each.purpose) for each in planned} == {("ed", "tuning")}
    changed = Plan(RECIPE, changes={"epochs": 9, "lr": 0.5}, tuning_changes={"held_out": 7, "seed": 3}).plan_tuning()
    # What the recipe says of tuning wins over changes to all runs, not over changes to these.
    assert changed[0].settings == Toy(regularizer="ed", weight=2.0, lr=0.5, held_out=7, epochs=2, seed=3)
    for nothing in (
        Plan(RECIPE, methods=["plain", "broken"]),
        Plan(replace(RECIPE, tuning={})),
        Plan(RECIPE, tune=False),
        Plan(RECIPE, changes={"weight": 3.0}),
    ):
        assert nothing.plan_tuning() == []


def test_the_runs_that_results_come_from(folder):
    methods = ["plain", "ed"]
    planned = Plan(RECIPE, methods=methods).plan_final([])
    ed = Toy(regularizer="ed", weight=2.0)
    assert settings_of(planned) == [Toy(), Toy(seed=1), ed, replace(ed, seed=1)]
    assert {each.method for each in Plan(RECIPE).plan_final([])} == {"plain", "ed", "broken", "killed"}
    for each in Plan(RECIPE).plan_tuning():
        finish(folder, each.settings, "ed")
    runs = folder.read(brief=True)
    assert settings_of(Plan(RECIPE, methods=methods, seeds=[7]).plan_final(runs)) == [
        Toy(seed=7),
        replace(ed, weight=7.0, seed=7),
    ]
    # Tuned with other settings, or on other examples, it is another matter; and a user's value wins.
    for weight, changes in ((2.0, {"changes": {"lr": 0.5}}), (2.0, {"tuning_changes": {"held_out": 5}})):
        assert Plan(RECIPE, methods=["ed"], **changes).plan_final(runs)[0].settings.weight == weight
    assert Plan(RECIPE, methods=["ed"], changes={"weight": 3.0}).plan_final(runs)[0].settings.weight == 3.0


def test_every_point_of_the_grid_is_run_once():
    recipe = replace(RECIPE, grid={"lr": (0.1, 0.2), "held_out": (0, 1)})
    planned = Plan(recipe, methods=["plain"], seeds=[0]).plan_final([])
    assert [(each.settings.lr, each.settings.held_out) for each in planned] == [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    # A user's value for an axis makes points equal.
    assert len(Plan(recipe, methods=["plain"], seeds=[0], changes={"lr": 0.3}).plan_final([])) == 2
    assert len(Plan(RECIPE, methods=["plain", "plain"], changes={"seed": 5}).plan_final([])) == 1


def test_the_runs_at_equal_time(folder):
    plan = Plan(RECIPE, methods=["plain", "ed", "broken"], equal_time="ed")
    finals = plan.plan_final([])
    assert plan.plan_equal_time(finals, folder) == ([], ["plain", "broken"])
    ed, broken = Toy(regularizer="ed", weight=2.0), Toy(regularizer="broken")
    for settings, method, seconds in ((Toy(), "plain", 10.0), (ed, "ed", 25.0), (broken, "broken", None)):
        finish(folder, settings, method, **({} if seconds is None else {"seconds": seconds}))
    # Ten seconds for 4 epochs, so 10 epochs for 25; a run that does not say how long it took has no pace.
    planned = plan.plan_equal_time(finals, folder)
    assert settings_of(planned[0]) == [Toy(epochs=10), Toy(seed=1, epochs=10)]
    assert planned[1] == ["broken"]
    assert {each.purpose for each in planned[0]} == {"equal time"}
    finish(folder, Toy(seed=1), seconds=1000.0)
    assert plan.plan_equal_time(finals, folder) == planned  # whatever the other seeds took
    other = replace(plan, equal_time="plain").plan_equal_time(finals, folder)[0]
    assert settings_of(other) == [replace(ed, epochs=2), replace(ed, seed=1, epochs=2)]
    file = folder.find(ed).file
    file.write_text(file.read_text().replace('"environment": {', '"environment": {"shared": true, '))
    assert plan.plan_equal_time(finals, folder)[0] == []  # the time of a run that shared its GPU says nothing


def test_every_point_of_the_grid_has_its_own_pace(folder):
    plan = Plan(replace(RECIPE, grid={"lr": (0.1, 0.2)}), methods=["plain", "ed"], seeds=[0], equal_time="ed")
    for lr, seconds in ((0.1, 2.0), (0.2, 3.0)):
        finish(folder, Toy(lr=lr), seconds=1.0)
        finish(folder, Toy(regularizer="ed", weight=2.0, lr=lr), "ed", seconds=seconds)
    planned = plan.plan_equal_time(plan.plan_final([]), folder)
    assert (settings_of(planned[0]), planned[1]) == ([Toy(lr=0.1, epochs=8), Toy(lr=0.2, epochs=12)], [])


@pytest.mark.parametrize(
    ("plan", "kind", "message"),
    [
        ({"methods": ["plian"]}, ValueError, "'plian' is not a method of toys:RECIPE. Did you mean 'plain'"),
        ({"changes": {"wieght": 3.0}}, ValueError, "'wieght' is not a setting. Did you mean 'weight'"),
        ({"changes": {"epochs": "x"}}, TypeError, "epochs='x' is not possible: epochs must be a whole number"),
        ({"seeds": [2**32]}, ValueError, "seed=4294967296 is out of range: it must lie between 0 and 4294967295"),
        ({"equal_time": "edd"}, ValueError, "'edd' is not a method of toys:RECIPE. Did you mean 'ed'"),
        ({"methods": ["plain"], "equal_time": "ed"}, ValueError, "ed is not among the methods of this sweep; add --m"),
        ({"tune": False, "tuning_changes": {"held_out": 0}}, ValueError, "held_out=0 would tune on the test set"),
        ({"tuning_changes": {"weight": 3.0}}, ValueError, "weight=3.0 cannot be fixed in the runs that tune 'ed'"),
        ({"processes": 0}, ValueError, "--processes 0 is too small"),
        ({"recipe": RECIPE}, ValueError, "'toy' is not a recipe"),
        ({"recipe": replace(RECIPE, name=NAME, run=print)}, ValueError, "give it as package.module:RECIPE"),
        ({"recipe": replace(toys.WITH_DATA, name="toys:WITH_DATA")}, ValueError, "no cifar10 in None"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(folder, in_this_process, monkeypatch, plan, kind, message):
    def check(name, data):
        raise ValueError(f"no {name} in {data}")

    monkeypatch.setattr("effdeg_lab.data.check", check, raising=False)
    with pytest.raises(kind, match=message):
        run_sweep(folder, **plan)
    assert in_this_process == []
    assert not folder.folder.exists()


# Runs in this process


def test_a_run_leaves_random_numbers_and_signals_as_they_were(folder):
    before, handler = torch.get_rng_state(), signal.getsignal(signal.SIGTERM)
    carry_out(folder, Toy())
    assert torch.equal(torch.get_rng_state(), before)
    assert signal.getsignal(signal.SIGTERM) is handler
    with pytest.raises(ValueError, match="beyond repair"):
        carry_out(folder, Toy(regularizer="broken"), "broken")
    run = folder.find(Toy(regularizer="broken"))
    assert run.failure.startswith("Traceback")
    assert run.failure.strip().endswith("beyond repair")
    with pytest.raises(ValueError, match="toy ended without a summary"):
        execute(replace(RECIPE, run=lambda settings, job: job.start()), make_job(folder, Toy(seed=3)))


def test_a_run_that_another_process_works_on_is_refused_before_anything_is_loaded(folder):
    job = make_job(folder)
    job.claim()
    with pytest.raises(BusyError):
        execute(replace(RECIPE, run=lambda *_: pytest.fail("it was called")), make_job(folder))


# Sweeps


def test_it_tunes_first_and_runs_with_what_was_best(folder, in_this_process):
    outcome = run_sweep(folder, methods=["plain", "ed"])
    ed = Toy(regularizer="ed", weight=7.0)
    tuning = [replace(ed, weight=weight, held_out=100, epochs=2) for weight in (2.0, 7.0, 20.0)]
    final = [Toy(), Toy(seed=1), ed, replace(ed, seed=1)]
    assert in_this_process == settings_of(outcome.finished) == tuning + final
    assert outcome.skipped == outcome.failed == []
    again = run_sweep(folder, methods=["plain", "ed"])
    assert len(in_this_process) == 7
    assert str(again) == "0 finished, 7 finished before, 0 failed"
    # Without tuning, what was tuned before still holds.
    more = run_sweep(folder, methods=["ed"], tune=False, seeds=[2])
    assert settings_of(more.finished) == [replace(ed, seed=2)]
    run_sweep(folder, methods=["ed"], seeds=[0], changes={"weight": 3})
    assert in_this_process[-1] == replace(ed, weight=3.0)


def test_every_method_gets_the_time_of_one(folder, in_this_process):
    finish(folder, Toy(regularizer="ed", weight=3.0, seed=7), "ed", seconds=5.0)
    plan = {"methods": ["plain", "ed", "broken"], "seeds": [7], "changes": {"weight": 3.0}, "equal_time": "ed"}
    outcome = run_sweep(folder, **plan)
    # The toy says that 4 epochs take 1.5 seconds, hence 13 take 5.
    assert settings_of(outcome.finished) == [Toy(weight=3.0, seed=7), Toy(weight=3.0, seed=7, epochs=13)]
    assert (len(outcome.skipped), len(outcome.failed), outcome.untimed) == (1, 1, ["broken"])


def test_failures_are_kept_apart_and_reported(folder, in_this_process, capsys):
    plan = {"methods": ["broken", "plain"], "seeds": [0]}
    outcome = run_sweep(folder, progress=True, **plan)
    printed = capsys.readouterr()
    assert [each.method for each in outcome.finished] == ["plain"]
    ((planned, error, log),) = outcome.failed
    assert (planned.method, error) == ("broken", "beyond repair")
    assert log == folder.find(planned.settings).file.with_suffix("") / "log.txt"
    assert str(outcome) == "1 finished, 0 finished before, 1 failed"
    assert "Broken, seed 0: failed, beyond repair" in printed.out
    assert "Plain, seed 0: finished, 70.0%, 2 s" in printed.out
    assert "2/2" in printed.err
    # The next sweep tries again what failed, and nothing else.
    (folder.folder / "healed").touch()
    again = run_sweep(folder, **plan)
    assert [each.method for each in again.finished] == ["broken"]
    assert folder.find(planned.settings).failure is None
    assert not list((folder.folder / ".sweeps").iterdir())


def test_runs_in_two_workers_one_fails_and_one_is_killed(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # the logs must be complete without it
    outcome = run_sweep(folder, methods=["broken", "killed", "plain"], seeds=[0], processes=2)
    assert settings_of(outcome.finished) == [Toy()]
    killed = "killed by SIGKILL, as the system does when memory runs out"
    errors = sorted((planned.method, error) for planned, error, _ in outcome.failed)
    assert errors == [("broken", "beyond repair"), ("killed", killed)]
    failures = {run.settings["regularizer"]: run.failure for run in folder.read()}
    assert (failures["plain"], failures["killed"]) == (None, killed)
    assert failures["broken"].startswith("Traceback")
    # The same numbers and bytes as from a process that did nothing else.
    alone, run = carry_out(tmp_path / "alone", Toy()), folder.find(Toy())
    assert without_process(run) == without_process(alone.read())
    weights = [file.with_suffix("") / "weights.pt" for file in (run.file, alone.file)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    logs = {planned.method: log.read_text() for planned, _, log in outcome.failed}
    assert logs["killed"] == "starting at epoch 0\n"
    assert "ValueError: it is broken\nbeyond repair" in logs["broken"]


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
    outcome = run_sweep(folder, methods=["plain"], seeds=[0])
    counts = [len(each) for each in (outcome.finished, outcome.elsewhere)]
    assert counts == ([0, 1] if end == "finished" else [1, 0])
    assert outcome.failed == []
    assert in_this_process == [Toy(), Toy()]


def start_sweep(folder, *options, **environment):
    """Start a sweep of one's own in another process."""
    code = "import sys, torch\nfrom effdeg_lab import cli\nif __name__ == '__main__':\n    cli.main(sys.argv[1:])\n"
    script = folder.folder.parent / "start.py"
    script.write_text(code)
    command = [sys.executable, str(script), "sweep", NAME, "--runs", str(folder.folder), "--device", "cpu", *options]
    path = os.pathsep.join([str(Path(toys.__file__).parent), *sys.path])
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path} | environment, stdout=subprocess.PIPE)


def test_two_sweeps_share_a_folder(folder, tmp_path):
    options = ["--method", "plain", "--seeds", "0,1,2,3,4,5"]
    sweeps = [start_sweep(folder, *options) for _ in range(2)]
    outputs = [each.communicate()[0].decode() for each in sweeps]
    assert [each.returncode for each in sweeps] == [0, 0]
    runs = folder.read()
    assert [run.seed for run in runs] == list(range(6))
    assert all(run.finished for run in runs)
    assert sum(output.count(": finished, ") for output in outputs) == 6
    assert len({run.environment["process"] for run in runs}) <= 2  # a worker carries out one run after another
    assert without_process(runs[3]) == without_process(carry_out(tmp_path / "alone", Toy(seed=3)).read())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_is_ended_saves_and_the_next_one_continues_bit_for_bit(folder, tmp_path, number):
    settings, pipe = Toy(epochs=6), tmp_path / "pipe"
    os.mkfifo(pipe)
    options = ["--method", "plain", "--seeds", "0", "--set", "epochs=6"]
    process = start_sweep(folder, *options, TOY_HOLD=str(pipe))
    wait_for_hold(pipe)
    worker = folder.find(settings).environment["process"]
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (REQUEUE if number == signal.SIGTERM else -number)
    job = make_job(folder, settings)
    wait_until_free(job)
    assert job.read().stopped
    assert job.read().failure is None
    assert not Path(f"/proc/{worker}").exists() or number == signal.SIGKILL
    # The toy saves at every epoch before it holds; at the one where it holds, only when it is asked to stop.
    assert job.start()["epoch"] == HELD_AT
    job.close()
    execute(RECIPE, job)
    assert without_process(job.read()) == without_process(carry_out(tmp_path / "whole", settings).read())


def wait_until_free(job):
    """Wait until no process works on a run."""
    lock = job.runs.lock(job.settings)
    lock.acquire(timeout=120)
    lock.release()


def test_a_worker_that_gets_sigterm_saves_its_run_and_the_sweep_goes_on(folder, tmp_path, monkeypatch):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("TOY_HOLD", str(pipe))

    def stop_one():
        wait_for_hold(pipe)
        monkeypatch.setenv("TOY_HOLD", "")
        os.kill(folder.find(Toy()).environment["process"], signal.SIGTERM)

    thread = threading.Thread(target=stop_one)
    thread.start()
    outcome = run_sweep(folder, methods=["plain"], seeds=[0])
    thread.join()
    assert settings_of(outcome.stopped) == [Toy()]
    assert str(outcome) == "0 finished, 0 finished before, 0 failed, 1 stopped"
    assert folder.find(Toy()).stopped


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, StoppedError), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_ends_a_sweep_after_the_runs_under_way(folder, in_this_process, monkeypatch, number, error):
    def record(self, *arguments, record=sweeping._Sweep._record):
        os.kill(os.getpid(), number)
        record(self, *arguments)

    monkeypatch.setattr(sweeping._Sweep, "_record", record)
    with pytest.raises(error):
        run_sweep(folder, methods=["plain"])
    assert len(in_this_process) == 1


class Child:
    """A worker process that was never started."""

    started: ClassVar = []

    def __init__(self, target, args):
        self.connection = args[0]

    def start(self):
        self.started.append(os.environ.get("OMP_NUM_THREADS"))

    def is_alive(self):
        return True


def test_workers_share_the_cores_and_the_gpus(monkeypatch):
    class Context:
        Process = Child

        def Pipe(self):  # noqa: N802
            return workers.multiprocessing.Pipe()

    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: Context())
    monkeypatch.setattr(workers, "_count_cores", lambda: 7)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(Child, "started", [])
    sent = []
    monkeypatch.setattr(workers.Connection, "send", lambda self, order: sent.append(order.device))
    for threads in (None, "5"):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if threads:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        workers._Worker(0, 2).send(Order(NAME, "plain", {}, "", None, "cpu"))
        assert os.environ.get("OMP_NUM_THREADS") == threads
    for slot in range(3):
        workers._Worker(slot, 3).send(Order(NAME, "plain", {}, "", None, "cuda"))
    workers._Worker(0, 3).send(Order(NAME, "plain", {}, "", None, "cuda:1"))
    assert Child.started[:2] == ["3", "5"]
    assert sent == ["cpu", "cpu", "cuda:0", "cuda:1", "cuda:0", "cuda:1"]


@pytest.mark.parametrize("obstacle", ["folder", "log"])
def test_a_folder_that_cannot_be_used_stops_no_other_run(folder, in_this_process, obstacle):
    job = make_job(folder, recipe=recipe().name)
    job.folder.parent.mkdir(parents=True)
    if obstacle == "folder":
        job.folder.touch()
    else:
        (job.folder / "log.txt").mkdir(parents=True)
    outcome = run_sweep(folder, methods=["plain"])
    assert settings_of(outcome.finished) == [Toy(seed=1)]
    ((planned, error, _),) = outcome.failed
    assert planned.settings == Toy()
    assert str(job.folder) in error


def test_what_sweeps_have_yet_to_do_is_on_disk_while_they_run(folder, in_this_process, monkeypatch):
    seen = []

    def describe(self, running):
        (file,) = (folder.folder / ".sweeps").iterdir()
        seen.append(json.loads(file.read_text()))
        return ""

    monkeypatch.setattr(sweeping, "_LOOK", 0.0)
    monkeypatch.setattr(sweeping._Sweep, "_describe", describe)
    run_sweep(folder, methods=["plain", "ed"], tune=False, progress=True)
    assert [each["waiting"] for each in seen][:2] == [{"plain": 1, "ed": 2}, {"ed": 2}]
    assert seen[0]["recipe"] == NAME
