import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

from effdeg.lab import sweeping
from effdeg.lab.assignments import Assignment, work
from effdeg.lab.pools import Ended
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Store
from effdeg.lab.sweeping import Outcome, sweep
from effdeg.lab.task import Task
from tests.lab.toys import RECIPE, Toy, finish, recipe, train

CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.fixture
def in_this_process(monkeypatch):
    """Carry out runs one after the other without starting processes; give what was carried out."""
    done = []

    def one_by_one(orders, processes):
        for order in orders:
            done.append(order.run.settings)
            order.prepare()
            work(order.assignment)
            yield [], [Ended(order, order.error())]

    monkeypatch.setattr(sweeping, "on_this_machine", one_by_one)
    return done


def swept(store, **options):
    return sweep(recipe(), store=store, data=None, device=CPU, **({"progress": False} | options))


def test_it_tunes_first_and_runs_with_what_was_best(store, in_this_process):
    outcome = swept(store, methods=["plain", "ed"])
    tuning = [Toy("ed", weight, held_out=100, epochs=2) for weight in (2.0, 7.0, 20.0)]
    final = [Toy(), Toy(seed=1), Toy("ed", 7.0), Toy("ed", 7.0, seed=1)]
    assert in_this_process == tuning + final
    assert [job.settings for job in outcome.finished] == tuning + final
    assert outcome.skipped == outcome.failed == ()
    assert all(store.run(settings).finished for settings in tuning + final)

    again = swept(store, methods=["plain", "ed"])
    assert len(in_this_process) == 7
    assert (len(again.finished), len(again.skipped), len(again.failed)) == (0, 7, 0)
    # Without tuning, what was tuned before still holds.
    more = swept(store, methods=["ed"], tune=False, seeds=[2])
    assert [job.settings for job in more.finished] == [Toy("ed", 7.0, seed=2)]


def test_every_line_is_given_the_time_of_one(store, in_this_process):
    for settings, seconds in ((Toy(seed=7), 2.0), (Toy("ed", 3.0, seed=7), 5.0)):
        finish(store, settings, seconds=seconds)
    outcome = swept(store, methods=["plain", "ed"], seeds=[7], changes={"weight": 3.0}, tune=False, equal_time="ed")
    # A user's weight is that of all lines, so plain runs anew: 1.5 seconds for 4 epochs, hence 13 for 5.
    assert in_this_process == [Toy(weight=3.0, seed=7), Toy(weight=3.0, seed=7, epochs=13)]
    assert len(outcome.skipped) == 1


def test_without_the_time_of_the_reference_the_rest_is_done_and_told(store, in_this_process):
    outcome = swept(store, methods=["plain", "broken"], seeds=[0], equal_time="broken")
    assert in_this_process == [Toy(), Toy("broken")]
    assert [len(each) for each in (outcome.finished, outcome.failed, outcome.notes)] == [1, 1, 1]
    assert str(outcome).splitlines()[-1].startswith("plain is not run at equal time: no finished run of broken")


def test_without_tuning_the_own_strength_stands(store, in_this_process):
    swept(store, methods=["ed"], tune=False, seeds=[0])
    swept(store, methods=["ed"], seeds=[0], changes={"weight": 3})
    assert in_this_process == [Toy("ed", 2.0), Toy("ed", 3.0)]


def test_failures_are_kept_apart_and_told(store, in_this_process, capsys):
    outcome = swept(store, methods=["broken", "plain"], seeds=[0], progress=True)
    printed = capsys.readouterr()
    assert [job.row for job in outcome.finished] == ["plain"]
    (failure,) = outcome.failed
    assert (failure.job.row, failure.error) == ("broken", "beyond repair")
    assert failure.log == store.run(failure.job.settings).folder / "log.txt"
    assert "1 finished, 0 skipped, 1 failed\nbroken: beyond repair (see " in str(outcome)
    assert "Broken, seed 0: failed: beyond repair" in printed.out
    assert "Plain, seed 0: 70.0%, 2 s" in printed.out
    assert "2/2" in printed.err

    # The next sweep tries again what failed, and nothing else.
    (store.folder / "healed").touch()
    again = swept(store, methods=["broken", "plain"], seeds=[0])
    assert [job.row for job in again.finished] == ["broken"]
    assert [job.row for job in again.skipped] == ["plain"]
    assert store.run(again.finished[0].settings).record().failure is None


def test_three_runs_in_two_processes_one_fails_and_one_is_killed(store):
    outcome = swept(store, methods=["broken", "killed", "plain"], seeds=[0], processes=2)
    assert [job.row for job in outcome.finished] == ["plain"]
    assert {failure.job.row: failure.error for failure in outcome.failed} == {
        "broken": "beyond repair",
        "killed": "killed by SIGKILL, as the system does when memory runs out",
    }
    failures = {record.settings["method"]: record.failure for record in store.records()}
    assert failures["plain"] is None
    assert failures["killed"].startswith("killed by SIGKILL")
    assert failures["broken"].startswith("Traceback")
    logs = {failure.job.row: failure.log.read_text() for failure in outcome.failed}
    assert "beginning at epoch 0" in logs["killed"]
    assert "ValueError: it is broken\nbeyond repair" in logs["broken"]


def test_an_interrupt_ends_the_processes_and_the_next_sweep_goes_on(store, tmp_path, monkeypatch):
    settings = Toy(epochs=60)
    run = store.run(settings)

    def interrupt():
        until = time.monotonic() + 60
        while not ((record := run.record()) and len(record.metrics) > 3) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("TOY_PAUSE", "0.05")
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        swept(store, methods=["plain"], seeds=[0], changes={"epochs": 60})
    thread.join()
    monkeypatch.delenv("TOY_PAUSE")
    stopped = run.record()
    assert 3 < len(stopped.metrics) < 60
    assert stopped.failure is None  # an interrupt is no failure
    with pytest.raises(ProcessLookupError):
        os.kill(stopped.environment["process"], 0)

    assert work(Assignment(recipe().name, to_dict(settings), str(store.folder), None, "cpu"))
    whole = Store(tmp_path / "whole").run(settings)
    train(settings, Task(whole, None, CPU))
    assert run.record().metrics == whole.record().metrics


def test_a_run_that_another_works_on_is_left_to_it(store, in_this_process, capsys):
    run = store.run(Toy())
    run.begin({})
    run.log({"epoch": 1})
    outcome = swept(store, methods=["plain"], seeds=[0])
    assert len(outcome.failed) == 1
    assert "this process or another works on the run" in capsys.readouterr().err
    assert run.record().failure is None
    assert len(run.record().metrics) == 1


def test_mistakes_are_told_before_anything_runs(store, in_this_process):
    with pytest.raises(ValueError, match="processes=0 is too small"):
        swept(store, processes=0)
    with pytest.raises(ValueError, match="method='plian' is not known"):
        swept(store, methods=["plian"])
    with pytest.raises(ValueError, match="'toy' is not a recipe"):
        sweep(RECIPE, store=store, data=None, device=CPU)
    with pytest.raises(TypeError, match="epochs='x' is not possible"):
        swept(store, changes={"epochs": "x"})
    with pytest.raises(ValueError, match="ed is not among the lines of this sweep"):
        swept(store, methods=["plain"], equal_time="ed")
    with pytest.raises(ValueError, match="held_out=0 would have the test set decide strengths"):
        swept(store, tune=False, tuning_changes={"held_out": 0})
    mine = replace(recipe(), train=lambda settings, task: None)
    with pytest.raises(ValueError, match=r"with another train .* give it as package.module:RECIPE"):
        sweep(mine, store=store, data=None, device=CPU)
    assert in_this_process == []
    assert not store.folder.exists()
    assert Outcome() + Outcome() == Outcome()
