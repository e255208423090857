"""What the maps measure: closed forms, integration, naive algebra and the library agree."""

from functools import partial

import numpy as np
import pytest
import torch

import effdeg
from effdeg.functional import effective_degree, fit
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS, measured
from effdeg.lab.studies.polynomials.networks.exact import (
    closed_forms,
    columns_along,
    integrated,
    path_coefficients,
)
from effdeg.lab.studies.polynomials.networks.targets import DEGREES, TASKS, draw_inputs, target


def ends(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return draw_inputs(count, generator), draw_inputs(count, generator)


@pytest.fixture(scope="module")
def values():
    """Every map's columns, integrated."""
    return {task: integrated(task, pairs=2**14, seed=0) for task in TASKS}


def test_coefficients_are_those_of_naive_algebra_in_each_basis():
    first, second = ends(5)
    for task in (1, 2, 3):
        found = path_coefficients(task, first, second)
        along = columns_along(found)
        for path, (one, other) in enumerate(zip(first.numpy(), second.numpy(), strict=True)):
            x1, x2, x3 = (np.polynomial.Polynomial([(a + b) / 2, (a - b) / 2]) for a, b in zip(one, other, strict=True))
            outputs = {
                1: (x3 + 2, x2 + 3, x1 + 1),
                2: (x1 * x2, x2 * x3, x1 * x3),
                3: (x1 * x2 * x3, x1**2 * x2 * x3**2, x1**2 * x2 * x3 + x2**2 * x3),
            }[task]
            legendre = 0.0
            for output, polynomial in enumerate(outputs):
                chebyshev = polynomial.convert(kind=np.polynomial.Chebyshev).coef
                expected = np.pad(chebyshev, (0, 6 - len(chebyshev)))
                np.testing.assert_allclose(found[path, :, output], expected, rtol=1e-12, atol=1e-12)
                coefficients = polynomial.convert(kind=np.polynomial.Legendre).coef
                legendre += np.abs(coefficients) @ np.arange(len(coefficients)) / 3
            assert along["legendre"][path] == pytest.approx(legendre, rel=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_integrals_agree_with_closed_forms(task, values):
    closed = closed_forms(task)
    assert set(closed) <= set(values[task])
    for name, value in closed.items():
        found = values[task][name]
        assert found["stderr"] < 2e-3 * value
        assert abs(found["value"] - value) < 5 * found["stderr"]


def test_closed_forms_are_those_of_hand_calculations():
    assert closed_forms(1)["chebyshev"] == closed_forms(1)["legendre"] == pytest.approx(2 / 3)
    assert closed_forms(2)["chebyshev"] == pytest.approx(32 / 27)
    assert closed_forms(2)["legendre"] == pytest.approx(4 / 3)
    # The mean distance of points of a cube, to the digits that everyone quotes, and a straight path has one component.
    assert closed_forms(1)["pca-1"] == pytest.approx(2 * 0.6617071822)
    assert closed_forms(1)["pca-2"] == closed_forms(1)["pca-1"] / 2
    assert closed_forms(3) == closed_forms(6) == {}


def test_degrees_are_ordered_in_every_column(values):
    for column in COLUMNS:
        for tasks in ((1, 2, 3), (4, 5, 6)):
            found = [values[task][column.name]["value"] for task in tasks]
            assert found == sorted(found)
            assert len(set(found)) == 3


def test_doubling_doubles_raw_columns_and_leaves_the_normalized_one(values):
    for column in COLUMNS:
        for task in (1, 2, 3):
            once, twice = (values[each][column.name]["value"] for each in (task, task + 3))
            assert twice == pytest.approx(once * (1 if column.normalized else 2), rel=1e-12)


@pytest.mark.parametrize("task", [1, 2, 3])
def test_the_library_measures_the_same_path_by_path(task):
    first, second = ends(20, seed=1)
    inputs = torch.cat([first, second])
    trace = effdeg.trace(partial(target, task), inputs, paths=30, nodes=16, sampling="chebyshev")
    pairs = inputs[trace.pairs]
    expected = columns_along(path_coefficients(task, pairs[:, 0], pairs[:, 1]))
    for column in COLUMNS:
        found = trace.fit(degree=10, basis=column.basis, output="identity", components=column.components)
        sample = found.sample(normalized=column.normalized)
        torch.testing.assert_close(sample, expected[column.name], rtol=1e-6, atol=1e-8)
        value = measured(trace, 10)[column.name]["value"]
        assert value == pytest.approx(float(expected[column.name].mean()), rel=1e-6)


def test_maps_have_their_degrees():
    alpha = torch.linspace(0, 1, 12, dtype=torch.float64)
    first, second = ends(1, seed=2)
    for task, degree in DEGREES.items():
        values = target(task, alpha[:, None] * first + (1 - alpha[:, None]) * second)
        below, exactly = (fit(values, alpha, each, damping=0.0) for each in (degree - 1, degree))
        assert float((effective_degree(below) - effective_degree(exactly)).abs()) > 1e-3
        basis = effdeg.functional.evaluate(exactly, alpha)
        torch.testing.assert_close(basis, values, rtol=1e-9, atol=1e-9)
