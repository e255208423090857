import pytest
from toy_results import PRICES, make_run

from effdeg_lab.results import collect
from effdeg_lab.studies.prices import measure_prices

STUDY = PRICES.study
STEPS = {"plain": 1, "all": 1.8, "half": 1.3, "cheap": 1.2, "absent": 1.25}


def gather(accuracies, seeds=(0, 1, 2), noise=0.002, **changes):
    """Collect runs whose plain accuracy alone varies with the seed."""
    runs = [
        make_run(
            PRICES, name, accuracy + noise * (seed - 1) * (name == "plain"), step=STEPS[name], seed=seed, **changes
        )
        for name, accuracy in accuracies.items()
        for seed in seeds
    ]
    return collect(PRICES, runs)[0]


def test_prices_and_shares():
    results = gather({"plain": 0.80, "all": 0.84, "half": 0.839, "cheap": 0.81})
    assert measure_prices(results) == {"plain": 1, "cheap": 1.2, "half": 1.3, "all": 1.8}
    assert STUDY.measure_shares(results) == {"cheap": pytest.approx(0.25), "half": pytest.approx(0.975), "all": 1}
    assert STUDY.numbers(results)["share_of_gain"]["cheap"] == pytest.approx(0.25)
    verdict = STUDY.claim(results)
    assert (verdict.word, verdict.quantity) == ("does not hold", "an eighth over 95% of the gain, points:")
    assert verdict.value == pytest.approx(100 * (0.81 - (0.80 + 0.95 * 0.04)))


def test_a_cheap_setting_may_keep_the_gain():
    verdict = STUDY.claim(gather({"plain": 0.80, "all": 0.84, "cheap": 0.81, "absent": 0.8395}))
    assert (verdict.word, verdict.value) == ("holds", pytest.approx(0.15))
    assert STUDY.claim(gather({"plain": 0.80, "all": 0.84, "absent": 0.8381}, noise=0.02)).word == "not decided"


@pytest.mark.parametrize(
    "accuracies",
    [{"plain": 0.80, "cheap": 0.81}, {"plain": 0.80, "cheap": 0.81, "all": 0.79}, {"plain": 0.80, "all": 0.84}],
)
def test_nothing_is_decided_without_a_gain_or_a_cheap_setting(accuracies):
    assert STUDY.claim(gather(accuracies)).word == "not decided"


def test_one_seed_shows_no_shares():
    results = gather({"plain": 0.80, "all": 0.84, "cheap": 0.839}, seeds=(1,))
    assert STUDY.measure_shares(results) == {}
    verdict = STUDY.claim(results)
    assert (verdict.word, verdict.quantity, verdict.value) == (
        "not decided",
        "gain of “all of it”, points:",
        pytest.approx(4),
    )


def test_the_table():
    table = STUDY.tables(gather({"plain": 0.80, "all": 0.84, "half": 0.839, "cheap": 0.81}))[0]
    assert [row[:4] for row in table.rows] == [
        ("Baseline", "1.00×", "80.00 ± 0.20", "–"),
        ("an eighth ★", "1.20×", "81.00 ± 0.00", "25%"),
        ("half of it", "1.30×", "83.90 ± 0.00", "98%"),
        ("all of it", "1.80×", "84.00 ± 0.00", "100%"),
        ("never run", "–", "not run", "–"),
    ]
    assert (1, 0) in table.bold


def test_prices_on_a_cpu_are_rough():
    (table,) = STUDY.tables(gather({"plain": 0.80, "all": 0.84, "cheap": 0.81}, device="CPU (x86, 2 threads)"))
    assert not table.bold
    assert any(note.startswith("Times on a CPU are rough") for note in table.notes)


def test_the_figure():
    results = gather({"plain": 0.80, "all": 0.84, "cheap": 0.81})
    (figure,) = STUDY.figures(results)
    (axes,) = figure.draw("light").axes
    points = [tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "o"]
    assert points == [(1, pytest.approx(80)), (1.8, pytest.approx(84)), (1.2, pytest.approx(81))]
    assert {text.get_text() for text in axes.texts} == {"Baseline", "all of it", "an eighth"}
