"""How far coarse settings follow the precise one, from runs that nobody ran."""

import random

import pytest

from effdeg.lab.recipe import Row
from effdeg.lab.recipes import cifar10_estimators, cifar10_vit_pool
from effdeg.lab.recipes.digits_estimators import RECIPE
from effdeg.lab.report import result_of
from effdeg.lab.settings import differences
from effdeg.lab.store import Store
from effdeg.lab.studies.estimator.models import every_model, models_of


def measured(value, stderr=0.05):
    return {"value": value, "stderr": stderr, "normalized": 2 * value, "normalized_stderr": stderr}


def add(store, row, precise, coarse, *, seed=0, also=True):
    settings = RECIPE.resolved(row, {"seed": seed})
    run = store.run(settings)
    run.begin({"device": "an abacus"})
    extra = {
        "per_path_correlation": 0.9,
        "normalized_per_path_correlation": 0.8,
        "value_at_degree": 0.5 * coarse,
        "normalized_at_degree": 2 * coarse,
    }
    found = {name: measured(coarse) | extra for name in settings.measure_also} if also else None
    summary = {"test_accuracy": 0.9, "effective_degree": measured(precise), "seconds": 1.0}
    run.finish(summary | ({"measured_also": found} if found else {}))


def told(store):
    result = result_of(RECIPE, store.records())
    block = result.blocks[0]
    return block, result.findings[block]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.mark.parametrize(("noise", "verdict"), [(0.0, "aim met"), (0.2, "not decided"), (5.0, "aim missed")])
def test_a_setting_tracks_or_not_or_nobody_knows(store, noise, verdict):
    drawn = random.Random(0)
    for place, row in enumerate(RECIPE.rows[:20]):
        add(store, row, 1.0 + place / 20, 0.7 * (1.0 + place / 20) + 0.7 * noise * drawn.gauss(0, 1))
    _, found = told(store)
    assert found.verdict == verdict
    assert "Over 20 models, 4/3 nodes/degree have a rank correlation of" in found.sentences[0]
    if verdict == "aim met":
        assert "0.70 ± 0.00 times the precise one" in found.sentences[0]
        expected = "Raw, on probabilities: 3/2, 4/3, 8/5, 15/7, 32/20 and 64/40 track it."
        assert found.sentences[1] == expected


def test_tables_say_how_far_and_at_what_cost(store):
    for place, row in enumerate(RECIPE.rows[:5]):
        add(store, row, 1.0 + place, 0.8 * (1.0 + place))
    block, _ = told(store)
    raw, normalized, costs = RECIPE.shows.sheets(block)  # all plain: no table of groups
    assert raw.rows[1][0] == "4/3"
    assert raw.rows[1][2].startswith("1.00 (")
    assert raw.rows[1][4:] == ("0.80 ± 0.00", "2.000 ± 0.000", "0.90")
    assert normalized.rows[1][4:] == ("0.80 ± 0.00", "1.000 ± 0.000", "0.80")
    # The standard error on 400 paths is 0.05 / (0.8 × 3) of the value for the median, 0.05 / 0.8 for the worst.
    paths = [-(-((0.05 * 20 / (0.8 * value) / 0.02) ** 2) // 1) for value in (3.0, 1.0)]
    assert costs.rows[1] == (
        "raw, on probabilities",
        "4/3",
        "-20.0 (-20.0)",
        "+100.0 (+100.0)",
        f"{paths[0]:,.0f} ({paths[1]:,.0f})",
        f"{4 * paths[0]:,.0f} ({4 * paths[1]:,.0f})",
    )
    assert costs.rows[6][1:4] == ("200/40", "+0.0 (+0.0)", "+0.0 (+0.0)")
    assert RECIPE.shows.score(block.done[0].runs[0]) == "ED 1.000, with 4/3 0.800"


def test_groups_that_a_setting_cannot_tell_apart_are_shown_by_themselves(store):
    methods = {row.changes["method"]: [] for row in RECIPE.rows}
    for row in RECIPE.rows:
        methods[row.changes["method"]].append(row)
    # Within a method the coarse value rises with the precise one; between them it falls.
    for shift, method in ((0.0, "plain"), (1.0, "mixup")):
        for place, row in enumerate(methods[method]):
            add(store, row, 1.0 + shift + place / 100, 2.0 - shift + place / 100)
    block, found = told(store)
    assert found.verdict == "aim missed"
    assert found.sentences[1].startswith("Raw, on probabilities: 3/2, 4/3, 8/5, 15/7, 32/20 and 64/40 do not.")
    assert found.sentences[-1] == (
        "Among models trained alike the rank correlation is 1.00 (plain) and 1.00 (mixup), raw."
    )
    groups = RECIPE.shows.sheets(block)[2]
    assert groups.rows[1] == ("raw, on probabilities", "mixup", "12", *["1.00"] * 6)


def test_a_pool_of_one_method_is_grouped_by_its_rate(store):
    for place, row in enumerate(RECIPE.rows[:6]):
        add(store, row, 1.0 + place, 1.0 + place)
    block, _ = told(store)
    assert [model.group for model in models_of(block)] == [
        f"lr = {rate}" for rate in (0.001, 0.003, 0.01) for _ in "ab"
    ]


def test_runs_that_were_measured_once_decide_nothing(store):
    for row in RECIPE.rows[:4]:
        add(store, row, 1.0, 1.0, also=False)
    block, found = told(store)
    assert found.verdict == "not decided"
    assert found.sentences == ("0 models were measured with 4/3 too: nothing to compare.",)
    assert RECIPE.shows.sheets(block) == []
    assert RECIPE.shows.drawings(block) == []
    assert RECIPE.shows.score(block.done[0].runs[0]) == "ED 1.000"


def test_seeds_of_one_configuration_are_not_independent(store):
    for place, row in enumerate(RECIPE.rows[:2]):
        for seed in range(4):
            add(store, row, 1.0 + place, 1.0 + place + seed / 10, seed=seed)
    block, found = told(store)
    assert len(models_of(block)) == 8
    # Two configurations cannot be resampled.
    assert found.verdict == "not decided"


def test_the_figure_has_a_panel_for_each_setting_and_value(store):
    for place, row in enumerate(RECIPE.rows[::4]):
        add(store, row, 1.0 + place, 0.8 * (1.0 + place))
    block, _ = told(store)
    (drawing,) = RECIPE.shows.drawings(block)
    figure = drawing.draw("dark")
    titles = [axes.get_title("left") for axes in figure.axes]
    assert len(titles) == 12
    assert titles[1] == "4/3   ρ = 1.000"
    assert [text.get_text() for text in figure.legends[0].texts] == ["plain", "mixup", "ed, λ = 2", "ed, λ = 7"]


def test_every_model_of_a_pool_has_a_line():
    rows = every_model((Row("a", "A", {"method": "plain"}),), {"batch": (8, 1024), "lr": (0.1, 1e-5)})
    assert [row.name for row in rows] == [
        "a-batch=8-lr=0.1", "a-batch=8-lr=1e-05", "a-batch=1024-lr=0.1", "a-batch=1024-lr=1e-05"
    ]  # fmt: skip
    assert rows[2].title == "A, batch=1,024, lr=0.1"
    assert rows[2].changes == {"method": "plain", "batch": 1024, "lr": 0.1}


def test_the_pool_of_cifar10_is_the_paper_s_measured_in_more_ways():
    pool, ours = cifar10_vit_pool.RECIPE, cifar10_estimators.RECIPE
    for row, point in zip(ours.rows, pool.points(), strict=True):
        one, other = ours.resolved(row, {}), pool.resolved(pool.rows[0], point)
        assert set(differences(one, other)) == {"measure_also"}


def test_the_digits_are_no_others_runs():
    # Weight decays that no other recipe has: its runs do not show up here as another scale.
    assert {row.changes["weight_decay"] for row in RECIPE.rows} == {0.01, 1.0}
    assert len(RECIPE.rows) == 48
