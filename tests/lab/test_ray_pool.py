import pytest
import torch

from effdeg.lab.store import Store
from effdeg.lab.sweeping import sweep
from tests.lab.toys import recipe

ray = pytest.importorskip("ray", reason="Ray is not installed")


def test_failing_killed_blocked_and_good_runs_on_a_local_ray(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # where Ray leaves a token
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # which it sets, and which is taken back after this test
    monkeypatch.delenv("RAY_AUTH_MODE")
    store = Store(tmp_path / "runs")
    blocked = store.run(recipe().resolved(recipe().row("ed"), {})).folder
    blocked.parent.mkdir()
    blocked.write_text("a file")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        outcome = sweep(
            recipe(),
            store=store,
            data=None,
            device=torch.device("cpu"),
            ray="local",
            methods=["broken", "killed", "ed", "plain"],
            seeds=[0],
            tune=False,
            progress=False,
        )
        assert ray.is_initialized()  # whoever connects disconnects
    finally:
        ray.shutdown()
    assert [job.row for job in outcome.finished] == ["plain"]
    failures = {failure.job.row: failure for failure in outcome.failed}
    assert failures["broken"].error == "beyond repair"
    assert failures["ed"].error == f"runs cannot be kept in {blocked}: it is a file."
    assert failures["killed"].error.startswith("The worker died unexpectedly")
    assert store.run(failures["killed"].job.settings).record().failure == failures["killed"].error
    assert "beginning at epoch 0" in failures["killed"].log.read_text()
