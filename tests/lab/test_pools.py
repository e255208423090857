import json
import os
from typing import ClassVar

import pytest
import torch

from effdeg.lab import pools
from effdeg.lab.assignments import Assignment
from effdeg.lab.pools import Order, on_this_machine
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Store
from tests.lab.toys import Toy, recipe


def orders(folder, device, count):
    each = [Toy(seed=seed) for seed in range(count)]
    return [
        Order(Store(folder).run(settings), Assignment(recipe().name, to_dict(settings), str(folder), None, device))
        for settings in each
    ]


class Child:
    """A worker process that carries out nothing, and says that every run ended with an error."""

    started: ClassVar = []
    received: ClassVar = []
    answers: ClassVar = []
    alive = True

    def __init__(self, command, *, env, **_):
        self.env, self.stdin, self.stdout = env, self, self
        self.started.append(self)

    def write(self, line):
        self.received.append((Assignment(**json.loads(line)["assignment"]), self.env))

    def readline(self):
        answer = self.answers.pop(0) if self.answers else b"1\n"
        self.alive = bool(answer)
        return answer

    def poll(self):
        return None if self.alive else -9

    def wait(self, timeout=None):
        return -9

    def close(self):
        pass


@pytest.fixture
def started(monkeypatch):
    """Start nothing; give what would have been run, and in which environment."""
    monkeypatch.setattr(pools.subprocess, "Popen", Child)
    for each in (Child.started, Child.received, Child.answers):
        each.clear()
    return Child.received


def test_a_process_carries_out_many_runs_and_one_that_died_is_replaced(tmp_path, started):
    first, killed, last = orders(tmp_path, "cpu", 3)
    Child.answers += [b"1\n", b"", b"1\n"]  # no answer: the process died
    ended = [(each.order, each.error) for _, over in on_this_machine([first, killed, last], 1) for each in over]
    died = "killed by SIGKILL, as the system does when memory runs out"
    nothing = "it ended before it was finished"
    assert ended == [(first, nothing), (killed, died), (last, nothing)]
    assert len(started) == 3
    assert len(Child.started) == 2


def test_runs_share_the_cores(tmp_path, started, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    list(on_this_machine(orders(tmp_path, "cpu", 1), 2))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    list(on_this_machine(orders(tmp_path, "cpu", 1), 2))
    assert [environment["OMP_NUM_THREADS"] for _, environment in started] == ["3", "5"]
    assert started[0][0] == orders(tmp_path, "cpu", 1)[0].assignment


def test_runs_share_the_gpus_unless_one_is_named(tmp_path, started, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    list(on_this_machine(orders(tmp_path, "cuda", 3), 3))
    list(on_this_machine(orders(tmp_path, "cuda:1", 2), 2))
    assert [assignment.device for assignment, _ in started] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:1"]


@pytest.mark.parametrize("obstacle", ["folder", "log"])
def test_a_folder_that_cannot_be_used_stops_no_other_run(tmp_path, started, obstacle):
    bad, good, last = orders(tmp_path, "cpu", 3)
    if obstacle == "folder":
        bad.run.folder.write_text("a file")
        reason = f"runs cannot be kept in {bad.run.folder}: it is a file."
    else:
        bad.log.mkdir(parents=True)
        reason = f"[Errno 21] Is a directory: '{bad.log}'"
    ended = {each.order: each.error for _, over in on_this_machine([bad, good, last], 1) for each in over}
    assert ended == {bad: reason, good: "it ended before it was finished", last: "it ended before it was finished"}
    assert len(started) == 2


def test_an_end_without_an_error_or_a_result(tmp_path, started):
    (order,) = orders(tmp_path, "cpu", 1)
    assert [ended.error for _, over in on_this_machine([order], 1) for ended in over] == [
        "it ended before it was finished"
    ]
    order.log.write_text("one line\nanother line\n\n")
    assert order.error() == "another line"


def test_a_run_that_was_finished_before_its_process_died(tmp_path):
    (order,) = orders(tmp_path, "cpu", 1)
    order.run.begin({})
    order.run.finish({})
    assert order.died("killed by SIGSEGV") is None
    assert json.loads((order.run.folder / "summary.json").read_text()) == {}
    assert not (order.run.folder / "failure.txt").exists()
