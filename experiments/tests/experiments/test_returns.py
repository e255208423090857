"""Procgen's recipes: the paper's settings, and the study of returns on runs that are made up."""

import math
import statistics

import numpy as np
import pytest
from scipy.stats import t
from toy_results import invent_run

from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.core.sweep import Plan
from effdeg_lab.experiments.procgen.study import smoothen

STARPILOT = find_recipe("procgen-starpilot")
METHODS = ["plain", "mixreg", "ed", "ed-self", "mixreg-ed"]
PLAIN, ED = [3.0, 3.2, 3.7], [3.5, 3.8, 4.2]  # returns on unseen levels, by seed


def make_run(method, value, *, seed=0, recipe=STARPILOT, speed=40_000.0, shared=False, points=10, **changes):
    """Make a run that rises to a return on unseen levels, and to twice that return on training levels."""
    steps = recipe.resolve(recipe.method(method), changes).steps
    shares = np.arange(1, points + 1) / points
    metrics = [{"step": round(at * steps), "test_return": at * value, "train_return": 2 * at * value} for at in shares]
    summary = {"test_return": value, "train_return": 2 * value, "gap": value, "test_return_error": 0.07 + 0.01 * seed}
    summary["steps_per_second"] = speed
    return invent_run(recipe, method, summary, metrics, {"shared": shared}, seed=seed, **changes)


def make_runs(values, **given):
    return [make_run(name, value, seed=seed, **given) for name in values for seed, value in enumerate(values[name])]


def read_rows(results):
    (table,) = results.recipe.study.tables(results)
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


def test_returns_with_standard_errors_paired_differences_and_speeds():
    runs = make_runs({"plain": PLAIN}) + make_runs({"ed": ED}, speed=10_000.0)
    (results,) = collect(STARPILOT, runs)
    (table,) = STARPILOT.study.tables(results)
    assert table.title == "StarPilot, 50 million steps: seeds 0, 1, 2, Thinking Machine"
    rows = read_rows(results)
    gains = [one - other for one, other in zip(ED, PLAIN, strict=True)]
    mean, stderr = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(3)
    margin = t.ppf(0.975, 2) * stderr
    assert rows["ED"]["against PPO"] == f"{mean:+.2f} ({mean - margin:+.2f} to {mean + margin:+.2f})*"
    for title, values in {"PPO": PLAIN, "ED": ED}.items():
        mean, stderr = statistics.fmean(values), statistics.stdev(values) / math.sqrt(3)
        assert rows[title]["unseen levels"] == rows[title]["gap"] == f"{mean:.2f} ± {stderr:.2f}"
        assert rows[title]["training levels"] == f"{2 * mean:.2f} ± {2 * stderr:.2f}"
    assert (rows["PPO"]["against PPO"], rows["PPO"]["steps/s"], rows["PPO"]["speed"]) == ("–", "40,000", "1.00×")
    assert (rows["ED"]["steps/s"], rows["ED"]["speed"]) == ("10,000", "0.25×")
    assert [*rows["mixreg"].values()] == ["not run", *["–"] * 5]
    assert "seeds" not in rows["ED"]  # the title names them
    assert {table.rows[row][0] for row, _ in table.bold} == {"ED"}
    assert "Standard error over the episodes of one run: at most 0.09." in table.notes


@pytest.mark.parametrize(
    ("name", "steps", "unseen", "training"),
    [("starpilot", 25_000_000, "3.47 ± 0.09", "6.40 ± 0.14"), ("fruitbot", 100_000_000, "1.50 ± 0.75", "8.57 ± 0.81")],
)
def test_published_returns_after_as_many_steps_stand_below(name, steps, unseen, training):
    recipe = find_recipe(f"procgen-{name}")
    rows = read_rows(collect(recipe, make_runs({"plain": PLAIN}, recipe=recipe, steps=steps))[0])
    assert [*rows][-1] == "PPO elsewhere"
    published = {"unseen levels": unseen, "training levels": training}
    assert rows["PPO elsewhere"] == dict.fromkeys(rows["PPO"], "–") | published
    rows = read_rows(collect(recipe, make_runs({"plain": PLAIN}, recipe=recipe, steps=steps + 1_000_000))[0])
    assert "PPO elsewhere" not in rows


@pytest.mark.parametrize(
    ("ed", "word"), [([3.6, 3.8, 4.2], "holds"), ([3.1, 3.1, 3.9], "not decided"), ([2.6, 2.8, 3.2], "does not hold")]
)
def test_ed_must_be_ahead_on_unseen_levels(ed, word):
    runs = make_runs({"plain": PLAIN, "ed": ed, "mixreg": [9.0, 9.1, 9.2]})
    verdict = STARPILOT.study.claim(collect(STARPILOT, runs)[0])
    assert verdict.word == word
    assert verdict.value == pytest.approx(statistics.fmean(ed) - statistics.fmean(PLAIN))
    single = STARPILOT.study.claim(collect(STARPILOT, [run for run in runs if run.seed == 0])[0])
    assert (single.word, "(one seed)" in single.quantity) == ("not decided", True)
    assert STARPILOT.study.claim(collect(STARPILOT, make_runs({"plain": PLAIN}))[0]).word == "not decided"


@pytest.mark.parametrize(("points", "reach"), [(2, 0), (19, 0), (20, 1), (50, 2), (100, 5)])
def test_curves_are_averaged_over_a_tenth_of_training(points, reach):
    curves = np.random.default_rng(0).normal(size=(3, points))
    means = [[statistics.fmean(curve[max(0, at - reach) : at + reach + 1]) for at in range(points)] for curve in curves]
    assert smoothen(curves) == pytest.approx(np.array(means))


def test_the_figure_has_both_curves_of_every_method_and_the_final_returns():
    runs = make_runs({"plain": PLAIN, "ed": ED}, steps=25_000_000)
    (figure,) = STARPILOT.study.figures(collect(STARPILOT, runs)[0])
    assert figure.caption.endswith("Shorter than the paper's runs.")
    (axes,) = figure.draw("light").axes
    assert axes.get_title(loc="left") == "StarPilot, 25 of the paper's 50 million steps"
    # Curves, without dots and the lines to labels.
    curves = [line for line in axes.lines if line.get_linestyle() == "-" and line.get_marker() == "None"]
    train, unseen, *_ = curves
    assert len(curves) == 4
    assert unseen.get_xdata() == pytest.approx(np.arange(2.5, 25.1, 2.5))  # millions
    assert unseen.get_ydata() == pytest.approx(statistics.fmean(PLAIN) * np.arange(1, 11) / 10)
    assert train.get_ydata() == pytest.approx(2 * unseen.get_ydata())
    assert [text.get_text() for text in axes.texts] == ["PPO 3.30", "ED 3.83"]


def test_agents_cannot_be_trained_for_longer_by_the_epochs_of_an_update():
    with pytest.raises(ValueError, match="runs of procgen-starpilot have no setting epochs that could be raised"):
        Plan(STARPILOT, equal_time="ed").check(None)
