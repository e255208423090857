"""Scores of probabilities, against slow versions that count example by example."""

import itertools
import math

import numpy as np
import pytest
import torch
from engine_runs import carry_out, run_mlp, small
from scipy.optimize import minimize_scalar

from effdeg_lab.data import load
from effdeg_lab.engine.probabilities import fit_temperature, measure_aurc, score_probabilities


def draw(count=301, classes=7, scale=2.0, seed=0):
    """Draw logits that know something about labels, and are too confident for large scales."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    logits = torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), labels] += 1.0
    return scale * logits, labels


def softmax(row):
    exponentials = [math.exp(value - max(row)) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def brier(rows, labels):
    squares = [
        sum((p - (place == label)) ** 2 for place, p in enumerate(row)) for row, label in zip(rows, labels, strict=True)
    ]
    return sum(squares) / len(squares)


def loss(rows, labels):
    return sum(-math.log(row[label]) for row, label in zip(rows, labels, strict=True)) / len(labels)


def calibration_error(rows, labels):
    bins = [[] for _ in range(15)]
    for row, label in zip(rows, labels, strict=True):
        bins[min(int(15 * max(row)), 14)].append((max(row), row.index(max(row)) == label))
    error = 0.0
    for members in filter(None, bins):
        confidence, accuracy = np.mean(members, axis=0)
        error += len(members) / len(labels) * abs(confidence - accuracy)
    return error


def aurc(rows, labels):
    scored = [(max(row), row.index(max(row)) != label) for row, label in zip(rows, labels, strict=True)]
    scored.sort(key=lambda pair: -pair[0])
    return np.mean([sum(wrong for _, wrong in scored[:kept]) / kept for kept in range(1, len(scored) + 1)])


def best_temperature(logits, labels):
    def scaled_loss(logarithm):
        return loss([softmax([z / math.exp(logarithm) for z in row]) for row in logits], labels)

    bounds = math.log(0.05), math.log(20)
    return math.exp(minimize_scalar(scaled_loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)


@pytest.mark.parametrize("scale", [0.3, 2.0, 9.0])
def test_scores_are_those_of_slow_versions(scale):
    logits, labels = draw(scale=scale)
    rows, places = logits.double().tolist(), labels.tolist()
    found = score_probabilities(logits, labels)
    temperatures = [best_temperature(rows[start::2], places[start::2]) for start in (0, 1)]
    # Every example is scaled with the temperature of the half that it is not in.
    halves = enumerate(rows)
    scaled = [softmax([z / temperatures[1 - place % 2] for z in row]) for place, row in halves]
    plain = [softmax(row) for row in rows]
    expected = {
        "test_brier": brier(plain, places),
        "test_calibration_error": calibration_error(plain, places),
        "test_aurc": aurc(plain, places),
        "temperature": sum(temperatures) / 2,
        "test_loss_scaled": loss(scaled, places),
        "test_brier_scaled": brier(scaled, places),
        "test_calibration_error_scaled": calibration_error(scaled, places),
    }
    assert found == pytest.approx(expected, rel=1e-5)
    assert found["temperature"] == pytest.approx(scale, rel=0.3)
    if scale != 2.0:  # far from the right temperature: scaling helps even where it is not fitted
        assert found["test_loss_scaled"] < loss(plain, places)
        assert found["test_calibration_error_scaled"] < found["test_calibration_error"]


def test_ties_of_confidence_count_as_the_mean_over_all_their_orders():
    errors, levels = [1, 0, 0, 1, 0, 1], [0.9, 0.8, 0.8, 0.8, 0.6, 0.6]
    probabilities = torch.tensor([[level, 1 - level] for level in levels], dtype=torch.float64)
    areas = [
        np.mean(np.cumsum([errors[0], *middle, *last]) / np.arange(1, 7))
        for middle, last in itertools.product(itertools.permutations(errors[1:4]), itertools.permutations(errors[4:]))
    ]
    found = measure_aurc(probabilities, torch.tensor(errors))  # class 0 is predicted: label 1 is an error
    assert float(found) == pytest.approx(np.mean(areas))
    shuffled = torch.tensor([3, 5, 0, 2, 4, 1])
    assert float(measure_aurc(probabilities[shuffled], torch.tensor(errors)[shuffled])) == pytest.approx(float(found))


@pytest.mark.parametrize(
    ("logits", "labels", "temperature"),
    [
        ([[9.0, 0.0], [0.0, 3.0]], [0, 1], 0.05),  # all right: the colder the better
        ([[9.0, 0.0], [0.0, 3.0]], [1, 0], 20.0),  # all wrong: the warmer the better
        ([[4.0, 4.0], [-1.0, -1.0]], [1, 0], 1.0),  # no difference
        ([[1e4, -1e4], [0.0, 3.0], [1e4, 0.0]], [0, 1, 1], 20.0),
        (np.zeros((0, 2)), [], 1.0),
    ],
)
def test_a_temperature_is_found_whatever_the_logits(logits, labels, temperature):
    logits, labels = torch.tensor(np.array(logits)), torch.tensor(labels, dtype=torch.int64)
    assert float(fit_temperature(logits, labels)) == pytest.approx(temperature)


def test_a_run_has_the_scores_of_its_weights(tmp_path):
    done, digits = carry_out(tmp_path, small()), load("digits", None)
    logits = run_mlp(done.weights, digits.test_inputs)
    expected = score_probabilities(logits, digits.test_labels)
    assert {key: done.summary[key] for key in expected} == pytest.approx(expected, rel=1e-4)
    assert done.summary["test_loss"] == pytest.approx(loss(logits.double().softmax(1).tolist(), digits.test_labels))
    assert "corrupted" not in done.summary
