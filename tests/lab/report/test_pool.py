import json
import random

import pytest

from effdeg.lab.report import finding, plain, result_of
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
            degree = {"value": values[0], "stderr": 0.01, "normalized": values[1], "normalized_stderr": 0.01}
            noise = {"value": values[2], "stderr": 0.01, "normalized": values[3], "normalized_stderr": 0.01}
            summary = {
                "gap": gap,
                "proxies": {name: {"value": value, "stderr": None} for name, value in measured.items()},
                "skipped": {},
                "effective_degree": degree,
                "effective_degree_random_pixels": noise,
            }
            add(tmp_path, POOL, "plain", 0.99 - gap, summary=summary, seed=seed, **point)
            named = ("effective_degree", "effective_degree_normalized")
            names = [*named, *(f"{name}_random_pixels" for name in named)]
            rows.append(point | {"gap": gap} | measured | dict(zip(names, values, strict=True)))
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
        assert cells[name][2].startswith(f"{score.kendall.value:.2f} (")
    assert "18 models: 5 epochs, seeds 0, 1" in sheet.title


def test_the_papers_measures_at_their_best(models):
    pool = pool_in(models[0]).pool
    names = ["effective_degree", "sharpness@0.1", "adaptive_sharpness@0.5", "parameter_norm"]
    assert [score.measure for score in pool.best.values()] == names
    assert pool.panels()[:4] == names
    assert sorted(pool.panels()) == sorted(pool.measures)
    assert not pool.best_rival.measure.startswith("effective_degree")
    assert {advantage.other for advantage in pool.advantages()} == {*names[1:], pool.best_rival.measure}


def test_the_finding(models):
    found = finding(pool_in(models[0]))
    assert found.verdict == "holds"
    assert found.sentences[0].startswith("As in the paper, the effective degree has the highest correlation")
    assert "(18 models, 2 seeds)" in found.sentences[0]
    assert "Along paths between random pixels it is 0." in str(found)
    assert "effective_degree ranks better than" in str(found)


def test_another_measure_may_be_stronger(models):
    folder = models[0]
    for file in folder.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        summary["proxies"]["sharpness@0.1"]["value"] = summary["gap"]
        summary["effective_degree"]["value"] = -summary["effective_degree"]["value"]
        file.write_text(json.dumps(summary))
    found = finding(pool_in(folder))
    assert found.verdict == "does not hold"
    assert found.sentences[0].startswith("Unlike in the paper, sharpness@0.1 has the highest correlation")


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
    assert "1 of 18 models were run." in block_sheets(block)[0].notes


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
    rows = [{key: row[key] for key in ("batch", "lr", "gap", "effective_degree")} for row in block.pool.table]
    together = rank(rows, hyperparameters=["batch", "lr"], clusters=["batch"]).scores["effective_degree"]
    assert block.pool.ranking.scores["effective_degree"].kendall == together.kendall
