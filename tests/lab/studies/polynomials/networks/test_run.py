"""Small runs: they fit, measure what the map measures, and survive being broken off."""

import json

import pytest
import torch

from effdeg.lab.store import Store
from effdeg.lab.studies.polynomials.networks import run
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS
from effdeg.lab.studies.polynomials.networks.settings import PolynomialFit
from effdeg.lab.task import Task

SMALL = {"width": 12, "examples": 250, "steps": 50, "paths": 100, "nodes": 12, "degree": 8, "pairs": 2**10}


class StoppedError(Exception):
    pass


def carried_out(folder, settings):
    work = Store(folder).run(settings)
    run.fit_and_measure(settings, Task(work, None, torch.device("cpu")))
    return work.folder


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def metrics(folder):
    """Give what was logged, less the times, which are never the same."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    before = torch.get_rng_state()
    folder = carried_out(tmp_path_factory.mktemp("unbroken"), PolynomialFit(task=2, **SMALL))
    assert torch.equal(torch.get_rng_state(), before)
    return folder


def test_a_network_fits_and_measures_what_its_map_does(unbroken):
    found = summary(unbroken)
    assert found["test_error"] < 1e-3
    for column in COLUMNS:
        network, exact = (found[what][column.name]["value"] for what in ("network", "same_paths"))
        assert network == pytest.approx(exact, rel=1e-3)
        assert 0 < found["network"][column.name]["stderr"] < 0.2 * network
    assert found["step"] == 50
    assert found["seconds"] > 0


def test_tasks_share_paths_but_not_networks(unbroken, tmp_path):
    settings = PolynomialFit(task=5, **SMALL | {"steps": 2})
    found, doubled = summary(unbroken), summary(carried_out(tmp_path, settings))
    for column in COLUMNS:
        factor = 1 if column.normalized else 2
        once, twice = (each["same_paths"][column.name]["value"] for each in (found, doubled))
        assert twice == pytest.approx(factor * once, rel=1e-9)
        network = (each["network"][column.name]["value"] for each in (found, doubled))
        assert next(network) * factor != pytest.approx(next(network), rel=1e-3)


def test_a_run_broken_off_ends_as_an_unbroken_one(unbroken, tmp_path, monkeypatch):
    settings = PolynomialFit(task=2, **SMALL)
    take_step = run._Fitting._take_step

    def breaks(self):
        take_step(self)
        if self._step == 25:
            raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(run._Fitting, "_take_step", breaks)
        with pytest.raises(StoppedError):
            carried_out(tmp_path, settings)
    folder = carried_out(tmp_path, settings)
    assert metrics(folder) == metrics(unbroken)
    ours, others = summary(folder), summary(unbroken)
    assert {**ours, "seconds": 0} == {**others, "seconds": 0}
    weights = [torch.load(each / "weights.pt", weights_only=True) for each in (folder, unbroken)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
