import os
import sys
from pathlib import Path

import pytest
import torch
from toys import Toy, make_job, recipe

from effdeg_lab.plan import Plan
from effdeg_lab.runs import RunFolder
from effdeg_lab.sweep import sweep

ray = pytest.importorskip("ray", reason="Ray is not installed")


def test_failing_killed_blocked_and_good_runs_on_a_local_ray(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # where Ray leaves a token
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # which it sets, and which is taken back after this test
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))  # for Ray's workers
    folder = RunFolder(tmp_path / "runs")
    blocked = make_job(folder, Toy(seed=1), recipe=recipe().name).folder
    blocked.parent.mkdir(parents=True)
    blocked.touch()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        plan = Plan(recipe(), ["broken", "killed", "plain"])
        outcome = sweep(plan, runs=folder, device=torch.device("cpu"), ray="local", progress=False)
        assert ray.is_initialized()  # whoever connects disconnects
    finally:
        ray.shutdown()
    errors = {(planned.method, planned.settings.seed): error for planned, error, _ in outcome.failed}
    assert [each.settings for each in outcome.finished] == [Toy()], errors
    assert errors["broken", 0] == "beyond repair"
    assert str(blocked) in errors["plain", 1]
    assert errors["killed", 0].startswith("The worker died unexpectedly")
    assert folder.find(Toy(regularizer="killed")).failure == errors["killed", 0]
    logs = {planned.method: log for planned, _, log in outcome.failed}
    assert logs["killed"].read_text() == "starting at epoch 0\n"
