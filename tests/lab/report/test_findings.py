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


def three_seeds(folder, accuracies, spread=0.001, recipe=METHODS):
    """Run three seeds around each accuracy, which do not move together."""
    for place, (row, accuracy) in enumerate(accuracies.items()):
        for seed in (0, 1, 2):
            add(folder, recipe, row, accuracy + spread * ((seed + place) % 3 - 1) * (1 + place), seed=seed)


def test_the_order_holds(tmp_path):
    three_seeds(tmp_path, {"plain": 0.80, "mixup": 0.82, "ed": 0.84})
    so_far = found(tmp_path)
    assert so_far.verdict == "not decided"  # a line of the paper's is missing
    assert so_far.sentences[0] == (
        "The paper's order is not confirmed at 20 epochs, 3 seeds: 3 of the 3 pairs that the paper tells apart stand "
        "in its order, 3 of them beyond the noise."
    )
    assert "Not run: SAM." in str(so_far)
    three_seeds(tmp_path, {"sam": 0.80})
    holds = found(tmp_path)
    assert holds.verdict == "holds"
    # Baseline and SAM are too close in the paper to be told apart.
    assert "The paper's order holds at 20 epochs, 3 seeds: 5 of the 5 pairs" in str(holds)
    assert "ED is 4.00 points above Baseline, beyond the noise (paper: +4.00)" in str(holds)
    assert "With one seed" not in str(holds)


def test_what_the_order_leaves_out_is_named(tmp_path):
    run(tmp_path, {"plain": 0.80, "mixup": 0.805, "ed": 0.83})
    assert "Left out" not in str(found(tmp_path))
    run(tmp_path, {"sam": 0.80})
    left_out = "Left out is the pair that the paper does not tell apart by more than its spread: "
    assert left_out in str(found(tmp_path))
    # With a spread like this one's, nothing can be said of Mixup.
    rows = [replace(row, paper=Reported(82.0, 9.0)) if row.name == "mixup" else row for row in METHODS.rows]
    words = (
        "Left out are 4 pairs that the paper does not tell apart by more than its spread, among them all with Mixup."
    )
    assert words in str(found(tmp_path, replace(METHODS, rows=tuple(rows))))


def test_one_seed_decides_nothing(tmp_path):
    run(tmp_path, {"plain": 0.80, "mixup": 0.805, "ed": 0.83, "sam": 0.80})
    one = found(tmp_path)
    assert one.verdict == "not decided"
    # By 3 points ED leads three times, Mixup by half a point twice: the paper's spread is 0.71.
    assert one.sentences[0] == (
        "One seed: 5 of the 5 pairs that the paper tells apart stand in its order here, 3 of them by more than the "
        "paper's own spread."
    )
    assert "ED is 3.00 points above Baseline (paper: +4.00)" in str(one)
    assert "With one seed" in str(one)


@pytest.mark.parametrize(("ed", "how"), [(0.8199, "less"), (0.80, "more")])
def test_one_seed_does_not_refute_either(tmp_path, ed, how):
    run(tmp_path, {"plain": 0.78, "mixup": 0.82, "ed": ed, "sam": 0.78})
    one = found(tmp_path)
    assert one.verdict == "not decided"
    assert one.sentences[0].startswith("One seed: 4 of the 5 pairs")
    against = f"Against it, Mixup (82.00%) is above ED ({100 * ed:.2f}%), by {how} than the paper's own spread."
    assert one.sentences[1] == against


@pytest.mark.parametrize(
    ("noise", "verdict", "words"),
    [
        (
            0.0,
            "does not hold",
            "Here Mixup (85.10%) is above ED (84.00%), beyond the noise: the paper's order",
        ),
        (
            0.2,
            "not decided",
            "is not confirmed at 20 epochs, 3 seeds: the one pair that the paper tells apart does not",
        ),
    ],
)
def test_several_seeds_know_the_noise(tmp_path, noise, verdict, words):
    for seed in (0, 1, 2):
        run(tmp_path, {"mixup": 0.85 + 0.001 * seed, "ed": 0.84 + noise * (seed - 1)}, seed=seed)
    several = found(tmp_path)
    assert several.verdict == verdict
    assert words in several.sentences[0]
    assert "With one seed" not in str(several)


def test_the_right_order_within_the_noise_decides_nothing(tmp_path):
    three_seeds(tmp_path, {"plain": 0.80, "mixup": 0.81, "sam": 0.80, "ed": 0.82}, spread=0.05)
    right = found(tmp_path)
    assert right.verdict == "not decided"
    assert "5 of the 5 pairs that the paper tells apart stand in its order, none of them beyond the noise" in str(right)


def test_lines_that_are_no_longer_level_with_the_first(tmp_path):
    run(tmp_path, {"plain": 0.80, "mixup": 0.82, "ed": 0.83, "sam": 0.794})
    assert "Level with" not in str(found(tmp_path))  # 0.6 points are within the paper's 0.71
    run(tmp_path / "lower", {"plain": 0.80, "mixup": 0.82, "ed": 0.83, "sam": 0.79})
    level = "Level with Baseline in the paper, but apart from it here by more than the paper's own spread: SAM (-1.00"
    assert level in str(found(tmp_path / "lower"))


@pytest.mark.parametrize(
    ("apart", "noise", "verdict"),
    [
        (0.05, 0.001, "does not hold"),
        (0.001, 0.0001, "holds"),
        (0.001, 0.01, "not decided"),
        (0.02, 0.01, "not decided"),
    ],
)
def test_lines_that_the_paper_does_not_tell_apart(tmp_path, apart, noise, verdict):
    recipe = replace(METHODS, rows=(METHODS.rows[0], METHODS.rows[2]))
    run(tmp_path, {"plain": 0.80, "sam": 0.80 + apart}, recipe)
    assert found(tmp_path, recipe).verdict == "not decided"
    assert f"are {100 * apart:.2f} points apart, at 20 epochs, one seed" in str(found(tmp_path, recipe))
    for seed in (1, 2):
        run(tmp_path, {"plain": 0.80 + seed * noise, "sam": 0.80 + apart}, recipe, seed=seed)
    assert found(tmp_path, recipe).verdict == verdict


def test_without_spreads_a_point_tells_lines_apart(tmp_path):
    papers = {"plain": 80.0, "mixup": 80.9, "sam": 81.1, "ed": 80.5}
    recipe = replace(METHODS, rows=tuple(replace(row, paper=Reported(papers[row.name])) for row in METHODS.rows))
    run(tmp_path, {"plain": 0.80, "mixup": 0.70, "sam": 0.809, "ed": 0.60}, recipe)
    assert found(tmp_path, recipe).verdict == "not decided"
    assert found(tmp_path, recipe).sentences[0] == (
        "One seed: the one pair that the paper tells apart stands in its order here, but not by more than a point, "
        "as the paper states no spread."
    )


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
    assert "In ED's time (40 s), Baseline and Mixup were not run." in str(found(tmp_path))
    run(tmp_path, {"mixup": 0.86}, epochs=40)
    sentence = "In the time of ED (40 s), Mixup reaches 86.00% in 40 epochs, above ED's 85.00%."
    assert sentence in str(found(tmp_path))
    assert "In ED's time (40 s), Baseline was not run." in str(found(tmp_path))
