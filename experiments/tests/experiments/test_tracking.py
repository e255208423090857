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


def test_tables_show_correlations_ratios_and_costs():
    runs = make_pool(MODELS[:5])
    raw, normalized, costs = RECIPE.study.tables(collect(RECIPE, runs)[0])  # all plain: no table of groups
    assert raw.rows[1][2].startswith("1.00 (")
    assert raw.rows[1][4:] == ("0.80 ± 0.00", "2.000 ± 0.000", "0.90")
    assert normalized.rows[1][4:] == ("0.80 ± 0.00", "1.000 ± 0.000", "0.80")
    # The standard error on 400 paths is 0.05 / (0.8 × 3) of the value for the median, 0.05 / 0.8 for the worst.
    paths = [-(-((0.05 * 20 / (0.8 * value) / 0.02) ** 2) // 1) for value in (3.0, 1.0)]
    biases = ("-20.0 (-20.0)", "+100.0 (+100.0)")
    needed = (f"{paths[0]:,.0f} ({paths[1]:,.0f})", f"{4 * paths[0]:,.0f} ({4 * paths[1]:,.0f})")
    assert costs.rows[1] == ("raw, on probabilities", "4/3", *biases, *needed)
    assert costs.rows[6][1:4] == ("200/40", "+0.0 (+0.0)", "+0.0 (+0.0)")
    assert RECIPE.study.headline(runs[0]) == "ED 1.000, with 4/3 0.800"


def test_methods_that_a_setting_cannot_distinguish_are_shown_separately():
    # Within a method the coarse value rises with the precise one; between methods it falls.
    runs = [
        make_run((method, point), 1.0 + shift + place / 100, 2.0 - shift + place / 100)
        for shift, method in enumerate(RECIPE.methods[:2])
        for place, point in enumerate(RECIPE.points())
    ]
    assert RECIPE.study.claim(collect(RECIPE, runs)[0]).word == "does not hold"
    groups = RECIPE.study.tables(collect(RECIPE, runs)[0])[2]
    assert groups.rows[1] == ("raw, on probabilities", "mixup", "12", *["1.00"] * 6)


def test_the_figure_has_a_panel_for_each_setting_and_value():
    figure = RECIPE.study.figures(collect(RECIPE, make_pool(MODELS[::4]))[0])[0].draw("dark")
    titles = [axes.get_title("left") for axes in figure.axes]
    assert (len(titles), titles[1]) == (12, "4/3   ρ = 1.000")
    assert [text.get_text() for text in figure.legends[0].texts] == ["plain", "mixup", "ED, λ = 2", "ED, λ = 7"]
    assert len({each.get_marker() for each in figure.legends[0].legend_handles}) == 4


def test_seeds_of_one_configuration_are_not_independent():
    runs = [make_run(MODELS[seed % 2], 1.0 + seed, 1.0 + seed, seed) for seed in range(8)]
    verdict = RECIPE.study.claim(collect(RECIPE, runs)[0])
    assert (verdict.word, verdict.interval) == ("not decided", None)  # two configurations cannot be resampled
