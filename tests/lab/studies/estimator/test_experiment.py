"""A run that holds the estimator against a known function."""

import json

import pytest
import torch

import effdeg
from effdeg.lab.store import Store
from effdeg.lab.studies.estimator import experiment
from effdeg.lab.studies.estimator.experiment import estimate
from effdeg.lab.studies.estimator.grid import SCHEMES, degrees_on
from effdeg.lab.studies.estimator.known import known_function
from effdeg.lab.studies.estimator.settings import Estimation
from effdeg.lab.task import Task

SMALL = {"paths": 24, "examples": 30, "draws": 3, "seed": 2}


def carried_out(folder, settings):
    run = Store(folder).run(settings)
    estimate(settings, Task(run, None, torch.device("cpu")))
    return run.record()


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return carried_out(tmp_path_factory.mktemp("runs"), Estimation(function="kinks", units=3, **SMALL))


def entry(record, **wanted):
    return next(each for each in record.metrics if wanted.items() <= each.items())


def function_and_inputs(settings):
    generator = torch.Generator().manual_seed(settings.seed)
    function = known_function(settings, generator, torch.device("cpu"))
    return function, function.inputs(settings.examples, generator)


def test_every_setting_is_there_once(record):
    found = [(each["sampling"], each["nodes"], each["degree"]) for each in record.metrics]
    expected = [(sampling, nodes, degree) for sampling, nodes in SCHEMES for degree in degrees_on(nodes)]
    assert found == expected
    assert record.summary["seconds"] > 0
    known = dict(zip(record.summary["degrees"], record.summary["exact"], strict=True))
    assert known[0] == 0
    assert known[640] > known[320] > known[160] > known[40]


@pytest.mark.parametrize("sampling", ["cosine", "chebyshev", "uniform"])
def test_what_is_kept_is_what_a_user_measures(record, sampling):
    settings = Estimation(function="kinks", units=3, **SMALL)
    function, inputs = function_and_inputs(settings)
    measured = effdeg.measure(
        function,
        inputs,
        paths=24,
        nodes=15,
        degree=7,
        sampling=sampling,
        output="identity",
        seed=2,
    )
    first, second = inputs[measured.pairs].unbind(1)
    coefficients = function.coefficients(first, second, 7)
    exact = torch.stack([(k * coefficients[:, k].abs()).mean(-1) for k in range(8)]).sum(0)
    found = entry(record, sampling=sampling, nodes=15, degree=7)
    assert found["value"] == pytest.approx(measured.value, rel=1e-9)
    assert found["std"] == pytest.approx(float(measured.per_path.std()), rel=1e-9)
    assert found["residual"] == pytest.approx(measured.residual, rel=1e-6)
    assert found["exact"] == pytest.approx(float(exact.mean()), rel=1e-12)
    assert found["bias"] == pytest.approx(measured.value / float(exact.mean()) - 1, abs=1e-9)
    errors = (measured.per_path - exact) / exact.mean()
    assert found["bias_stderr"] == pytest.approx(float(errors.std()) / 24**0.5, rel=1e-6)
    known = dict(zip(record.summary["degrees"], record.summary["exact"], strict=True))
    assert known[7] == pytest.approx(float(exact.mean()), rel=1e-12)
    upper = sum(k * measured.spectrum[k] for k in range(4, 8)) / sum(k * measured.spectrum[k] for k in range(8))
    assert found["upper_half"] == pytest.approx(float(upper), rel=1e-9)


def test_random_nodes_alone_vary_the_value_of_a_path_and_more_of_them_less(record):
    within = [entry(record, sampling="cosine", nodes=nodes, degree=3)["within"] for nodes in (4, 16, 64)]
    assert within[0] > 2 * within[1] > 4 * within[2] > 0
    assert all(each["within"] == 0 for each in record.metrics if each["sampling"] != "cosine")


def test_the_variation_within_paths_is_that_of_drawing_again():
    settings = Estimation(function="sine", frequency=9.0, paths=40, examples=30, draws=60)
    subject = experiment._Subject(settings, torch.device("cpu"))
    function, inputs = function_and_inputs(settings)
    pairs = effdeg.trace(function, inputs, paths=40, nodes=4, seed=0).pairs
    first, second = inputs[pairs].unbind(1)
    drawn = []
    for seed in range(60):
        alpha = effdeg.functional.cosine_nodes(6, 40, generator=torch.Generator().manual_seed(seed))
        values = torch.sin(9.0 * (alpha * first + (1 - alpha) * second))[..., None]
        drawn.append(effdeg.functional.effective_degree(effdeg.functional.fit(values, alpha, 3)))
    expected = torch.stack(drawn).var(0).mean().sqrt()
    assert subject._within_paths(6, [3])[0] == pytest.approx(float(expected), rel=0.15)


@pytest.mark.parametrize("sampling", ["cosine", "chebyshev", "uniform"])
def test_a_polynomial_is_found_exactly_once_there_are_nodes_enough(sampling):
    subject = experiment._Subject(Estimation(**SMALL), torch.device("cpu"))
    found = [each for nodes in (3, 6, 15) for each in subject.measured(sampling, nodes)]
    assert {each["degree"] for each in found} == {2, 3, 5, 7, 10, 14}
    whole = subject.summary()["exact"][subject.summary()["degrees"].index(5)]
    for each in found:
        exact = each["degree"] >= 5
        assert (abs(each["value"] / whole - 1) < 1e-4) == exact
        assert abs(each["bias"]) < 1e-4 or not exact
        assert each["residual"] < 1e-9 or not exact


def test_the_warning_is_the_measurement_s_own_and_none_where_it_cannot_tell():
    subject = experiment._Subject(Estimation(function="sine", frequency=16.0, **SMALL), torch.device("cpu"))
    found = {(each["nodes"], each["degree"]): each for nodes in (3, 16) for each in subject.measured("cosine", nodes)}
    assert found[16, 2]["warned"]
    assert found[16, 2]["residual"] > 0.05
    assert not found[16, 14]["warned"]
    assert not found[3, 2]["warned"]


def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path, monkeypatch):
    settings = Estimation(function="sine", **SMALL)
    monkeypatch.setattr(experiment, "SCHEMES", SCHEMES[:8])
    whole = carried_out(tmp_path / "whole", settings)
    measured, calls = experiment._Subject.measured, []

    def breaks(self, sampling, nodes):
        calls.append((sampling, nodes))
        if len(calls) == 5:
            raise RuntimeError("broken off")
        return measured(self, sampling, nodes)

    monkeypatch.setattr(experiment._Subject, "measured", breaks)
    with pytest.raises(RuntimeError, match="broken off"):
        carried_out(tmp_path / "broken", settings)
    broken = carried_out(tmp_path / "broken", settings)
    # What was measured before is not measured again.
    assert calls[:4] + calls[5:] == list(SCHEMES[:8])
    assert broken.metrics == whole.metrics
    ends = [{key: value for key, value in each.summary.items() if key != "seconds"} for each in (whole, broken)]
    assert json.dumps(ends[0]) == json.dumps(ends[1])


def test_torch_s_random_numbers_are_left_alone():
    before = torch.get_rng_state()
    experiment._Subject(Estimation(function="kinks", **SMALL), torch.device("cpu")).measured("cosine", 4)
    assert torch.equal(before, torch.get_rng_state())
