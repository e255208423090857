"""Networks that are polynomials: their training, small runs, and the study of made-up runs with known values."""

from pathlib import Path

import pytest
import torch

from effdeg.functional import fit
from effdeg_lab.recipes.pnn import RECIPE
from effdeg_lab.results import MethodRuns, Results
from effdeg_lab.runs import Job, Run, RunFolder, StoppedError
from effdeg_lab.studies import polynomial_networks
from effdeg_lab.studies.polynomial_networks import (
    NETWORK_DEGREE,
    PolynomialFit,
    PolynomialNetwork,
    run_fit,
    take_levenberg_marquardt_step,
)
from effdeg_lab.studies.polynomials import COLUMNS, DEGREES, draw_inputs

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")),
]
SMALL = {"width": 8, "examples": 150, "steps": 50, "paths": 60, "nodes": 10, "degree": 8, "pairs": 2**8}
# About what the maps measure.
EXACT = {
    1: (0.667, 0.278, 0.667, 1.323, 0.662),
    2: (1.185, 0.797, 1.333, 2.038, 1.324),
    3: (2.958, 1.154, 3.673, 5.432, 3.430),
}


def carry_out(folder, settings, device="cpu", **options):
    job = Job(settings, "pnn", f"task-{settings.task}", settings, RunFolder(folder), torch.device(device), **options)
    try:
        with torch.random.fork_rng():
            run_fit(settings, job)
    finally:
        job.close()
    return job


def drop_times(entry):
    return {key: value for key, value in entry.items() if key != "seconds"}


def make_run(task, seed, *, factor=1.0, error=1e-5, stderr=0.01):
    """Make a run whose network measures a factor times what its map does, in every column."""
    values = {
        column.name: value * (column.factor if task > 3 else 1)
        for column, value in zip(COLUMNS, EXACT[(task - 1) % 3 + 1], strict=True)
    }
    summary = {
        "test_error": error,
        "seconds": 2.0,
        "network": {name: {"value": factor * value, "stderr": stderr * value} for name, value in values.items()},
        "same_paths": {name: {"value": value, "stderr": stderr * value} for name, value in values.items()},
        "exact": {name: {"value": value, "stderr": 1e-4} for name, value in values.items()},
    }
    metrics = [{"step": 10, "test_error": 0.1}, {"step": 100, "test_error": error}]
    settings = PolynomialFit(task=task, seed=seed).to_dict()
    return Run(Path("run.jsonl"), "pnn", f"task-{task}", "PolynomialFit", settings, {}, metrics, summary)


def make_results(tasks=tuple(DEGREES), **changes):
    """Make results of two seeds of some tasks, each with changes of its own: ``task_3={"factor": 2}``."""
    methods = []
    for method in RECIPE.methods:
        task = method.changes["task"]
        runs = [make_run(task, seed, **changes.get(f"task_{task}", {})) for seed in (0, 1) if task in tasks]
        methods.append(MethodRuns(method, tuple(runs), "run" if runs else "not run"))
    scale = {name: getattr(RECIPE.settings, name) for name in RECIPE.settings.scale_names()}
    return Results(RECIPE, scale, tuple(methods))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": 7}, "task=7 is not one of the six maps"),
        ({"degree": 7}, "polynomial of degree 8. Use degree=8"),
        ({"nodes": 10}, "nodes=10 cannot determine a polynomial of degree=10"),
        ({"steps": 0}, "steps=0 is too small"),
        ({"paths": 1}, "paths=1 is too small"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        PolynomialFit(**changes)


def test_a_network_is_a_polynomial_of_degree_eight():
    torch.manual_seed(0)
    network, alpha = PolynomialNetwork(5), torch.linspace(0, 1, 20, dtype=torch.float64)
    first, second = draw_inputs(2, torch.Generator().manual_seed(0))
    values = network(alpha[:, None] * first + (1 - alpha[:, None]) * second).detach()
    coefficients = fit(values, alpha, 12, damping=0.0)
    assert float(coefficients[NETWORK_DEGREE].abs().min()) > 1e-9
    assert float(coefficients[NETWORK_DEGREE + 1 :].abs().max()) < 1e-13


def test_the_jacobian_is_that_of_one_backward_pass_for_every_output():
    torch.manual_seed(0)
    network, inputs = PolynomialNetwork(5), draw_inputs(4, torch.Generator().manual_seed(0))
    network.scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    found = network.jacobian(inputs)
    for point in range(4):
        for output in range(3):
            gradients = torch.autograd.grad(network(inputs[point])[output], list(network.parameters()))
            torch.testing.assert_close(found[point, output], torch.cat([each.flatten() for each in gradients]))


def descend(residuals, weights, steps, damping=0.01):
    for _ in range(steps):
        jacobian = torch.func.jacrev(residuals)(weights)
        before = residuals(weights).square().sum()
        weights, damping = take_levenberg_marquardt_step(residuals, jacobian, weights, damping)
        assert residuals(weights).square().sum() <= before
    return weights


def test_a_linear_problem_is_solved_as_by_normal_equations():
    generator = torch.Generator().manual_seed(0)
    matrix, right = (torch.randn(9, size, dtype=torch.float64, generator=generator) for size in (4, 1))
    found = descend(lambda weights: matrix @ weights - right[:, 0], torch.zeros(4, dtype=torch.float64), 5, 1e-9)
    torch.testing.assert_close(found, torch.linalg.lstsq(matrix, right).solution[:, 0])


def test_rosenbrocks_bent_valley_is_followed_to_its_end():
    def residuals(weights):
        return torch.stack([10 * (weights[1] - weights[0] ** 2), 1 - weights[0]])

    found = descend(residuals, torch.tensor([-1.2, 1.0], dtype=torch.float64), 60)
    torch.testing.assert_close(found, torch.ones(2, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_steps_that_are_no_better_or_overflow_are_not_taken():
    assert descend(lambda weights: weights, torch.zeros(3, dtype=torch.float64), 2).tolist() == [0, 0, 0]
    start = torch.tensor([2.0], dtype=torch.float64)
    assert abs(float(descend(lambda weights: torch.exp(weights**2) - 1, start, 40, damping=1e-15))) < 0.1


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("unbroken"), PolynomialFit(task=2, **SMALL))


@pytest.mark.parametrize("device", DEVICES)
def test_a_network_fits_and_measures_what_its_map_does(unbroken, tmp_path, device):
    job = unbroken if device == "cpu" else carry_out(tmp_path, PolynomialFit(task=2, **SMALL), device)
    run = job.read()
    assert run.value("test_error") < 1e-3
    for name in (column.name for column in COLUMNS):
        network = run.value(f"network.{name}.value")
        assert network == pytest.approx(run.value(f"same_paths.{name}.value"), rel=1e-3)
        assert 0 < run.value(f"network.{name}.stderr") < 0.2 * network
    assert run.value("step") == 50
    assert RECIPE.study.headline(run).startswith(f"relative error {run.value('test_error'):.1e}, ED 1.")


def test_tasks_share_paths_but_not_networks(unbroken, tmp_path):
    doubled = carry_out(tmp_path, PolynomialFit(task=5, **SMALL | {"steps": 2})).read()
    for column in COLUMNS:
        once, twice = (run.value(f"same_paths.{column.name}.value") for run in (unbroken.read(), doubled))
        assert twice == pytest.approx(column.factor * once, rel=1e-9)
        once, twice = (run.value(f"network.{column.name}.value") for run in (unbroken.read(), doubled))
        assert twice != pytest.approx(column.factor * once, rel=1e-3)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_run_that_was_interrupted_ends_as_an_unbroken_one(unbroken, tmp_path, monkeypatch, how):
    settings, steps = PolynomialFit(task=2, **SMALL), []
    take_step = polynomial_networks._take_step

    def count_steps(*arguments):
        steps.append(1)
        if how == "killed" and len(steps) == 26:
            raise KeyboardInterrupt
        return take_step(*arguments)

    monkeypatch.setattr(polynomial_networks, "_take_step", count_steps)
    with pytest.raises(StoppedError if how == "stopped" else KeyboardInterrupt):
        carry_out(tmp_path, settings, asked_to_stop=lambda: how == "stopped" and len(steps) == 25)
    job = carry_out(tmp_path, settings)
    assert len(steps) == (50 if how == "stopped" else 26 + 30)
    ours, others = job.read(), unbroken.read()
    assert list(map(drop_times, ours.metrics)) == list(map(drop_times, others.metrics))
    assert drop_times(ours.summary) == drop_times(others.summary)
    weights = [torch.load(each.folder / "weights.pt", weights_only=True) for each in (job, unbroken)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "holds"),
        ({"task_3": {"factor": 0.2}, "task_6": {"factor": 0.2}}, "does not hold"),  # the order is reversed
        ({f"task_{task}": {"factor": 0.4, "stderr": 0.5} for task in (3, 6)}, "not decided"),  # within the noise
        ({"task_4": {"factor": 1.02}}, "does not hold"),
        ({"task_4": {"factor": 1.009}}, "holds"),
        ({"task_2": {"error": 0.02}}, "not decided"),  # the network does not fit
        ({"task_2": {"error": float("nan")}}, "not decided"),
        ({"tasks": (1, 2, 3)}, "not decided"),
    ],
)
def test_the_claim(changes, word):
    assert RECIPE.study.claim(make_results(**changes)).word == word


def test_the_deciding_number_is_the_least_certain_rise_or_what_fails():
    assert RECIPE.study.claim(make_results()).quantity == "normalized ED, task 3 less task 2"
    failed = RECIPE.study.claim(make_results(task_4={"factor": 1.02}))
    assert failed.quantity == "ED (Chebyshev), doubled outputs over outputs"
    assert failed.value == pytest.approx(2.04)


def test_tables_have_the_paper_the_exact_value_and_the_network():
    fits, raw, others, checks = RECIPE.study.tables(make_results())
    assert fits.rows[2] == ("Task 3", "5", "1.0e-05", "0.000%", "2 s")
    assert raw.rows[0] == ("Task 1", "0.72", "0.667*", "0.667 ± 0.005", "0.29", "0.278*", "0.278 ± 0.002")
    assert others.rows[5] == (
        *("Task 6", "6.64", "7.346", "7.346 ± 0.052", "9.62", "10.864", "10.864 ± 0.077"),
        *("6.16", "6.860", "6.860 ± 0.049"),
    )
    found = [cell for _, cell in checks.rows]
    assert found[1:4] == ["2.0000 to 2.0000", "1.0000 to 1.0000", "22 of 30"]


def test_tasks_that_were_not_run_have_the_papers_numbers():
    results = make_results(tasks=(3,))
    fits, raw, *_ = RECIPE.study.tables(results)
    assert fits.rows[0] == ("Task 1", "1", "not run", "–", "–")
    assert raw.rows[0] == ("Task 1", "0.72", "–", "not run", "0.29", "–", "not run")
    assert RECIPE.study.figures(results)[0].draw("light").axes


def test_figures_show_every_column_and_every_fit():
    values, fits = (each.draw("dark") for each in RECIPE.study.figures(make_results()))
    assert [each.get_title(loc="left") for each in values.axes[:5]] == [column.title for column in COLUMNS]
    assert {each.get_text() for each in fits.axes[0].texts} == {method.title for method in RECIPE.methods}
    fits.canvas.draw()
