from dataclasses import replace

import pytest
from toy_results import BASE, ED, Toy, make_run

from effdeg_lab.core.recipe import Method, Recipe
from effdeg_lab.core.results import collect
from effdeg_lab.engine.label_noise import DEGREES
from effdeg_lab.experiments.cifar10.noisy_labels import SCORES, NoisyLabels

RECIPE = Recipe(
    name="noisy",
    title="Wrong labels",
    settings=Toy(data="cifar10n-worst"),
    study=NoisyLabels(),
    methods=(Method("plain", "Baseline"), Method("mixup", "Mixup", {"regularizer": "mixup"}), Method("ed", "ED", ED)),
    grid={"data": ("cifar10n-aggregate", "cifar10n-worst")},
    **BASE,
)
AGGREGATE, WORST = RECIPE.grid["data"]


def make_noisy_run(name, data, accuracy, seed=0, areas=None, **changes):
    summary = {"best_test_accuracy": accuracy + 0.1, "best_epoch": 10, "wrong_share": 0.4 if data == WORST else 0.09}
    if areas is not None:
        summary["wrong_labels"] = dict.fromkeys(SCORES, 0.7) | areas
    return make_run(RECIPE, name, accuracy, data=data, seed=seed, summary=summary, **changes)


def make_runs(leads, noise=0.001):
    """Make three seeds of every method on both label sets, ED ahead of the others by a lead on each."""
    return [
        make_noisy_run(name, data, base + 0.01 * (name == "mixup") + lead * (name == "ed") + noise * place, seed)
        for data, base, lead in zip(RECIPE.grid["data"], (0.8, 0.6), leads, strict=True)
        for name in ("plain", "mixup", "ed")
        for seed, place in enumerate((0, 1, -1) if name == "ed" else (0, -1, 1))
    ]


def get_results(runs):
    return collect(RECIPE, runs)[0]


@pytest.mark.parametrize(
    ("leads", "word"), [((0.03, 0.04), "holds"), ((0.03, -0.02), "does not hold"), ((0.03, 0.011), "not decided")]
)
def test_ed_must_lead_on_every_label_set(leads, word):
    verdict = RECIPE.study.claim(get_results(make_runs(leads)))
    assert verdict.word == word
    assert verdict.quantity == "ED minus Mixup, points"  # the best of the others
    if word != "holds":
        assert verdict.value == pytest.approx(100 * (leads[1] - 0.01))


def test_accuracies_of_the_last_and_of_the_best_epoch():
    runs = [run for run in make_runs((0.03, 0.04)) if run.method != "mixup" or run.settings["data"] == AGGREGATE]
    first, second = RECIPE.study.tables(get_results(runs))
    wrong = "9.0% of the labels wrong"
    assert first.title == f"Accuracy ({wrong}): {AGGREGATE}, 20 epochs, seeds 0, 1, 2, Thinking Machine"
    assert second.title.startswith(f"Accuracy (40.0% of the labels wrong): {WORST}")
    against = ("last: against Baseline", "best: against Baseline")
    assert first.columns == ("", "last epoch, %", against[0], "best epoch, %", against[1], "training, %", "step")
    assert first.rows[0][:5] == ("Baseline", "80.00 ± 0.10", "–", "90.00 ± 0.10", "–")
    # Paired by seed: 3.0, 3.2 and 2.8 points, with Student's t of two degrees of freedom.
    margin = 4.3027 * 0.2 / 3**0.5
    difference = f"+3.00 ({3 - margin:+.2f} to {3 + margin:+.2f})*"
    assert first.rows[2][:5] == ("ED", "83.00 ± 0.10", difference, "93.00 ± 0.10", difference)
    assert first.bold == {(2, 1), (2, 3)}
    assert second.rows[1][1:5] == ("not run", "–", "–", "–")
    assert "chosen on the test images" in first.notes[1]
    assert RECIPE.study.headline(runs[0]) == "80.00% (best epoch 90.00%)"
    assert RECIPE.study.headline(make_run(RECIPE, "plain", 0.5)) == "50.00%"


def test_scores_are_tabulated_where_labels_were_scored():
    areas = [{"area_under_margin": 0.8 + seed / 100, "loss": 0.8 + seed / 50} for seed in range(3)]
    runs = [make_noisy_run("plain", WORST, 0.8, seed, each) for seed, each in enumerate(areas)]
    runs += [make_noisy_run("ed", WORST, 0.8, 0, {"degree": 0.9})]
    *_, table = RECIPE.study.tables(get_results(runs))
    assert table.title.startswith(f"Which score finds wrong labels, AUROC, %: {WORST}")
    assert table.columns[1:] == ("Baseline", "ED")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["area under the margin"] == ("81.00 ± 1.00", "70.00")
    assert rows["ED"] == ("70.00 ± 0.00", "90.00")
    assert {*DEGREES, *(f"mean_{name}" for name in DEGREES)} < SCORES.keys()  # all that the engine measures
    assert len(RECIPE.study.tables(get_results(make_runs((0.1, 0.1))))) == 2


def test_every_label_set_has_a_figure_of_accuracies_during_training():
    runs = make_runs((0.1, 0.1))
    assert RECIPE.study.figures(get_results([replace(run, metrics=run.metrics[-1:]) for run in runs])) == []
    figures = RECIPE.study.figures(get_results(runs))
    assert [figure.name for figure in figures] == [f"curves-{name}" for name in RECIPE.grid["data"]]
    assert figures[1].caption.startswith(f"{WORST}: test accuracy by epochs")


def test_a_label_set_without_ed_or_without_any_run_decides_nothing():
    runs = [run for run in make_runs((0.03, 0.04)) if (run.method, run.settings["data"]) != ("ed", WORST)]
    assert RECIPE.study.claim(get_results(runs)).word == "not decided"
    runs = [run for run in make_runs((0.03, 0.04)) if run.settings["data"] == WORST]
    assert RECIPE.study.claim(get_results(runs)).word == "not decided"
    runs = [run for run in make_runs((0.03, -0.04)) if run.settings["data"] == WORST]
    assert RECIPE.study.claim(get_results(runs)).word == "does not hold"
