from dataclasses import replace

import pytest
from toy_results import METHODS, make_run, make_seeds

from effdeg_lab.core.results import collect
from effdeg_lab.show.columns import format_degree, format_duration, list_notes, measure_price, read_curve
from effdeg_lab.show.figures import styles_of
from effdeg_lab.show.methods import judge_difference


def claim(runs, recipe=METHODS):
    return recipe.study.claim(collect(recipe, runs)[0])


def one_seed(accuracies, recipe=METHODS, **changes):
    return [make_run(recipe, name, accuracy, **changes) for name, accuracy in accuracies.items()]


def change_papers(papers):
    return replace(METHODS, methods=tuple(replace(each, paper=papers.get(each.name)) for each in METHODS.methods))


def test_the_order_holds_if_every_pair_does():
    runs = make_seeds({"plain": 0.80, "mixup": 0.82, "ed": 0.84})
    assert claim(runs).word == "not decided"  # a method of the paper's is missing
    # Baseline and SAM are too close in the paper to be distinguished.
    verdict = claim(runs + make_seeds({"sam": 0.80}))
    assert (verdict.word, verdict.quantity) == ("holds", "ED minus Baseline, points")
    assert verdict.value == pytest.approx(4)
    assert 0 < verdict.interval[0] < 4 < verdict.interval[1]
    assert claim(make_seeds({"plain": 0.80, "mixup": 0.81, "sam": 0.80, "ed": 0.82}, noise=0.05)).word == "not decided"


@pytest.mark.parametrize(
    ("apart", "noise", "word"), [(0.003, 0.001, "holds"), (-0.03, 0.001, "does not hold"), (0.003, 0.01, "not decided")]
)
def test_two_methods_may_be_claimed_to_be_equal(apart, noise, word):
    runs = []
    for seed in (0, 1, 2):
        runs += one_seed({"plain": 0.80, "ed": 0.80 + apart + noise * (seed - 1)}, seed=seed)
    (results,) = collect(METHODS, runs)
    verdict = judge_difference(results, results.find("ed"), results.find("plain"), above=-1.0, below=1.0)
    assert (verdict.word, verdict.value) == (word, pytest.approx(100 * apart))
    # Student's t with two degrees of freedom.
    assert verdict.interval[1] - verdict.value == pytest.approx(4.3027 * 100 * noise / 3**0.5, rel=1e-4)


def test_what_the_paper_does_not_have_is_no_claim():
    recipe = change_papers({})
    verdict = claim(one_seed({"plain": 0.80, "ed": 0.79}, recipe), recipe)
    assert (verdict.word, verdict.value) == ("no claim", pytest.approx(-1))
    assert claim(one_seed({"ed": 0.9})).word == "not decided"


@pytest.fixture
def results():
    runs = []
    for seed in (0, 1):
        runs.append(make_run(METHODS, "plain", 0.80 + seed / 100, seed=seed, epochs=10))
        runs.append(make_run(METHODS, "ed", 0.839 + 0.012 * seed, step=1.7, weight=20.0, seed=seed, epochs=10))
    runs += [make_run(METHODS, "mixup", 0.85, epochs=10), make_run(METHODS, "mixup", 0.90, epochs=17)]
    return collect(METHODS, runs)[0]


def test_tables(results):
    accuracies, times = METHODS.study.tables(results)
    assert accuracies.title == "At equal epochs: 10 epochs, seeds 0, 1, Thinking Machine"
    heads = ("", "paper, %", "here, %", "against Baseline", "training, %", "ED", "seeds")
    assert accuracies.columns == heads
    assert accuracies.rows == (
        ("Baseline", "80.00 ± 0.50", "80.50 ± 0.71", "–", "99.00", "0.50 ± 0.02", "2"),
        ("Mixup", "82.00 ± 0.50", "85.00", "+5.00", "99.00", "0.50 ± 0.03", "1"),
        ("SAM", "80.10 ± 0.50", "not run", "–", "–", "–", "–"),
        ("ED", "84.00 ± 0.50", "84.50 ± 0.85", "+4.00 (+2.73 to +5.27)*", "99.00", "0.50 ± 0.02", "2"),
    )
    assert accuracies.bold == {(3, 1), (1, 2)}
    assert times.title == "What it costs, and at equal time: 17 s, that of ED"
    assert times.rows == (
        ("Baseline", "–", "1 s", "1.00×", "10 s", "not run", "–"),
        ("Mixup", "α = 1", "1 s", "1.00×", "10 s", "90.00", "17"),
        ("SAM", "–", "not run", "–", "–", "not run", "–"),
        ("ED", "λ = 20", "1.7 s", "1.70×", "17 s", "84.50 ± 0.85", "10"),
    )
    assert not times.bold  # the cheaper Baseline was not given this time: nothing can be the best in it
    assert "`effdeg-lab sweep methods --no-tune --equal-time ed`" in times.notes[-1]


def test_tables_of_shared_devices_held_out_examples_and_failures():
    runs = one_seed({"plain": 0.8, "ed": 0.8}, held_out=50, shared=True)
    runs.append(replace(make_run(METHODS, "sam", 0.8, held_out=50, finished=False), failure="OSError: full"))
    (results,) = collect(METHODS, runs, {"held_out": 50})
    (figure,) = METHODS.study.figures(results)
    text = "Held-out accuracy by epochs, and effective degree on fewer paths than at the end."
    assert figure.caption == f"{text} Hollow squares are the paper's accuracies after as many epochs."
    by_epoch, degrees = figure.draw("light").axes
    assert by_epoch.get_xlabel() == degrees.get_xlabel() == "epoch"  # their times say nothing
    (table,) = METHODS.study.tables(results)
    assert table.columns[1:3] == ("paper, %", "here, held-out, %")
    mixed, _, shared = make_run(METHODS, "plain", 0.8), *one_seed({"plain": 0.8, "ed": 0.8}, shared=True)
    times = METHODS.study.tables(collect(METHODS, [mixed, shared])[0])[1]
    assert [row[2] for row in times.rows] == ["1 s", "not run", "not run", "–"]
    assert "SAM: 0 of 1 seeds; 1 failed: OSError: full" in table.notes
    measured = replace(results, scale={**results.scale, "measure_paths": 3, "measure_nodes": 5})
    assert "ED: of held-out examples, at the end of training, 3 paths × 5 nodes." in list_notes(measured)


def test_prices_of_other_machines_are_not_compared():
    runs = [make_run(METHODS, "plain", 0.8), make_run(METHODS, "sam", 0.8, step=0.1, device="a faster machine")]
    (results,) = collect(METHODS, runs)
    assert measure_price(results, results.find("sam")) is None
    assert METHODS.study.tables(results)[1].columns[-1] == "device"


def test_curves_are_means_over_seeds(results):
    (figure,) = METHODS.study.figures(results)
    text = "Test accuracy by epochs, by time, and effective degree on fewer paths than at the end."
    assert figure.caption == f"{text} Thin lines are single seeds."
    by_epoch, by_time, degrees = figure.draw("dark").axes
    color = styles_of(METHODS, "dark")["ed"].color
    for axes, height in ((by_epoch, 8.45), (degrees, 0.05)):
        lines = [line for line in axes.lines if line.get_color() == color and line.get_linewidth() > 1]
        assert lines[0].get_xydata()[-1].tolist() == [10, pytest.approx(10 * height)]
    assert {text.get_text() for text in by_epoch.texts} == {"Baseline 80.50", "Mixup 85.00", "ED 84.50"}
    assert by_time.get_xlabel() == "seconds of training on Thinking Machine"


def test_curves_by_time_leave_out_runs_that_shared_their_device():
    runs = [make_run(METHODS, "ed", 0.8, seed=seed, step=1.0 + 9 * seed, shared=seed > 0, epochs=10) for seed in (0, 1)]
    ed = collect(METHODS, runs)[0].find("ed")
    assert read_curve(ed, "seconds", "test_accuracy")[:, -1, 0].tolist() == [10.0]
    assert len(read_curve(ed, "epoch", "test_accuracy")) == 2


def test_numbers_are_written_to_the_digits_that_count():
    assert [format_duration(seconds) for seconds in (1.234, 119, 7200, None)] == ["1.23 s", "1.98 min", "2 h", "–"]
    found = [format_degree(each) for each in ((2.0, 0.08), (0.206, 0.006), (1e-8, 1e-9), (0.0, 0.0), None)]
    assert found == ["2.00 ± 0.08", "0.206 ± 0.006", "1e-08 ± 1e-09", "0.00 ± 0.00", "–"]
