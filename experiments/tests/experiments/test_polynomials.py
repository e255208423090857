from functools import partial

import pytest
import torch
from engine_runs import assert_same_end, carry_out, carry_out_interrupted
from toy_results import invent_run

import effdeg
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.experiments import polynomials
from effdeg_lab.experiments.polynomials import COLUMNS, DEGREES, PolynomialFit, PolynomialNetwork, compute_map, run_fit

RECIPE = find_recipe("pnn")

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
SMALL = PolynomialFit(task=2, width=8, examples=150, steps=50, paths=60, nodes=10, degree=8, pairs=2**8)
# About what the maps measure.
EXACT = {
    1: (0.667, 0.278, 0.667, 1.323, 0.662),
    2: (1.185, 0.797, 1.333, 2.038, 1.324),
    3: (2.958, 1.154, 3.673, 5.432, 3.430),
}


def draw_ends(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return polynomials.draw_inputs(count, generator), polynomials.draw_inputs(count, generator)


def make_run(task, seed, *, factor=1.0, error=1e-5, stderr=0.01):
    """Make a run whose network measures a factor times what its map does, in every column."""
    exact = zip(COLUMNS, EXACT[(task - 1) % 3 + 1], strict=True)
    values = {column.name: value * (column.factor if task > 3 else 1) for column, value in exact}
    summary = {"test_error": error, "seconds": 2.0}
    for name, times, spread in (("network", factor, stderr), ("same_paths", 1.0, stderr), ("exact", 1.0, 1e-4)):
        summary[name] = {key: {"value": times * value, "stderr": spread * value} for key, value in values.items()}
    metrics = [{"step": 10, "test_error": 0.1}, {"step": 100, "test_error": error}]
    return invent_run(RECIPE, f"task-{task}", summary, metrics, seed=seed)


def make_results(tasks=tuple(DEGREES), **changes):
    """Make results of two seeds of some tasks, each with changes of its own: ``task_3={"factor": 2}``."""
    runs = [make_run(task, seed, **changes.get(f"task_{task}", {})) for task in tasks for seed in (0, 1)]
    return collect(RECIPE, runs)[0]


def test_integrals_agree_with_closed_forms_rise_with_the_degree_and_double_with_the_outputs():
    integrals = {task: polynomials.integrate_columns(task, pairs=2**14, seed=0) for task in DEGREES}
    for column in COLUMNS:
        values = [integrals[task][column.name]["value"] for task in DEGREES]
        assert values[0] < values[1] < values[2]
        assert values[3:] == pytest.approx([column.factor * value for value in values[:3]], rel=1e-12)
        for task in DEGREES:
            closed, stderr = column.get_closed_form(task), integrals[task][column.name]["stderr"]
            if closed is not None:
                assert stderr < 2e-3 * closed
                assert abs(values[task - 1] - closed) < 5 * stderr


@pytest.mark.parametrize("task", [1, 2, 3])
def test_the_library_measures_the_same_path_by_path(task):
    inputs = torch.cat(draw_ends(20, seed=1))
    trace = effdeg.trace(partial(compute_map, task), inputs, paths=30, nodes=16, sampling="chebyshev")
    expected = polynomials.compute_columns(task, *inputs[trace.pairs].unbind(1))
    for column in COLUMNS:
        found = trace.fit(degree=10, basis=column.basis, output="identity", components=column.components)
        sample = found.sample(normalized=column.factor == 1)
        torch.testing.assert_close(sample, expected[column.name], rtol=1e-6, atol=1e-8)


def test_the_jacobian_is_that_of_one_backward_pass_for_every_output():
    torch.manual_seed(0)
    network, inputs = PolynomialNetwork(5), draw_ends(4)[0]
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
        weights, damping = polynomials.take_levenberg_marquardt_step(residuals, jacobian, weights, damping)
        assert residuals(weights).square().sum() <= before
    return weights


def test_rosenbrocks_bent_valley_is_followed_to_its_end():
    def residuals(weights):
        return torch.stack([10 * (weights[1] - weights[0] ** 2), 1 - weights[0]])

    found = descend(residuals, torch.tensor([-1.2, 1.0], dtype=torch.float64), 60)
    torch.testing.assert_close(found, torch.ones(2, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return carry_out(tmp_path_factory.mktemp("unbroken"), SMALL, run_fit)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_network_fits_and_measures_what_its_map_does(unbroken, tmp_path, device):
    run = (unbroken if device == "cpu" else carry_out(tmp_path, SMALL, run_fit, device=device)).run
    assert run.value("test_error") < 1e-3
    for name in (column.name for column in COLUMNS):
        network = run.value(f"network.{name}.value")
        assert network == pytest.approx(run.value(f"same_paths.{name}.value"), rel=1e-3)
        assert 0 < run.value(f"network.{name}.stderr") < 0.2 * network
    assert RECIPE.study.headline(run).startswith(f"relative error {run.value('test_error'):.1e}, ED 1.")


def test_a_run_that_was_interrupted_ends_as_an_unbroken_one(unbroken, tmp_path):
    where = (polynomials, "_take_step")
    broken, calls = carry_out_interrupted(tmp_path, SMALL, run_fit, *where, killed=26, stopped=41)
    assert_same_end(broken, unbroken)
    assert calls == 26 + 30  # it continues from step 20, and is stopped after step 35


@pytest.mark.parametrize(
    ("changes", "word", "quantity"),
    [
        ({}, "holds", "normalized ED, task 3 minus task 2"),  # the least certain
        ({f"task_{task}": {"factor": 0.2} for task in (3, 6)}, "does not hold", ""),  # the order is reversed
        ({f"task_{task}": {"factor": 0.4, "stderr": 0.5} for task in (3, 6)}, "not decided", ""),  # within the noise
        ({"task_4": {"factor": 1.02}}, "does not hold", "ED (Chebyshev), doubled outputs over outputs"),
        ({"task_4": {"factor": 1.009}}, "holds", ""),
        ({"task_2": {"error": 0.02}}, "not decided", "relative error of the worst fit"),
        ({"task_2": {"error": float("nan")}}, "not decided", "relative error of the worst fit"),
        ({"tasks": (1, 2, 3)}, "not decided", ""),
    ],
)
def test_the_claim(changes, word, quantity):
    found = RECIPE.study.claim(make_results(**changes))
    assert found.word == word
    assert not quantity or found.quantity == quantity


def test_tables_have_the_paper_the_exact_value_and_the_network():
    raw, others = RECIPE.study.tables(make_results(tasks=(1, 3, 6)))
    assert raw.rows[0] == ("Task 1", "0.72", "0.667*", "0.667 ± 0.005", "0.29", "0.278*", "0.278 ± 0.002")
    assert raw.rows[1] == ("Task 2", "1.17", "–", "not run", "0.78", "–", "not run")
    assert others.rows[5][:4] == ("Task 6", "6.64", "7.346", "7.346 ± 0.052")


@pytest.mark.parametrize("tasks", [(3,), tuple(DEGREES)])
def test_the_figure_shows_every_column(tasks):
    (figure,) = RECIPE.study.figures(make_results(tasks))
    panels = figure.draw("dark").axes
    assert [each.get_title(loc="left") for each in panels[:5]] == [column.title for column in COLUMNS]
