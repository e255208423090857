import random

import pytest
from toy_results import invent_run

from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect

RECIPE = find_recipe("digits-estimators")

MODELS = [(method, point) for method in RECIPE.methods for point in RECIPE.points()]


def measure(value):
    return {"value": value, "stderr": 0.05, "normalized": 2 * value, "normalized_stderr": 0.05}


def make_run(model, precise, coarse, seed=0):
    method, point = model
    found = measure(coarse) | {"per_path_correlation": 0.9, "normalized_per_path_correlation": 0.8}
    found |= {"value_at_degree": 0.5 * coarse, "normalized_at_degree": 2 * coarse}
    also = dict.fromkeys(RECIPE.settings.measure_also, found)
    summary = {"effective_degree": measure(precise), "measured_also": also}
    return invent_run(RECIPE, method.name, summary, seed=seed, **point)


def make_pool(models):
    return [make_run(model, 1.0 + place, 0.8 * (1.0 + place)) for place, model in enumerate(models)]


@pytest.mark.parametrize(("noise", "word"), [(0.0, "holds"), (0.2, "not decided"), (5.0, "does not hold")])
def test_the_claim_is_decided_by_the_interval_of_the_rank_correlation(noise, word):
    drawn = random.Random(0)
    values = [1.0 + place / 20 for place in range(20)]
    coarse = [0.7 * value + 0.7 * noise * drawn.gauss(0, 1) for value in values]
    verdict = RECIPE.study.claim(collect(RECIPE, list(map(make_run, MODELS, values, coarse)))[0])
    assert (verdict.word, verdict.quantity) == (word, "rank correlation of 4/3 with 200/40")


def test_tables_show_correlations_and_ratios():
    runs = make_pool(MODELS[:5])
    raw, normalized = RECIPE.study.tables(collect(RECIPE, runs)[0])
    assert raw.rows[1][2].startswith("1.00 (")
    assert raw.rows[1][4:] == ("0.80 ± 0.00", "2.000 ± 0.000", "0.90")
    assert normalized.rows[1][4:] == ("0.80 ± 0.00", "1.000 ± 0.000", "0.80")
    assert RECIPE.study.headline(runs[0]) == "ED 1.000, with 4/3 0.800"


def test_seeds_of_one_configuration_are_not_independent():
    runs = [make_run(MODELS[seed % 2], 1.0 + seed, 1.0 + seed, seed) for seed in range(8)]
    verdict = RECIPE.study.claim(collect(RECIPE, runs)[0])
    assert (verdict.word, verdict.interval) == ("not decided", None)  # two configurations cannot be resampled
