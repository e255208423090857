"""On a GPU: small runs end as they do on a CPU, up to the order in which sums are taken."""

import pytest
import torch

from effdeg.lab.store import Store
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS
from effdeg.lab.studies.polynomials.networks.run import fit_and_measure
from effdeg.lab.studies.polynomials.networks.settings import PolynomialFit
from effdeg.lab.studies.polynomials.paths.run import followed
from effdeg.lab.studies.polynomials.paths.settings import PathDegrees
from effdeg.lab.task import Task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
GPU = torch.device("cuda", 0)


def test_a_network_fits_and_measures_what_its_map_does(tmp_path):
    settings = PolynomialFit(task=2, width=12, examples=250, steps=50, paths=100, nodes=12, degree=8, pairs=2**10)
    run = Store(tmp_path).run(settings)
    fit_and_measure(settings, Task(run, None, GPU))
    found = run.record().summary
    assert found["test_error"] < 1e-3
    for column in COLUMNS:
        network, exact = (found[what][column.name]["value"] for what in ("network", "same_paths"))
        assert network == pytest.approx(exact, rel=1e-3)


def test_degrees_along_paths_are_those_of_the_cpu():
    settings = PathDegrees(highest=3, polynomials=3, paths=40, nodes=16, degree=8)
    here, there = (followed(settings, 3, device) for device in (torch.device("cpu"), GPU))
    assert there["found"] == here["found"] == 3
    assert there["effective_degree"]["value"] == pytest.approx(here["effective_degree"]["value"], rel=1e-9)
