"""Pools: measures are ranked as effdeg ranks them, over a grid, and by random search within strata."""

import copy
import random
from dataclasses import replace

import pytest
from toy_results import POOL, make_degree, make_run

from effdeg.pools import rank
from effdeg_lab.core.results import collect
from effdeg_lab.core.search import draw_points
from effdeg_lab.experiments.pools.study import RandomPool, find_inert, find_papers, rank_grid, read_models

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
    (table,) = POOL.study.tables(results)
    assert table.title.startswith("18 models: 5 epochs, seeds 0, 1")
    cells = {row[0]: row for row in table.rows}
    for name, score in expected.scores.items():
        for column, statistic in ((1, "pearson"), (2, "spearman"), (3, "kendall"), (4, "psi")):
            assert cells[name][column].startswith(f"{getattr(score, statistic).value:z.2f} (")
    papers = ["effective_degree", "sharpness@0.1", "adaptive_sharpness@0.5", "parameter_norm"]
    assert [score.measure for score in find_papers(rank_grid(results))] == papers
    assert {table.rows[row][0] for row, _ in table.bold} == {*papers}


def test_the_claim(pool):
    results = gather(pool[0])
    verdict = POOL.study.claim(results)
    advantage = rank_grid(results).compare("effective_degree", "sharpness@0.1", "pearson")
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


def test_a_pool_that_cannot_be_ranked_yet():
    (results,) = collect(POOL, [make_run(POOL, "plain", 0.8, batch=10, lr=0.1)])
    assert POOL.study.claim(results).word == "not decided"
    (table,) = POOL.study.tables(results)
    assert "needs at least 3 models" in table.notes[0]


def test_models_that_differ_only_where_it_does_nothing_are_resampled_together():
    rng = random.Random(0)
    runs = []
    for point in POOL.points():
        gap = 0.1 + 0.001 * point["batch"] + 1e-6 * rng.random()
        degree = make_degree(gap + rng.gauss(0, 0.01), rng.random())
        runs.append(make_run(POOL, "plain", 0.9, summary={"gap": gap, "effective_degree": degree}, **point))
    (results,) = collect(POOL, runs)
    models, name = read_models(results), "effective_degree_test"
    assert find_inert(models, AXES) == ["lr"]
    rows = [{key: model[key] for key in (*AXES, "gap", name)} for model in models]
    together = rank(rows, hyperparameters=AXES, clusters=["batch"]).scores[name]
    assert rank_grid(results).scores[name].kendall == together.kendall


VARIANTS = [f"effective_degree{kind}_test@{m}" for m in (1, 3, 10) for kind in ("", "_normalized")]


def draw(draws):
    alpha = draws.zero_or_uniform(0.1, 1.0)
    return {"regularizer": "mixup" if alpha else "plain", "alpha": alpha, "lr": draws.log_uniform(1e-3, 1.0)}


RECIPE = replace(POOL, grid={}, search=draw_points(draw, 48, seed=0), seeds=(0,), study=RandomPool(fit=0.9))


def make_runs(sign=1.0):
    """Make runs in which ED with 3 components follows the gap, but mixup lowers all gaps and raises all degrees."""
    rng, runs = random.Random(0), []
    for place, point in enumerate(RECIPE.points()):
        mixes = point["regularizer"] == "mixup"
        gap = rng.gauss(0.2 if mixes else 0.3, 0.02)
        degree = sign * (10 * gap + rng.gauss(0, 0.06)) + 5.0 * mixes
        noise = [make_degree(rng.gauss(2, 1), rng.gauss(2, 1)) for _ in range(3)]
        measured = {"sharpness@0.05": rng.random(), "sharpness@0.1": rng.random(), "parameter_norm": rng.random()}
        train = 0.5 if place % 12 == 0 else 0.9 + 0.1 * rng.random()
        summary = {
            "gap": gap,
            "train_accuracy": train,
            "proxies": {name: {"value": value, "stderr": None} for name, value in measured.items()},
            "test_proxies": {"confidence": {"value": 0.9 - gap + rng.gauss(0, 0.05), "stderr": 0.01}},
            "effective_degree": noise[0],
            "effective_degree_components": {"1": noise[1], "3": make_degree(degree, rng.random()), "10": noise[2]},
        }
        runs.append(make_run(RECIPE, "plain", train - gap, summary=summary, **point))
    return runs


@pytest.fixture(scope="module")
def results():
    (found,) = collect(RECIPE, make_runs())
    return found


def test_measures_are_ranked_within_strata_among_models_that_fit(results):
    models = read_models(results)
    assert {*models[0]} >= {"confidence_test", "parameter_norm", "recipe", *VARIANTS}
    fitted = [model for model in models if model["train_accuracy"] >= 0.9]
    assert len(fitted) == 44
    table, _, everything = RECIPE.study.tables(results)
    measures = ["effective_degree_test@3", "-confidence_test", "parameter_norm"]
    expected = rank(fitted, measures=measures, strata=["recipe"])
    assert table.title.startswith("The 44 of 48 models that fit (90%): 5 epochs, seed 0")
    assert table.columns[-2:] == tuple(f"Kendall {name}" for name in expected.strata)
    cells = {row[0]: row for row in table.rows}
    for name, score in expected.scores.items():
        inside = [each.scores[name].kendall for each in expected.strata.values()]
        for cell, statistic in zip(cells[name][1:], (score.pearson, score.kendall, *inside), strict=True):
            assert cell.startswith(f"{statistic.value:z.2f} (")
    # Mixed, the strata would hide it.
    mixed = rank(fitted, measures=measures[:1]).scores[measures[0]]
    assert mixed.pearson.value < 0 < 0.9 < expected.scores[measures[0]].pearson.value
    assert everything.title == "All 48 models"


def test_the_claim_is_about_the_best_variant_and_knows_of_the_choice(results):
    verdict = RECIPE.study.claim(results)
    fitted = [model for model in read_models(results) if model["train_accuracy"] >= 0.9]
    best = rank(fitted, measures=VARIANTS, strata=["recipe"], variants={"ED": VARIANTS}).best["ED"]["pearson"]
    assert (verdict.word, verdict.value, verdict.interval) == ("holds", best.corrected, best.interval)
    (turned,) = collect(RECIPE, make_runs(sign=-1.0))
    assert RECIPE.study.claim(turned).word == "not decided"
    runs = make_runs()
    for run in runs:
        run.summary["train_accuracy"] = 0.5 + run.summary["gap"]
    (explained,) = collect(replace(RECIPE, study=RandomPool()), runs)
    verdict = explained.recipe.study.claim(explained)
    assert verdict.word == "not decided"
    assert str(verdict).endswith("as training accuracy alone follows the gap at least as closely")
    for run in runs:  # there is nothing to explain
        falling = make_degree(1 - run.summary["gap"], 2 - run.summary["gap"])
        components = dict.fromkeys(("1", "3", "10"), falling)
        run.summary.update(effective_degree=falling, effective_degree_components=components)
    (falls,) = collect(replace(RECIPE, study=RandomPool()), runs)
    verdict = falls.recipe.study.claim(falls)
    assert (verdict.word, verdict.reason) == ("does not hold", "")


def test_measures_are_also_ranked_by_other_comparisons(results):
    study = replace(RECIPE.study, fit=0.0, finer=("recipe", "lr"))
    (table,) = [each for each in study.tables(results) if "by which models are compared" in each.title]
    # Learning rates are all different, so that none are compared within them.
    fit = "within strata, those that fit (99%): 5 models"
    assert table.columns == ("measure", "within strata: 48 models", "all together: 48 models", fit)
    rows = {row[0]: row[1:] for row in table.rows}
    assert {"effective_degree_test@3", "-confidence_test", "parameter_norm"} < rows.keys()
    models = read_models(results)
    fitted = [model for model in models if model["train_accuracy"] >= 0.99]
    for name in ("effective_degree_test@3", "parameter_norm"):
        compared = ((models, ["recipe"]), (models, []), (fitted, ["recipe"]))
        taus = [rank(pool, measures=[name], strata=strata).scores[name].kendall.value for pool, strata in compared]
        assert [float(cell.split(" ")[0]) for cell in rows[name]] == pytest.approx(taus, abs=0.006)
