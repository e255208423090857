"""Scores of labels against loops over single paths, and runs that remember them."""

import math
from dataclasses import replace

import pytest
import torch
from engine_runs import assert_same_end, break_off, carry_out, carry_out_stopped, run_mlp, small
from numpy.polynomial.chebyshev import chebfit
from torch.nn.functional import cross_entropy

from effdeg_lab.data import load
from effdeg_lab.engine import classify, stacked
from effdeg_lab.engine.label_noise import DEGREES, area_under_roc, score_labels
from effdeg_lab.models import make_model

DIGITS = load("digits", None)
SCORES = {"loss", "margin", "nearby", *DEGREES}


def make_noisy_digits():
    """Make digits of which every fourth training example has another label, whichever is next in turn."""
    number = torch.arange(len(DIGITS.train_labels))
    others = (DIGITS.train_labels + 1 + number // 4 % 9) % 10
    given = torch.where(number % 4 == 0, others, DIGITS.train_labels)
    return replace(DIGITS, train_labels=given, true_labels=DIGITS.train_labels)


@pytest.fixture
def _noisy(monkeypatch):
    for module in (classify, stacked):
        monkeypatch.setattr(module, "load", lambda *_: make_noisy_digits())


def score_by_loops(model, inputs, labels, seed):
    """Score labels path by path, from both ends of each."""
    count, nodes = len(labels), [(1 - math.cos(math.pi * each / 7)) / 2 for each in range(8)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    alike = [[each for each in order if labels[each] == label] for label in sorted({*labels.tolist()})]
    found = {name: [[] for _ in range(count)] for name in (*DEGREES, "nearby")}
    for name, groups in (("degree", [order]), ("degree_within_label", alike)):
        joined = [
            (group[place], group[place - shift]) for group in groups for shift in (1, 2) for place in range(len(group))
        ]
        for start, end in [*joined, *(pair[::-1] for pair in joined)]:
            points = torch.stack([(1 - alpha) * inputs[start] + alpha * inputs[end] for alpha in nodes])
            values = model(points).softmax(1).detach().double()
            found[name][start].append(measure(nodes, values))
            if name == "degree_within_label":
                assert labels[start] == labels[end]
                found["nearby"][start].append(1 - float(values[1:3, labels[start]].mean()))
                values[0] = torch.eye(values.shape[1])[labels[start]]
                found["degree_of_label"][start].append(measure(nodes, values))
    assert {len(each) for scores in found.values() for each in scores} == {4}
    return {name: torch.tensor([sum(each) / 4 for each in values]) for name, values in found.items()}


def measure(nodes, values):
    coefficients = abs(chebfit([2 * alpha - 1 for alpha in nodes], values.numpy(), 7))
    return float((torch.arange(8)[:, None] * torch.from_numpy(coefficients)).sum(0).mean())


def test_scores_are_those_of_loops_over_paths():
    torch.manual_seed(0)
    model, inputs = make_model("mlp", shape=(64,), classes=10), 3 * DIGITS.train_inputs[:11]
    labels = torch.tensor([0, 0, 0, 0, 5, 5, 5, 9, 9, 9, 9])
    found = score_labels(model, inputs, labels, seed=5)
    logits = model(inputs).detach()
    margins = [
        max(float(row[other]) for other in range(10) if other != label) - float(row[label])
        for row, label in zip(logits, labels.tolist(), strict=True)
    ]
    expected = score_by_loops(model, inputs, labels, 5)
    expected |= {"loss": cross_entropy(logits, labels, reduction="none"), "margin": torch.tensor(margins)}
    assert found.keys() == expected.keys()
    for name, score in found.items():
        torch.testing.assert_close(score, expected[name], rtol=1e-4, atol=1e-5, msg=name)
        assert not score.requires_grad


def test_the_area_is_the_share_of_pairs_in_order():
    torch.manual_seed(0)
    scores, wrong = torch.randint(0, 6, (40,)).float(), torch.rand(40) < 0.3
    pairs = [(1.0 if a > b else 0.5 if a == b else 0.0) for a in scores[wrong] for b in scores[~wrong]]
    assert area_under_roc(scores, wrong) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert area_under_roc(wrong.float(), wrong) == 1.0
    assert area_under_roc(torch.zeros(40), wrong) == 0.5


@pytest.mark.usefixtures("_noisy")
def test_a_run_scores_its_labels_and_reports_the_best_epoch(tmp_path):
    settings = small(limit=300, batch=50, epochs=6, evaluate_every=2, lr=5e-3, suspect=200)
    done = carry_out(tmp_path / "suspects", settings)
    noisy, summary = make_noisy_digits(), done.summary
    inputs, given, true = noisy.train_inputs[:200], noisy.train_labels[:200], noisy.true_labels[:200]
    # The last scores are those of the kept weights; sums are over the epochs looked at.
    scores = score_labels(lambda points: run_mlp(done.weights, points), inputs, given, seed=6)
    areas = {name: area_under_roc(score, given != true) for name, score in scores.items()}
    assert {name: summary["wrong_labels"][name] for name in SCORES} == pytest.approx(areas, abs=1e-3)
    means = {f"mean_{name}" for name in SCORES - {"margin"}}
    assert summary["wrong_labels"].keys() == SCORES | means | {"area_under_margin"}
    assert summary["wrong_labels"] == done.metrics[-1]["wrong_labels"]
    assert summary["wrong_labels"]["area_under_margin"] > 0.8
    assert done.metrics[0]["wrong_labels"]["mean_loss"] == done.metrics[0]["wrong_labels"]["loss"]
    assert summary["wrong_share"] == 0.25
    best = max(done.metrics, key=lambda entry: entry["test_accuracy"])
    assert (summary["best_test_accuracy"], summary["best_epoch"]) == (best["test_accuracy"], best["epoch"])
    assert [len(each) for each in summary["suspicious"].values()] == [40, 40]
    by_degree, by_margin = summary["suspicious"]
    assert by_margin == "area_under_margin"
    assert by_degree in {*DEGREES, *(f"mean_{name}" for name in DEGREES)}
    for listed in summary["suspicious"].values():
        assert all((given[each["example"]], true[each["example"]]) == (each["given"], each["true"]) for each in listed)
        assert sum(each["given"] != each["true"] for each in listed) > 20
    # Looking changes nothing.
    other = carry_out(tmp_path / "others", replace(settings, suspect=0))
    assert all(torch.equal(done.weights[name], other.weights[name]) for name in done.weights)
    assert {"best_test_accuracy", "wrong_share"} < other.summary.keys()
    assert not {"wrong_labels", "suspicious"} & other.summary.keys()


@pytest.mark.usefixtures("_noisy")
def test_a_run_remembers_its_scores_wherever_it_is_interrupted(tmp_path):
    settings = small(suspect=30, regularizer="ed")
    whole = carry_out(tmp_path / "whole", settings)
    with break_off(12):
        carry_out(tmp_path / "killed", settings)
    assert_same_end(whole, carry_out(tmp_path / "killed", settings))
    carry_out_stopped(tmp_path / "stopped", settings, 7)
    assert_same_end(whole, carry_out(tmp_path / "stopped", settings))


@pytest.mark.usefixtures("_noisy")
def test_too_few_labels_are_refused(tmp_path):
    for suspect, words in ((4, r"scores 4 labels, 1 of them wrong: it needs at least 5"), (1, "Raise suspect")):
        with pytest.raises(ValueError, match=rf"suspect={suspect} .*{words}"):
            carry_out(tmp_path, small(suspect=suspect))
    assert not list(tmp_path.iterdir())
