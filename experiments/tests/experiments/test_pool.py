import copy
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from toy_results import POOL, make_degree, make_run

from effdeg.pools import rank
from effdeg_lab.core.results import collect
from effdeg_lab.experiments.pools.study import correlate_given, read_pool

AXES = ["batch", "lr"]


@pytest.fixture(scope="module")
def pool():
    """Make a pool in which the effective degree follows the gap, one radius of sharpness roughly, others not."""
    rng, confidences = random.Random(0), random.Random(1)
    runs, rows = [], []
    for seed in POOL.seeds:
        for point in POOL.points():
            gap = 0.1 + 0.001 * point["batch"] + 0.02 * (point["lr"] == 0.1) + rng.gauss(0, 0.004)
            measured = {
                "effective_degree": 7 * gap + rng.gauss(0, 0.01),
                "effective_degree_normalized": rng.gauss(2, 1),
                "sharpness@0.05": rng.gauss(0, 1),
                "sharpness@0.1": 10 * gap + rng.gauss(0, 0.15),
                "adaptive_sharpness@0.5": rng.gauss(0, 1),
                "parameter_norm": 9 - gap + rng.gauss(0, 0.02),
                "margin@10": 3 - 20 * gap + rng.gauss(0, 0.5),
                "confidence": confidences.gauss(0.9, 0.1),
            }
            summary = {
                "gap": gap,
                "proxies": {name: {"value": value, "stderr": None} for name, value in measured.items()},
                "effective_degree": make_degree(rng.gauss(2, 1), rng.gauss(2, 1)),
                "effective_degree_random_pixels": make_degree(gap + rng.gauss(0, 0.01), rng.gauss(2, 1)),
            }
            runs.append(make_run(POOL, "plain", 0.99 - gap, summary=summary, seed=seed, **point))
            rows.append(point | {"gap": gap} | measured)
    return runs, rows


def gather(runs, edit=lambda summary: None):
    """Collect the runs with every summary edited."""
    runs = [replace(run, summary=copy.deepcopy(run.summary)) for run in runs]
    for run in runs:
        edit(run.summary)
    return collect(POOL, runs)[0]


def test_the_ranking_is_that_of_effdeg(pool):
    runs, rows = pool
    results = gather(runs)
    good = {"margin@10", "confidence"}
    measures = [f"-{name}" if name in good else name for name in rows[0] if name not in {*AXES, "gap"}]
    expected = rank(rows, measures=measures, hyperparameters=AXES)
    table, tests = POOL.study.tables(results)
    assert table.title.startswith("18 models: 5 epochs, seeds 0, 1")
    cells = {row[0]: row for row in table.rows}
    for name, score in expected.scores.items():
        for column, statistic in ((1, "pearson"), (3, "spearman"), (4, "kendall"), (5, "psi")):
            assert cells[name][column].startswith(f"{getattr(score, statistic).value:z.2f} (")
    papers = ["effective_degree", "sharpness@0.1", "adaptive_sharpness@0.5", "parameter_norm"]
    assert [score.measure for score in read_pool(results).papers] == papers
    assert {table.rows[row][0] for row, _ in table.bold} == {*papers}
    assert [row[0] for row in tests.rows] == [*papers[1:], "-margin@10"]
    (figure,) = POOL.study.figures(results)
    # Of the two variants along random pixels, the better one is drawn.
    assert len([axes for axes in figure.draw("dark").axes if axes.get_title(loc="left")]) == 11


def test_the_claim(pool):
    results = gather(pool[0])
    verdict = POOL.study.claim(results)
    advantage = read_pool(results).ranking.compare("effective_degree", "sharpness@0.1", "pearson")
    assert (verdict.word, verdict.value, verdict.interval) == ("holds", advantage.value, advantage.interval)

    def turn(summary):
        summary["proxies"]["sharpness@0.1"]["value"] = summary["gap"]
        summary["proxies"]["effective_degree"]["value"] *= -1

    assert POOL.study.claim(gather(pool[0], turn)).word == "does not hold"


def test_training_accuracy_may_explain_it_all(pool):
    results = gather(pool[0], lambda summary: summary.update(train_accuracy=0.5 + 2 * summary["gap"]))
    verdict = POOL.study.claim(results)
    quantity = "Pearson's r of effective_degree minus that of train_accuracy"
    assert (verdict.word, verdict.quantity) == ("not decided", quantity)
    assert str(verdict).endswith("as training accuracy alone follows the gap at least as closely")
    (reference,) = [row for row in POOL.study.tables(results)[0].rows if row[0] == "training accuracy (for reference)"]
    assert reference[1].startswith("1.00")


def closed_form(one, other, given):
    """Return the partial correlation from the three plain ones."""
    (_, both, first), (_, _, second), _ = np.corrcoef([one, other, given])
    return (both - first * second) / math.sqrt((1 - first**2) * (1 - second**2))


def test_partial_correlations_have_a_closed_form():
    rng = np.random.default_rng(0)
    given = rng.normal(size=40)
    one, other = (given * slope + rng.normal(size=40) for slope in (2.0, -1.0))
    expected = closed_form(one, other, given)
    assert correlate_given(one, other, given) == pytest.approx(expected)
    assert correlate_given(1e200 * one, other - 7, 1e-200 * given) == pytest.approx(expected)
    assert correlate_given(3 * given + 1, other, given) is None
    assert correlate_given(0 * given, other, given) is None


def test_a_pool_that_cannot_be_ranked_yet():
    (results,) = collect(POOL, [make_run(POOL, "plain", 0.8, batch=10, lr=0.1)])
    assert POOL.study.claim(results).word == "not decided"
    (table,) = POOL.study.tables(results)
    assert "needs at least 3 models" in table.notes[0]
    assert POOL.study.figures(results) == []


def test_models_that_differ_only_where_it_does_nothing_are_resampled_together():
    rng = random.Random(0)
    runs = []
    for point in POOL.points():
        gap = 0.1 + 0.001 * point["batch"] + 1e-6 * rng.random()
        degree = make_degree(gap + rng.gauss(0, 0.01), rng.random())
        runs.append(make_run(POOL, "plain", 0.9, summary={"gap": gap, "effective_degree": degree}, **point))
    found = read_pool(collect(POOL, runs)[0])
    assert found.inert == ["lr"]
    name = "effective_degree_test"
    rows = [{key: model[key] for key in (*AXES, "gap", name)} for model in found.models]
    together = rank(rows, hyperparameters=AXES, clusters=["batch"]).scores[name]
    assert found.scores[name].kendall == together.kendall
