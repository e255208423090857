from dataclasses import replace

import pytest

from effdeg.lab.recipe import Reported
from effdeg.lab.report import finding, result_of
from effdeg.lab.store import Store
from tests.lab.report.stores import METHODS, add


def found(folder, recipe=METHODS):
    return finding(result_of(recipe, Store(folder).records()).blocks[0])


def run(folder, accuracies, recipe=METHODS, **settings):
    for row, accuracy in accuracies.items():
        add(folder, recipe, row, accuracy, **settings)


def test_not_run(tmp_path):
    assert found(tmp_path).verdict == "not run"


def test_the_order_holds(tmp_path):
    run(tmp_path, {"plain": 0.80, "mixup": 0.82, "ed": 0.83})
    so_far = found(tmp_path)
    assert so_far.verdict == "holds so far"
    assert "Not run: SAM." in str(so_far)
    run(tmp_path, {"sam": 0.79})
    holds = found(tmp_path)
    assert holds.verdict == "holds"
    # Baseline and SAM are too close in the paper to be told apart.
    assert "The paper's order holds at 20 epochs, one seed: all 5 pairs" in str(holds)
    assert "ED is 3.00 points above Baseline (paper: +4.00)" in str(holds)
    assert "With one seed" in str(holds)


def test_the_order_does_not_hold(tmp_path):
    run(tmp_path, {"plain": 0.80, "mixup": 0.891, "ed": 0.88, "sam": 0.81}, epochs=40)
    contrary = found(tmp_path)
    assert contrary.verdict == "does not hold"
    assert contrary.sentences[0] == (
        "Here Mixup (89.10%) is above ED (88.00%): the paper's order does not hold at 40 epochs, one seed."
    )
    assert "in 4 of 5 pairs" in str(contrary)


@pytest.mark.parametrize(
    ("noise", "verdict", "words"),
    [(0.0, "does not hold", ", beyond the noise: the paper's order does not hold"), (0.2, "not decided", ", within")],
)
def test_several_seeds_know_the_noise(tmp_path, noise, verdict, words):
    for seed in (0, 1, 2):
        run(tmp_path, {"mixup": 0.85 + 0.001 * seed, "ed": 0.84 + noise * (seed - 1)}, seed=seed)
    several = found(tmp_path)
    assert several.verdict == verdict
    assert words in several.sentences[0]
    assert "With one seed" not in str(several)


def test_lines_that_the_paper_does_not_tell_apart(tmp_path):
    recipe = replace(METHODS, rows=(METHODS.rows[0], METHODS.rows[2]))
    run(tmp_path, {"plain": 0.80, "sam": 0.85}, recipe)
    assert found(tmp_path, recipe).verdict == "not decided"
    assert "are 5.00 points apart, at 20 epochs, one seed" in str(found(tmp_path, recipe))
    for seed in (1, 2):
        run(tmp_path, {"plain": 0.80 + seed / 1000, "sam": 0.85}, recipe, seed=seed)
    assert found(tmp_path, recipe).verdict == "does not hold"


def test_without_spreads_a_point_tells_lines_apart(tmp_path):
    papers = {"plain": 80.0, "mixup": 80.9, "sam": 81.1, "ed": 80.5}
    recipe = replace(METHODS, rows=tuple(replace(row, paper=Reported(papers[row.name])) for row in METHODS.rows))
    run(tmp_path, {"plain": 0.80, "mixup": 0.70, "sam": 0.81, "ed": 0.60}, recipe)
    assert found(tmp_path, recipe).verdict == "holds"
    assert found(tmp_path, recipe).sentences[0].startswith("As in the paper, SAM (81.00%) is above Baseline (80.00%)")


def test_a_line_by_itself_decides_nothing(tmp_path):
    run(tmp_path, {"ed": 0.9})
    assert found(tmp_path).verdict == "not decided"
    assert "Of the 4 lines that the paper has, only one was run" in str(found(tmp_path))


def test_what_is_not_in_the_paper(tmp_path):
    recipe = replace(METHODS, rows=tuple(replace(row, paper=None) for row in METHODS.rows))
    run(tmp_path, {"plain": 0.80, "ed": 0.79}, recipe)
    assert found(tmp_path, recipe).verdict == "not in the paper"
    assert "ED is 1.00 points below Baseline" in str(found(tmp_path, recipe))
    run(tmp_path, {"mixup": 0.95}, recipe)
    mixed = replace(
        METHODS, rows=tuple(replace(row, paper=None) if row.name == "mixup" else row for row in METHODS.rows)
    )
    assert "Mixup, which is not in the paper, is the highest here: 95.00%." in str(found(tmp_path, mixed))


def test_equal_time(tmp_path):
    run(tmp_path, {"plain": 0.80, "mixup": 0.81})
    run(tmp_path, {"ed": 0.85}, step=2.0)
    assert "In the time" not in str(found(tmp_path))
    run(tmp_path, {"mixup": 0.86}, epochs=40)
    sentence = "In the time of ED (40 s), Mixup reaches 86.00% in 40 epochs, above ED's 85.00%."
    assert sentence in str(found(tmp_path))
