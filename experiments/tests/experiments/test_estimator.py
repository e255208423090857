"""The estimator on known functions: closed forms against quadrature, runs, and what follows from their outcomes."""

import inspect
import math
from functools import partial

import pandas as pd
import pytest
import torch
from engine_runs import carry_out
from toy_results import invent_run

import effdeg
from effdeg.functional import cosine_nodes, effective_degree, fit
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.experiments import estimator

KNOWN = {
    "polynomial": estimator.make_polynomial,
    "sine": partial(estimator.make_sine, frequency=16.0),
    "kinks": partial(estimator.make_kinks, units=3),
}


def integrate(function, first, second, degree, points):
    """Compute Chebyshev coefficients by the midpoint rule in the angle."""
    angles = (torch.arange(points, dtype=torch.float64) + 0.5) * (math.pi / points)
    weights = torch.cos(torch.arange(degree + 1)[:, None] * angles) * (2 / points)
    weights[0] /= 2
    alpha = (1 + torch.cos(angles)[:, None]) / 2
    paths = zip(first, second, strict=True)
    return torch.stack([weights @ function(torch.lerp(two, one, alpha)) for one, two in paths])


@pytest.mark.parametrize("name", KNOWN)
def test_coefficients_are_those_of_a_dense_quadrature(name):
    inputs, evaluate, expand = KNOWN[name](30, torch.Generator().manual_seed(2), torch.device("cpu"))
    first, second = inputs.chunk(2)
    # With a kink the error of the quadrature falls only as the square of its step.
    points, close = (40_000, 1e-8) if name == "kinks" else (512, 1e-12)
    found = expand(first, second, 45)
    expected = integrate(evaluate, first, second, 45, points)
    torch.testing.assert_close(found, expected, rtol=0, atol=close)
    torch.testing.assert_close(expand(first, second, 2), found[:, :3], rtol=0, atol=1e-15)


RECIPE = find_recipe("estimator")

CPU = torch.device("cpu")
SMALL = {"paths": 12, "examples": 30, "draws": 3, "seed": 2}
KINKS = estimator.Estimation(function="kinks", units=3, **SMALL)
SETTINGS = [(*scheme, degree) for scheme in estimator.SCHEMES for degree in estimator.DEGREES if degree < scheme[1]]


@pytest.fixture(scope="module")
def kinks(tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("runs"), KINKS, estimator.run)


def test_every_setting_is_measured_once(kinks):
    assert [(each["sampling"], each["nodes"], each["degree"]) for each in kinks.metrics] == SETTINGS
    known = dict(zip(kinks.summary["degrees"], kinks.summary["exact"], strict=True))
    assert known[640] > known[320] > known[160] > known[40] > known[0] == 0
    assert all((each["within"] > 0) == (each["sampling"] == "cosine") for each in kinks.metrics)


@pytest.mark.parametrize("sampling", ["cosine", "chebyshev", "uniform"])
def test_a_run_records_what_a_user_measures(kinks, sampling):
    subject = estimator.Subject(KINKS, CPU)
    options = {"paths": 12, "nodes": 15, "degree": 7, "sampling": sampling, "output": "identity", "seed": 2}
    measured = effdeg.measure(subject.evaluate, subject.inputs, **options)
    first, second = subject.inputs[measured.pairs].unbind(1)
    coefficients = subject.expand(first, second, 7)
    exact = torch.stack([(k * coefficients[:, k].abs()).mean(-1) for k in range(8)]).sum(0)
    errors = (measured.per_path - exact) / exact.mean()
    expected = {
        "value": measured.value,
        "std": float(measured.per_path.std()),
        "residual": measured.residual,
        "upper_half": measured.upper_half,
        "exact": float(exact.mean()),
        "bias": measured.value / float(exact.mean()) - 1,
        "bias_stderr": float(errors.std()) / 12**0.5,
    }
    found = kinks.metrics[SETTINGS.index((sampling, 15, 7))]
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_variation_within_paths_is_that_of_drawing_again():
    settings = estimator.Estimation(function="sine", frequency=9.0, paths=40, examples=30, draws=60)
    subject = estimator.Subject(settings, CPU)
    pairs = effdeg.trace(subject.evaluate, subject.inputs, paths=40, nodes=4, seed=0).pairs
    first, second = subject.inputs[pairs].unbind(1)
    alpha = torch.stack([cosine_nodes(6, 40, generator=torch.Generator().manual_seed(seed)) for seed in range(60)])
    values = torch.sin(9.0 * (alpha * first + (1 - alpha) * second))[..., None].flatten(0, 1)
    expected = effective_degree(fit(values, alpha.flatten(0, 1), 3)).view(60, 40).var(0).mean().sqrt()
    assert subject.spread_within_paths(6, [3])[0] == pytest.approx(float(expected), rel=0.15)


def make_outcomes(*rows):
    base = {"sampling": "cosine", "nodes": 8, "degree": 5, "spread": 0.5, "bias": 0.0, "whole_bias": 0.0}
    frame = pd.DataFrame([base | row for row in rows])
    return frame.assign(passes=frame["nodes"] * 625)


def test_the_defaults_are_those_of_measure():
    defaults = {name: each.default for name, each in inspect.signature(effdeg.measure).parameters.items()}
    assert (defaults["sampling"], defaults["nodes"], defaults["degree"]) == estimator.DEFAULT


def test_the_cheapest_setting_is_unbiased_in_both_ways():
    cancelling = {"nodes": 3, "degree": 2, "whole_bias": 0.001, "bias": 0.5}
    low, good = {"nodes": 4, "degree": 3, "whole_bias": -0.3}, {"nodes": 15, "whole_bias": -0.009}
    found = make_outcomes(cancelling, low, {"nodes": 32}, good, {"nodes": 6, "sampling": "uniform"})
    assert [estimator.find_cheapest(found, kind)["nodes"] for kind in ("cosine", "uniform")] == [15, 6]
    assert estimator.find_cheapest(found, "chebyshev") is None


def make_run(method, *, bias=0.0, late=0.0, seed=0):
    """Make a run whose exact value is 1, and 2 from degree 20 on; and perhaps more beyond degree 99."""
    exact = {degree: min(degree, 1) + (degree >= 20) + late * (degree > 99) for degree in estimator.EXACT_AT}
    metrics = pd.DataFrame(SETTINGS, columns=["sampling", "nodes", "degree"])
    known, low = metrics["degree"].map(exact), metrics["degree"] < 7
    metrics = metrics.assign(value=known * (1 + bias), std=known, within=0.1, bias=bias, bias_stderr=0.001)
    metrics["warned"] = low & (metrics["nodes"] > metrics["degree"] + 1)
    metrics = metrics.assign(residual=0.2 * low, upper_half=0.5 * (metrics["degree"] <= 20))
    summary = {"degrees": list(exact), "exact": list(exact.values()), "seconds": 1.0}
    return invent_run(RECIPE, method, summary, metrics.to_dict("records"), seed=seed)


@pytest.mark.parametrize(("bias", "word"), [(0.005, "holds"), (-0.02, "does not hold"), (0.01, "not decided")])
def test_the_claim_is_decided_by_the_largest_bias_of_the_defaults(bias, word):
    verdict = RECIPE.study.claim(collect(RECIPE, [make_run("polynomial"), make_run("kinks-4", bias=bias)])[0])
    assert (verdict.word, verdict.value) == (word, bias)
    assert "ReLU network, 4 units" in verdict.quantity


def test_a_value_that_the_defaults_cut_off_counts_as_missed():
    costs = RECIPE.study.tables(collect(RECIPE, [make_run("sine-64", late=0.5)])[0])[0]
    assert costs.rows[0] == ("sin 64x", "cosine", *["–"] * 7)
    assert costs.rows[3][:5] == ("sin 64x", "default", "200", "40", "-20.00")


def test_tables_have_the_cheapest_setting_and_count_warnings():
    costs, nodes, warnings = RECIPE.study.tables(collect(RECIPE, [make_run("polynomial")])[0])
    # Degree 20 is the first with the whole value, 24 nodes the fewest for it; the spread is 1, hence 2,500 paths.
    title = "polynomial of degree 5"
    assert costs.rows[0] == (title, "cosine", "24", "20", "+0.00", "1.00", "0.050", "2,500", "60,000")
    assert costs.rows[3] == (title, "default", "200", "40", "+0.00", "1.00", "0.050", "2,500", "500,000")
    assert costs.bold == {(row, 8) for row in range(3)}
    assert nodes.rows[0] == (title, "cosine", "3", "4", "6", "8", "15", "15", "24", "48")
    below = [(nodes, degree) for _, nodes, degree in SETTINGS if degree < 20]
    caught = sum(degree < 7 and nodes > degree + 1 for nodes, degree in below)
    blind = sum(nodes == degree + 1 for nodes, degree in below)
    needless = sum(degree == 20 for *_, degree in SETTINGS)
    counts = (caught, blind, len(below) - caught - blind, 0, len(below), 0, needless)
    assert warnings.rows[0] == (title, f"{len(below)} of {len(SETTINGS)}", *map(str, counts))


def test_the_figure_has_the_exact_values_of_every_function():
    results = collect(RECIPE, [make_run("polynomial"), make_run("kinks-64", bias=0.02)])[0]
    (figure,) = RECIPE.study.figures(results)
    (axes,) = figure.draw("dark").axes
    assert [text.get_text() for text in axes.texts] == ["polynomial of degree 5", "ReLU network, 64 units"]
