"""Theorem 3.1: small runs, where it holds and where it need not, and the study of made-up runs with known values."""

from pathlib import Path

import pytest
import torch

from effdeg_lab.recipes.path_degrees import RECIPE
from effdeg_lab.results import MethodRuns, Results
from effdeg_lab.runs import Job, Run, RunFolder, StoppedError
from effdeg_lab.studies import path_degrees
from effdeg_lab.studies.path_degrees import PathDegrees, find_degrees, follow_polynomials, run_paths

CPU = torch.device("cpu")
SMALL = {"highest": 3, "polynomials": 3, "paths": 40, "nodes": 16, "degree": 8}
DENSE = ("dense-2", "dense-3", "sparse-10", "monomial-3")


def follow(degree, device=CPU, **changes):
    return follow_polynomials(PathDegrees(**{**SMALL, **changes}), degree, device)


def carry_out(folder, **options):
    settings = PathDegrees(**SMALL)
    job = Job(settings, "path-degrees", "dense-3", settings, RunFolder(folder), CPU, **options)
    try:
        run_paths(settings, job)
    finally:
        job.close()
    return job.read()


def make_entry(degree, **changes):
    """Make what a total degree gives when all is as the theorem has it."""
    return {
        "degree": degree,
        "followed": 1000,
        "found": float(degree),
        "found_coarsely": degree / 2,
        "too_high": 0,
        "dropped": 0,
        "vanishing": 0,
        "unexplained": 0,
        "effective_degree": {"value": 0.5 * degree, "stderr": 0.01},
        "normalized": {"value": 0.3 * degree, "stderr": 0.01},
        "noise": [{"size": size, "found": 8.0, "effective_degree": 0.5 * degree * (1 + size)} for size in (1e-6, 1e-2)],
    } | changes


def make_results(names=DENSE, entries=None, **changes):
    """Make results of two seeds and three total degrees; ``dense-3`` and a lattice have changes."""
    methods = []
    for method in RECIPE.methods:
        own = changes if method.name in ("dense-3", "lattice-3") else {}
        summary = {"degrees": entries or [make_entry(degree, **own) for degree in (1, 2, 3)], "seconds": 2.0}
        runs = [
            Run(Path("run.jsonl"), "path-degrees", method.name, "PathDegrees", settings.to_dict(), {}, [], summary)
            for settings in (RECIPE.resolve(method, {"seed": seed}) for seed in (0, 1))
            if method.name in names
        ]
        methods.append(MethodRuns(method, tuple(runs), "run" if runs else "not run"))
    return Results(RECIPE, {**SMALL}, tuple(methods))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"degree": 10}, "degree=10 leaves no room above .* Use degree=11"),
        ({"nodes": 16}, "nodes=16 cannot determine a polynomial of degree=16"),
        ({"terms": 0}, "terms=0 is too small"),
        ({"polynomials": 1}, "polynomials=1 is too small"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PathDegrees(**changes)


def test_the_degree_is_that_of_the_highest_coefficient_above_the_threshold():
    coefficients = torch.tensor([[1.0, 2.0, 0.1, 0.0, 1e-8]], dtype=torch.float64).mT
    assert [int(find_degrees(coefficients, threshold)) for threshold in (1e-9, 1e-3, 0.4)] == [4, 2, 1]
    assert find_degrees(torch.zeros(5, 1), 1e-9).tolist() == [0]


@pytest.mark.parametrize(
    "kind", [{"variables": 2}, {"variables": 10, "terms": 20, "inputs": "normal"}, {"variables": 3, "terms": 1}]
)
@pytest.mark.parametrize("degree", [1, 4, 6])
def test_with_a_density_every_path_has_the_total_degree(kind, degree):
    found = follow(degree, highest=6, **kind)
    assert found["followed"] == 3 * 40
    assert found["found"] == pytest.approx(degree, abs=0.05)
    assert found["too_high"] == found["vanishing"] == found["unexplained"] == 0


def test_on_a_lattice_the_degree_drops_as_often_as_a_step_stays_in_place():
    found = follow(3, variables=1, terms=1, inputs="lattice", paths=2000)
    # Of two independent values among three, a third are equal: the path of one variable is then a point.
    assert found["vanishing"] / found["followed"] == pytest.approx(1 / 3, abs=0.05)
    assert found["dropped"] == found["vanishing"]
    assert found["found"] == pytest.approx(3 * (1 - found["dropped"] / found["followed"]))


def test_noise_raises_the_degree_to_the_highest_fitted_and_hardly_the_effective_degree():
    found = follow(3, variables=2)
    clean = found["effective_degree"]["value"]
    assert all(each["found"] > 7.9 for each in found["noise"])
    assert found["noise"][0]["effective_degree"] == pytest.approx(clean, rel=1e-4)
    assert found["noise"][-1]["effective_degree"] > clean


def test_a_linear_function_has_the_effective_degree_of_its_half_differences():
    value = follow(1, variables=1, terms=1, paths=500)["effective_degree"]
    # x, scaled to a standard deviation of one, is uniform on [-√3, √3]: the mean of |u - v|/2 is √3/3.
    assert value["value"] == pytest.approx(3**-0.5, abs=4 * value["stderr"] + 0.02)
    assert 0.005 < value["stderr"] < 0.05


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_finds_what_a_cpu_does():
    here, there = (follow(3, device) for device in (CPU, torch.device("cuda", 0)))
    assert there["found"] == here["found"] == 3
    assert there["effective_degree"]["value"] == pytest.approx(here["effective_degree"]["value"], rel=1e-9)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_that_was_interrupted_ends_as_an_unbroken_one(tmp_path, monkeypatch, how):
    unbroken, degrees = carry_out(tmp_path / "unbroken"), []

    def follow_until_killed(settings, degree, device):
        degrees.append(degree)
        if how == "killed" and degrees == [1, 2, 3]:
            raise KeyboardInterrupt
        return follow_polynomials(settings, degree, device)

    monkeypatch.setattr(path_degrees, "follow_polynomials", follow_until_killed)
    with pytest.raises(StoppedError if how == "stopped" else KeyboardInterrupt):
        carry_out(tmp_path / "broken", asked_to_stop=lambda: how == "stopped" and degrees == [1, 2])
    broken = carry_out(tmp_path / "broken")
    assert degrees == ([1, 2, 3] if how == "stopped" else [1, 2, 3, 3])
    assert broken.metrics == unbroken.metrics == broken.summary["degrees"] == unbroken.summary["degrees"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "holds"),
        ({"dropped": 4}, "holds"),  # leading coefficients too small for float64
        ({"dropped": 1, "vanishing": 1}, "does not hold"),
        ({"dropped": 1, "unexplained": 1}, "does not hold"),
        ({"too_high": 1}, "does not hold"),
        ({"found": 2.0}, "does not hold"),  # the same for all total degrees
        ({"names": ("lattice-3",), "vanishing": 500}, "not decided"),
        ({"names": (*DENSE[2:], "lattice-3"), "vanishing": 500}, "holds"),
        ({"entries": [make_entry(1)]}, "holds"),
    ],
)
def test_the_claim(changes, word):
    assert RECIPE.study.claim(make_results(**changes)).word == word


def test_tables_have_what_was_found():
    degrees, noise, raw, normalized, extremes = RECIPE.study.tables(make_results(dropped=4))
    assert degrees.rows[1] == ("3 variables, all terms", "6,000", "0", "24", "3.000", "1.50")
    assert degrees.rows[4] == ("one term, on a lattice", "not run", "–", "–", "–", "–")
    assert noise.rows[0] == ("2 variables, all terms", "2.00; 1.000", "8.00; 1.000", "8.00; 1.010")
    assert raw.rows[0] == ("2 variables, all terms", "0.50 ± 0.01", "1.00 ± 0.01", "1.50 ± 0.01")
    assert normalized.rows[0][1:] == ("0.30 ± 0.01", "0.60 ± 0.01", "0.90 ± 0.01")
    assert extremes.rows[0] == ("2 variables, all terms", "8.00", "0.0%", "1.0%", "–", "–")


def test_an_effective_degree_that_falls_is_shown():
    values = ((1, 0.5), (2, 1.0), (3, 0.7))
    entries = [make_entry(degree, effective_degree={"value": value, "stderr": 0.01}) for degree, value in values]
    assert RECIPE.study.tables(make_results(entries=entries))[-1].rows[0][-2:] == ("1.00 (degree 2) to 0.70 (3)", "–")


def test_figures_show_every_method():
    every = tuple(method.name for method in RECIPE.methods)
    degrees, effective = (each.draw("dark") for each in RECIPE.study.figures(make_results(every)))
    titles = {method.title for method in RECIPE.methods}
    for axes in (degrees.axes[0], *effective.axes):
        assert {each.get_text() for each in axes.texts} == titles
    assert {each.get_text() for each in degrees.axes[1].texts} == {"D = 2", "D = 3"}
    degrees.canvas.draw()


def test_a_lattice_alone_can_be_drawn_and_summarized():
    results = make_results(("lattice-3",), dropped=500, vanishing=500)
    assert RECIPE.study.figures(results)[0].draw("light").axes
    headline = "total degree found on 1,500 of 3,000; leading coefficient zero on 1,500"
    assert RECIPE.study.headline(results.done[0].runs[0]) == headline
