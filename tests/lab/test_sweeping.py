import os
import signal
import threading
from dataclasses import replace

import pytest
import torch

from effdeg.lab import sweeping
from effdeg.lab.assignments import Assignment, Ending, work
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Store
from effdeg.lab.sweeping import Outcome, sweep
from effdeg.lab.task import Task
from tests.lab.toys import HELD_AT, RECIPE, Toy, finish, recipe, train, wait_for_hold

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
            yield [], [order.ended(work(order.assignment))]

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
    assert "1 finished now, 0 before, 1 failed\nbroken: beyond repair (see " in str(outcome)
    assert "Broken, seed 0: failed: beyond repair" in printed.out
    assert "Plain, seed 0: 70.0%, 2 s" in printed.out
    assert "2/2" in printed.err

    # The next sweep tries again what failed, and nothing else.
    (store.folder / "healed").touch()
    again = swept(store, methods=["broken", "plain"], seeds=[0])
    assert [job.row for job in again.finished] == ["broken"]
    assert [job.row for job in again.skipped] == ["plain"]
    assert store.run(again.finished[0].settings).record().failure is None


def test_runs_in_two_processes_one_fails_and_one_is_killed(store, tmp_path):
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
    # The same bytes as from a process that did nothing else.
    whole = Store(tmp_path / "whole").run(Toy())
    train(Toy(), Task(whole, None, CPU))
    for name in ("metrics.jsonl", "summary.json", "weights.pt"):
        assert (store.run(Toy()).folder / name).read_bytes() == (whole.folder / name).read_bytes()
    logs = {failure.job.row: failure.log.read_text() for failure in outcome.failed}
    assert "beginning at epoch 0" in logs["killed"]
    assert "ValueError: it is broken\nbeyond repair" in logs["broken"]


def test_an_interrupt_ends_the_processes_and_the_next_sweep_goes_on(store, tmp_path, monkeypatch):
    settings = Toy(epochs=6)
    run, pipe = store.run(settings), tmp_path / "pipe"
    os.mkfifo(pipe)

    def interrupt():
        wait_for_hold(pipe)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setenv("TOY_HOLD", str(pipe))
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        swept(store, methods=["plain"], seeds=[0], changes={"epochs": 6})
    monkeypatch.delenv("TOY_HOLD")
    stopped = run.record()
    assert len(stopped.metrics) == HELD_AT
    assert stopped.failure is None  # an interrupt is no failure
    with pytest.raises(ProcessLookupError):
        os.kill(stopped.environment["process"], 0)

    assert work(Assignment(recipe().name, to_dict(settings), str(store.folder), None, "cpu")) == Ending.FINISHED
    whole = Store(tmp_path / "whole").run(settings)
    train(settings, Task(whole, None, CPU))
    assert run.record().metrics == whole.record().metrics


@pytest.mark.parametrize("end", ["finished", "given up"])
def test_a_run_that_another_works_on_is_waited_for(store, in_this_process, monkeypatch, end):
    run = store.run(Toy())
    run.begin({})
    run.log({"epoch": 1})

    def sleep(seconds):
        assert len(run.record().metrics) == 1  # nothing was touched meanwhile
        if end == "finished":
            run.finish({"test_accuracy": 0.5})
        run.close()

    monkeypatch.setattr(sweeping.time, "sleep", sleep)
    outcome = swept(store, methods=["plain"], seeds=[0])
    assert [len(each) for each in (outcome.finished, outcome.elsewhere)] == ([0, 1] if end == "finished" else [1, 0])
    assert outcome.failed == ()
    assert in_this_process == [Toy(), Toy()]
    assert run.finished


@pytest.mark.parametrize("moment", ["before the run", "within the run"])
def test_a_run_that_another_sweep_finishes_meanwhile_is_not_counted_as_ones_own(store, monkeypatch, capsys, moment):
    log = store.run(Toy()).folder / "log.txt"

    def finish_first(*given):
        finish(store, Toy(), seconds=2.0)
        log.write_text("the first sweep's own words")
        return given

    def carry_out(orders, processes):
        (order,) = orders
        order.prepare()
        if moment == "before the run":
            finish_first()
        yield [], [order.ended(work(order.assignment))]

    monkeypatch.setattr(sweeping, "on_this_machine", carry_out)
    if moment == "within the run":  # after the worker has looked, and before the run begins
        seed = torch.manual_seed
        monkeypatch.setattr(torch, "manual_seed", lambda number: (finish_first(), seed(number)))
    outcome = swept(store, methods=["plain"], seeds=[0], progress=True)
    assert str(outcome) == "0 finished now, 0 before, 1 finished elsewhere meanwhile, 0 failed"
    assert [job.settings for job in outcome.elsewhere] == [Toy()]
    assert "Plain, seed 0: finished elsewhere, 70.0%, 2 s" in capsys.readouterr().out
    assert log.read_text() == "the first sweep's own words"


def test_runs_under_way_are_looked_at_only_where_that_is_shown(store, in_this_process, monkeypatch):
    looked = []
    monkeypatch.setattr(sweeping, "last_entry", lambda folder: looked.append(folder) or {"test_accuracy": 0.5})

    def carry_out(orders, processes):
        for order in orders:
            yield [order], []

    monkeypatch.setattr(sweeping, "on_this_machine", carry_out)
    swept(store, methods=["plain"], seeds=[0])
    assert looked == []
    swept(store, methods=["plain"], seeds=[0], progress=True)
    assert looked == [store.run(Toy()).folder]


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
