"""Small runs: the theorem holds where it should, does not where it need not, and runs survive being broken off."""

import json

import pytest
import torch

from effdeg.lab.store import Store
from effdeg.lab.studies.polynomials.paths import run
from effdeg.lab.studies.polynomials.paths.settings import PathDegrees
from effdeg.lab.task import Task

CPU = torch.device("cpu")
SMALL = {"highest": 3, "polynomials": 3, "paths": 40, "nodes": 16, "degree": 8}


class StoppedError(Exception):
    pass


def small(**changes):
    return PathDegrees(**{**SMALL, **changes})


def carried_out(folder, settings):
    work = Store(folder).run(settings)
    run.follow_paths(settings, Task(work, None, CPU))
    return work.folder


@pytest.mark.parametrize(
    "kind", [{"variables": 2}, {"variables": 10, "terms": 20, "inputs": "normal"}, {"variables": 3, "terms": 1}]
)
@pytest.mark.parametrize("degree", [1, 4, 6])
def test_with_a_density_every_path_has_the_total_degree(kind, degree):
    found = run.followed(small(highest=6, **kind), degree, CPU)
    assert found["degree"] == degree
    assert found["followed"] == 3 * 40
    assert found["found"] == pytest.approx(degree, abs=0.05)
    assert found["too_high"] == found["vanishing"] == found["unexplained"] == 0


def test_on_a_lattice_the_degree_drops_as_often_as_a_step_stays_in_place():
    found = run.followed(small(variables=1, terms=1, inputs="lattice", paths=2000), 3, CPU)
    # Of two independent values among three, a third are equal: the path of one variable is then a point.
    assert found["vanishing"] / found["followed"] == pytest.approx(1 / 3, abs=0.05)
    assert found["dropped"] == found["vanishing"]
    assert found["found"] == pytest.approx(3 * (1 - found["dropped"] / found["followed"]))


def test_noise_raises_the_degree_to_the_highest_fitted_and_hardly_the_effective_degree():
    found = run.followed(small(variables=2), 3, CPU)
    sizes = [each["size"] for each in found["noise"]]
    assert sizes == sorted(sizes)
    assert all(each["found"] > 7.9 for each in found["noise"])
    clean = found["effective_degree"]["value"]
    assert found["noise"][0]["effective_degree"] == pytest.approx(clean, rel=1e-4)
    assert found["noise"][-1]["effective_degree"] > clean


def test_a_linear_function_has_the_effective_degree_of_its_half_differences():
    found = run.followed(small(variables=1, terms=1, paths=500), 1, CPU)
    # x, scaled to a standard deviation of one, is uniform on [-√3, √3]: the mean of |u - v|/2 is √3/3.
    value = found["effective_degree"]
    assert value["value"] == pytest.approx(3**-0.5, abs=4 * value["stderr"] + 0.02)
    assert 0.005 < value["stderr"] < 0.05


def test_a_run_broken_off_ends_as_an_unbroken_one(tmp_path, monkeypatch):
    before = torch.get_rng_state()
    unbroken = carried_out(tmp_path / "unbroken", small())
    assert torch.equal(torch.get_rng_state(), before)
    followed = run.followed

    def breaks(settings, degree, device):
        if degree == 3:
            raise StoppedError
        return followed(settings, degree, device)

    with monkeypatch.context() as patch:
        patch.setattr(run, "followed", breaks)
        with pytest.raises(StoppedError):
            carried_out(tmp_path / "broken", small())
    broken = carried_out(tmp_path / "broken", small())
    assert (broken / "metrics.jsonl").read_text() == (unbroken / "metrics.jsonl").read_text()
    summaries = [json.loads((each / "summary.json").read_text()) for each in (broken, unbroken)]
    assert summaries[0]["degrees"] == summaries[1]["degrees"]
    assert [entry["degree"] for entry in summaries[0]["degrees"]] == [1, 2, 3]
    assert summaries[0]["seconds"] > 0
