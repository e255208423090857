import pytest
from toy_results import PRICES, make_run

from effdeg_lab.core.results import collect

STUDY = PRICES.study
STEPS = {"plain": 1, "all": 1.8, "half": 1.3, "cheap": 1.2, "absent": 1.25}
SOME = {"plain": 0.80, "all": 0.84, "half": 0.839, "cheap": 0.81}


def gather(accuracies, seeds=(0, 1, 2), noise=0.002, **changes):
    """Collect runs whose plain accuracy alone varies with the seed."""
    values = {(name, seed): accuracy for name, accuracy in accuracies.items() for seed in seeds}
    runs = [
        make_run(PRICES, name, value + noise * (seed - 1) * (name == "plain"), step=STEPS[name], seed=seed, **changes)
        for (name, seed), value in values.items()
    ]
    return collect(PRICES, runs)[0]


@pytest.mark.parametrize(
    ("accuracies", "options", "word", "value"),
    [
        (SOME, {}, "does not hold", 81 - (80 + 0.95 * 4)),
        ({"plain": 0.80, "all": 0.84, "cheap": 0.81, "absent": 0.8395}, {}, "holds", 0.15),
        ({"plain": 0.80, "all": 0.84, "absent": 0.8381}, {"noise": 0.02}, "not decided", 0.01),
        ({"plain": 0.80, "cheap": 0.81}, {}, "not decided", None),
        ({"plain": 0.80, "cheap": 0.81, "all": 0.79}, {}, "not decided", -1),  # no gain
        ({"plain": 0.80, "all": 0.84}, {}, "not decided", 4),  # no cheap setting
        ({"plain": 0.80, "all": 0.84, "cheap": 0.839}, {"seeds": (1,)}, "not decided", 4),
    ],
)
def test_the_best_cheap_setting_must_keep_the_gain(accuracies, options, word, value):
    verdict = STUDY.claim(gather(accuracies, **options))
    assert (verdict.word, verdict.value) == (word, value and pytest.approx(value))


def test_the_table():
    (table,) = STUDY.tables(gather(SOME))
    assert [row[:4] for row in table.rows] == [
        ("Baseline", "1.00×", "80.00 ± 0.20", "–"),
        ("an eighth ★", "1.20×", "81.00 ± 0.00", "25%"),
        ("half of it", "1.30×", "83.90 ± 0.00", "98%"),
        ("all of it", "1.80×", "84.00 ± 0.00", "100%"),
        ("never run", "–", "not run", "–"),
    ]
    assert (1, 0) in table.bold
    (table,) = STUDY.tables(gather(SOME, seeds=(1,)))
    assert {row[3] for row in table.rows} == {"–"}  # one seed does not show what is chance
