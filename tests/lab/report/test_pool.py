import json
import math
import random

import numpy as np
import pytest

from effdeg.lab.report import finding, plain, result_of
from effdeg.lab.report.pool import partial_correlation
from effdeg.lab.report.pool_notes import pool_notes
from effdeg.lab.report.sheets import block_sheets
from effdeg.lab.store import Store
from effdeg.ranking import rank, read_table
from tests.lab.report.stores import POOL, add


@pytest.fixture
def models(tmp_path):
    """Write a pool in which the effective degree follows the gap, one radius of sharpness roughly, others not."""
    rng = random.Random(0)
    rows = []
    for seed in POOL.seeds:
        for point in POOL.points():
            gap = 0.1 + 0.001 * point["batch"] + 0.02 * (point["lr"] == 0.1) + rng.gauss(0, 0.004)
            measured = {
                "sharpness@0.05": rng.gauss(0, 1),
                "sharpness@0.1": 10 * gap + rng.gauss(0, 0.15),
                "adaptive_sharpness@0.5": rng.gauss(0, 1),
                "parameter_norm": 9 - gap + rng.gauss(0, 0.02),
                "margin@10": 3 - 20 * gap + rng.gauss(0, 0.5),
            }
            values = (gap * 7 + rng.gauss(0, 0.01), rng.gauss(2, 1), gap + rng.gauss(0, 0.01), rng.gauss(2, 1))
            noise = {"value": values[2], "stderr": 0.01, "normalized": values[3], "normalized_stderr": 0.01}
            test = {"value": rng.gauss(2, 1), "stderr": 0.01, "normalized": rng.gauss(2, 1), "normalized_stderr": 0.01}
            measured |= {"effective_degree": values[0], "effective_degree_normalized": values[1]}
            summary = {
                "gap": gap,
                "proxies": {name: {"value": value, "stderr": None} for name, value in measured.items()},
                "skipped": {},
                "effective_degree": test,
                "effective_degree_random_pixels": noise,
            }
            add(tmp_path, POOL, "plain", 0.99 - gap, summary=summary, seed=seed, **point)
            named = {"effective_degree": 2, "effective_degree_normalized": 3}
            further = {f"{name}_random_pixels": values[place] for name, place in named.items()}
            further |= {"effective_degree_test": test["value"], "effective_degree_normalized_test": test["normalized"]}
            rows.append(point | {"gap": gap} | measured | further)
    return tmp_path, rows


def pool_in(folder):
    return result_of(POOL, Store(folder).records()).blocks[0]


def test_the_ranking_is_that_of_effdeg_ranking(models):
    folder, rows = models
    block = pool_in(folder)
    measures = [f"-{name}" if "margin" in name else name for name in rows[0] if name not in {"batch", "lr", "gap"}]
    expected = rank(rows, measures=measures, hyperparameters=["batch", "lr"])
    assert set(block.pool.measures) == set(measures)
    assert set(block.pool.ranking.scores) == set(expected.scores)
    for name, score in expected.scores.items():
        ours = block.pool.ranking.scores[name]
        for statistic in ("pearson", "spearman", "kendall", "psi"):
            assert getattr(ours, statistic).value == pytest.approx(getattr(score, statistic).value)
    (sheet,) = block_sheets(block)
    cells = {row[0]: row[1:] for row in sheet.rows}
    for name, score in expected.scores.items():
        assert cells[name][0].startswith(f"{score.pearson.value:.2f} (")
        assert cells[name][3].startswith(f"{score.kendall.value:.2f} (")
    assert "18 models: 5 epochs, seeds 0, 1" in sheet.title


def test_the_papers_measures_at_their_best(models):
    pool = pool_in(models[0]).pool
    names = ["effective_degree", "sharpness@0.1", "adaptive_sharpness@0.5", "parameter_norm"]
    assert [score.measure for score in pool.best.values()] == names
    assert pool.panels()[:5] == [*names, "effective_degree_random_pixels"]
    # Of the two variants along random pixels, the better one is drawn.
    assert sorted(pool.panels()) == sorted(set(pool.measures) - {"effective_degree_normalized_random_pixels"})
    assert not pool.best_rival.measure.startswith("effective_degree")
    assert {advantage.other for advantage in pool.advantages()} == {*names[1:], pool.best_rival.measure}
    rivals = [score for name, score in pool.ranking.scores.items() if not name.startswith("effective_degree")]
    assert pool.best_rival.pearson.value == max(score.pearson.value for score in rivals)


def test_the_finding(models):
    found = finding(pool_in(models[0]))
    assert found.verdict == "holds"
    assert found.sentences[0].startswith("As in the paper, the effective degree has the highest correlation")
    assert "(18 models, 2 seeds)" in found.sentences[0]
    scores = pool_in(models[0]).pool.ranking
    degree, rival = (scores.scores[name].pearson.value for name in ("effective_degree", "sharpness@0.1"))
    low, high = scores.compare("effective_degree", "sharpness@0.1", "pearson").interval
    decides = f"It is {degree - rival:.2f} (95% interval {low:.2f} to {high:.2f}, beyond the noise) above that of sharp"
    assert decides in found.sentences[0]
    random_pixels = scores.scores["effective_degree_random_pixels"].pearson
    assert f"Along paths between random pixels it is {random_pixels} with effective_degree_random_pixels, " in str(
        found
    )
    assert "slightly weaker" in str(found)


def test_another_measure_may_be_stronger(models):
    folder = models[0]
    for file in folder.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        summary["proxies"]["sharpness@0.1"]["value"] = summary["gap"]
        summary["proxies"]["effective_degree"]["value"] *= -1
        file.write_text(json.dumps(summary))
    found = finding(pool_in(folder))
    assert found.verdict == "does not hold"
    assert found.sentences[0].startswith("Unlike in the paper, sharpness@0.1 has the highest correlation")


def with_training_accuracies(folder, accuracy):
    """Give every model the training accuracy that its gap decides."""
    for file in folder.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        file.write_text(json.dumps(summary | {"train_accuracy": accuracy(summary["gap"])}))


def test_training_accuracy_may_explain_it_all(models):
    folder, rows = models
    with_training_accuracies(folder, lambda gap: 0.5 + 2 * gap)
    block = pool_in(folder)
    found = finding(block)
    assert found.verdict == "not decided"
    assert found.sentences[0].startswith(
        "Training accuracy alone has a correlation of 1.00 with the gap, effective degree"
    )
    assert "among these networks, measures mostly show how far each got." in found.sentences[0]
    (sheet,) = block_sheets(block)
    (reference,) = [row for row in sheet.rows if row[0] == "training accuracy (for reference)"]
    assert reference[1].startswith("1.00")
    low, high = (0.5 + 2 * end(row["gap"] for row in rows) for end in (min, max))
    assert f"Training accuracies go from {100 * low:.2f}% to {100 * high:.2f}%." in sheet.notes
    assert "train_accuracy" not in block.pool.measures
    assert block.pool.best_rival.measure != "train_accuracy"


def test_training_accuracy_that_explains_less_changes_no_verdict(models):
    folder, rows = models
    with_training_accuracies(folder, lambda gap: 0.9 + 0.05 * math.sin(1000 * gap))
    block = pool_in(folder)
    assert finding(block).verdict == "holds"
    given = [0.9 + 0.05 * math.sin(1000 * row["gap"]) for row in rows]
    for name in ("effective_degree", "sharpness@0.1", "parameter_norm"):
        expected = closed_form(
            *(np.array(each) for each in ([row[name] for row in rows], [row["gap"] for row in rows], given))
        )
        assert block.pool.given_training[name] == pytest.approx(expected)
        (row,) = [row for row in block_sheets(block)[0].rows if row[0] == name]
        assert row[2] == f"{expected:.2f}"


def closed_form(one, other, given):
    """Give the partial correlation from the three plain ones."""
    (_, both, first), (_, _, second), _ = np.corrcoef([one, other, given])
    return (both - first * second) / math.sqrt((1 - first**2) * (1 - second**2))


def test_partial_correlations_have_a_closed_form():
    rng = np.random.default_rng(0)
    given = rng.normal(size=40)
    one, other = (given * slope + rng.normal(size=40) for slope in (2.0, -1.0))
    expected = closed_form(one, other, given)
    assert partial_correlation(one, other, given) == pytest.approx(expected)
    assert partial_correlation(1e200 * one, other - 7, 1e-200 * given) == pytest.approx(expected)
    assert partial_correlation(3 * given + 1, other, given) is None


def test_what_was_not_measured_and_advice_that_is_for_others(models):
    folder, _ = models
    for file in folder.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        summary["skipped"] = {"hessian_trace": "needs a loss", "hessian_eigenvalue": "needs a loss"}
        # Large margins where gaps are large: the measure falls as the gap rises.
        summary["proxies"]["margin@10"]["value"] = 20 * summary["gap"]
        file.write_text(json.dumps(summary))
    (sheet,) = block_sheets(pool_in(folder))
    assert "Not measured when these were run: hessian_trace and hessian_eigenvalue (needs a loss)." in sheet.notes
    (falling,) = [note for note in sheet.notes if "as the gap rises" in note]
    assert falling == "parameter_norm, -margin@10 fall as the gap rises."
    assert not any("rank it as" in note or "rank them as" in note for note in sheet.notes)


def test_the_effective_degree_is_held_against_others_on_the_same_images(models):
    folder, rows = models
    pool = pool_in(folder).pool
    for name in ("effective_degree", "effective_degree_test"):
        assert sorted(row[name] for row in pool.table) == sorted(row[name] for row in rows)
    assert pool.best["effective degree"].measure == "effective_degree"
    assert {advantage.measure for advantage in pool.advantages()} == {"effective_degree"}
    (note,) = [note for note in pool_notes(pool) if "_test" in note]
    assert note.endswith("all other measures are of training images.")


def test_an_effective_degree_on_test_images_alone_is_called_that(models):
    folder = models[0]
    for file in folder.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        summary["effective_degree"]["value"] = summary["proxies"].pop("effective_degree")["value"]
        del summary["proxies"]["effective_degree_normalized"]
        file.write_text(json.dumps(summary))
    block = pool_in(folder)
    assert "effective_degree" not in block.pool.measures
    assert block.pool.best["effective degree"].measure == "effective_degree_test"
    assert "measures: effective_degree_test " in finding(block).sentences[0]
    assert any("no effective degree was taken: that on test images" in note for note in pool_notes(block.pool))


def test_the_table_can_be_ranked_again(models, tmp_path):
    pool = pool_in(models[0]).pool
    pool.write_csv(tmp_path / "pool.csv")
    table = read_table(tmp_path / "pool.csv")
    assert list(table)[:7] == ["model", "batch", "lr", "seed", "train_accuracy", "test_accuracy", "gap"]
    assert len(table["gap"]) == 18
    again = rank(table, measures=pool.measures, hyperparameters=["batch", "lr"])
    assert again.to_dict() == pool.ranking.to_dict()


def test_a_pool_that_cannot_be_ranked_yet(tmp_path):
    assert finding(pool_in(tmp_path)).verdict == "not run"
    assert block_sheets(pool_in(tmp_path))[0].rows[0][0] == "not run"
    add(tmp_path, POOL, "plain", 0.8, batch=10, lr=0.1)
    block = pool_in(tmp_path)
    assert finding(block).verdict == "not decided"
    assert "needs at least 3 models" in str(finding(block))
    assert block_sheets(block)[0].notes[0].startswith("1 of 9 configurations, 1 of 2 seeds. Every model is a point")


def test_plain(models):
    found = plain.to_dict(result_of(POOL, Store(models[0]).records()))
    (block,) = found["blocks"]
    assert len(block["models"]) == 18
    assert block["ranking"]["ranking"][0] == "effective_degree"
    assert block["verdict"] == "holds"


def test_models_that_differ_only_where_it_does_nothing_are_resampled_together(tmp_path):
    rng = random.Random(0)
    for point in POOL.points():
        gap = 0.1 + 0.001 * point["batch"] + 1e-6 * rng.random()
        degree = {
            "value": gap + rng.gauss(0, 0.01),
            "stderr": 0.01,
            "normalized": rng.random(),
            "normalized_stderr": 0.1,
        }
        add(tmp_path, POOL, "plain", 0.9, summary={"gap": gap, "effective_degree": degree}, seed=0, **point)
    block = pool_in(tmp_path)
    assert block.pool.inert == ["lr"]
    (sheet,) = block_sheets(block)
    assert any("lr has less than 1% of the gap's variance" in note for note in sheet.notes)
    name = "effective_degree_test"
    rows = [{key: row[key] for key in ("batch", "lr", "gap", name)} for row in block.pool.table]
    together = rank(rows, hyperparameters=["batch", "lr"], clusters=["batch"]).scores[name]
    assert block.pool.ranking.scores[name].kendall == together.kendall
