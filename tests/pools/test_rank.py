import subprocess
import sys

import numpy as np
import pytest

from effdeg.pools import Ranking, rank
from tests.pools.pools import AXES, columns, grid_pool

BY = list(AXES)
ROWS = grid_pool()


@pytest.fixture(scope="module")
def ranking() -> Ranking:
    table = columns(ROWS)
    values = np.array(table["noise 1"])
    table["curved"] = list(np.exp(30 * values))
    table["affine"] = list(3 * values - 1)
    table["perfect"] = list(3 * np.array(table["gap"]) - 1)
    table["constant"] = [1.0] * len(values)
    measures = ["noise 0.3", "noise 1", "noise 3", "curved", "affine", "perfect", "-noise 1", "-perfect", "constant"]
    return rank(table, measures=measures, hyperparameters=BY, resamples=300)


def test_best_first_and_undefined_last(ranking):
    defined = [score.kendall.value for score in ranking.scores.values() if score.kendall]
    assert defined == sorted(defined, reverse=True)
    assert next(iter(ranking.scores)) == "perfect"
    assert list(ranking.scores)[-1] == "constant"


def test_a_perfect_measure(ranking):
    score = ranking.scores["perfect"]
    for statistic in ("pearson", "spearman", "kendall", "psi", "conditional_information"):
        assert getattr(score, statistic).value == pytest.approx(1)
        assert getattr(score, statistic).interval == pytest.approx((1, 1))
    assert score.sign_error.value == score.worst_sign_error.value == 0


def test_rounding_is_no_advantage(ranking):
    samples = ranking.resampled["pearson"][:, [[*ranking.pool.measures].index(name) for name in ("affine", "noise 1")]]
    assert (samples[:, 0] > samples[:, 1]).any()
    equal = ranking.compare("affine", "noise 1", "pearson")
    assert (equal.p_value, equal.interval) == (1, (0, 0))


def test_a_leading_minus_turns_a_measure_round(ranking):
    one, turned = ranking.scores["noise 1"], ranking.scores["-noise 1"]
    for statistic in ("pearson", "spearman", "kendall", "psi"):
        low, high = getattr(one, statistic).interval
        assert getattr(turned, statistic).value == pytest.approx(-getattr(one, statistic).value)
        assert getattr(turned, statistic).interval == pytest.approx((-high, -low))
    assert turned.sign_error.value == pytest.approx(1 - one.sign_error.value)
    assert turned.conditional_information.value == pytest.approx(one.conditional_information.value)
    literal = columns(ROWS) | {"-noise 1": columns(ROWS)["noise 0.3"]}
    score = rank(literal, measures=["-noise 1"], resamples=100).scores["-noise 1"]
    assert score.kendall.value == ranking.scores["noise 0.3"].kendall.value  # a column of that very name comes first


def test_a_better_measure_wins_and_a_wrong_one_loses(ranking):
    won = ranking.compare("noise 0.3", "noise 3")
    assert won.significant
    assert won.value == pytest.approx(won.values[0] - won.values[1])
    assert won.p_value < 0.01
    assert str(won).startswith("noise 0.3 ranks better than noise 3 by Kendall's tau")
    lost = ranking.compare("-perfect", "noise 3")  # signed: the strongest correlation of all, the wrong way round
    assert not lost.significant
    assert lost.p_value == 1
    assert "ranks worse than" in str(lost)


def test_p_values_count_resamples_without_an_advantage(ranking):
    names = list(ranking.pool.measures)
    one, two = (ranking.resampled["kendall"][:, names.index(name)] for name in ("noise 1", "noise 3"))
    expected = (np.sum(one <= two) + 1) / 301
    assert ranking.compare("noise 1", "noise 3").p_value == pytest.approx(expected)
    assert ranking.compare("noise 3", "noise 1").p_value == pytest.approx((np.sum(two <= one) + 1) / 301)


def test_intervals_cover_the_truth_when_configurations_have_seeds():
    """Between unrelated variables, tau is 0: with models drawn one by one, 71% of intervals would cover it."""
    covered = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        configuration = np.repeat(np.arange(9), 3)
        gap, m = (generator.standard_normal(9)[configuration] + 0.3 * generator.standard_normal(27) for _ in range(2))
        table = {"gap": gap, "m": m, "configuration": configuration}
        low, high = rank(table, hyperparameters=["configuration"], resamples=200).scores["m"].kendall.interval
        covered += low <= 0 <= high
    assert covered >= 85


def test_measures_that_fall_as_the_gap_rises_are_pointed_out(ranking):
    (note,) = (note for note in ranking.warnings() if "rises" in note)
    assert note.startswith("note: -noise 1, -perfect fall as the gap rises: if larger is meant to be better, ")
    assert note.endswith("better, rank them as noise 1, perfect.")
    table = columns(ROWS) | {"margin": [-value for value in columns(ROWS)["noise 0.3"]]}
    assert rank(table, measures=["noise 1", "margin"], resamples=100).warnings() == [
        "note: margin falls as the gap rises: if larger is meant to be better, rank it as -margin."
    ]
    table["loss"] = table.pop("gap")
    table["-margin"] = table.pop("margin")  # a column of that very name
    (note,) = rank(table, target="loss", measures=["-margin"], resamples=100).warnings()
    assert "falls as loss rises" in note
    assert note.endswith("rank it as --margin.")
    assert rank(table, target="loss", measures=["--margin"], resamples=100).warnings() == []


def test_what_cannot_be_ranked_says_why():
    table = columns(ROWS) | {"model": [f"m{index}" for index in range(len(ROWS))], "constant": [2] * len(ROWS)}
    table["broken"] = [float(index) for index in range(len(ROWS))]
    table["broken"][3], table["broken"][7] = float("inf"), None
    table["comment"] = ["fine"] * len(ROWS)
    ranking = rank(table, hyperparameters=BY, resamples=100)
    assert ranking.scores["constant"].undefined == "constant: correlation undefined"
    assert ranking.scores["broken"].undefined.startswith("not finite for models m3 and m7")
    assert ranking.scores["broken"].kendall is None
    text = str(ranking)
    assert "note: broken is not finite for models m3 and m7: correlation undefined." in text
    assert "not ranked, since it holds text: comment" in text
    assert "nan" not in text.lower()
    assert "model" not in ranking.scores
    with pytest.raises(ValueError, match=r"'constant' cannot be compared by Kendall's tau: constant"):
        ranking.compare("constant", "noise 1")


def test_all_measures_undefined():
    ranking = rank({"m": [1, 1, 1], "n": [None] * 3, "gap": [1, 2, 3]})
    reasons = [score.undefined.split(":")[0] for score in ranking.scores.values()]
    assert reasons == ["constant", "not finite for all 3 models"]
    assert "n is not finite" in str(ranking)
    assert "no measure can be ranked." in str(ranking)
    assert "resamples" not in str(ranking)


def test_without_hyperparameters_only_correlations():
    ranking = rank(ROWS, measures=["noise 1", "noise 3"], resamples=100)
    score = ranking.scores["noise 1"]
    assert score.psi is score.sign_error is score.worst_sign_error is score.conditional_information is None
    assert "Ψ" not in str(ranking)
    with pytest.raises(ValueError, match="no hyperparameters were named"):
        ranking.compare("noise 1", "noise 3", "psi")


def test_hyperparameters_that_never_vary_alone():
    table = {"a": [1, 2, 3, 4], "b": [1, 2, 3, 4], "c": [1, 1, 1, 1], "m": [1, 3, 2, 4], "gap": [1, 2, 3, 4]}
    ranking = rank(table, measures=["m"], hyperparameters=["a", "b", "c"], resamples=100)
    score = ranking.scores["m"]
    assert score.psi is score.sign_error is None
    # Given a, the gaps have no choice; what is left is the plain mutual information: 5 of 6 pairs agree.
    assert score.conditional_information.value == pytest.approx(1 + np.log2(5 / 6) * 5 / 6 + np.log2(1 / 6) / 6)
    assert "no two models differ in a or b or c alone" in str(ranking)
    partly = rank(table | {"b": [1, 1, 2, 2]}, measures=["m"], hyperparameters=["a", "b"], resamples=100)
    assert (partly.unvaried, partly.scores["m"].psi is None) == (["b"], False)


def test_the_extra_is_asked_for_only_when_needed(monkeypatch):
    extra = ["scipy", "matplotlib", "pandas"]
    code = "import effdeg.pools, sys, torch; effdeg.pools.pick([torch.sin, torch.cos, torch.tanh], torch.rand(20, 3));"
    code += f"print([name for name in {extra} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ImportError, match=r"needs scipy: pip install 'effdeg\[pools\]'"):
        rank(ROWS)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas: pip install 'effdeg\[pools\]'"):
        rank(ROWS)


def test_the_accuracies_that_a_gap_is_made_of_are_not_ranked_unless_named():
    columns = {"gap": [0.1, 0.2, 0.3], "train_accuracy": [0.9, 0.95, 1.0], "test_accuracy": [0.8, 0.75, 0.7]}
    table = {**columns, "degree": [1.0, 2.0, 3.0]}
    assert [*rank(table, resamples=100).scores] == ["degree"]
    assert [*rank(table, measures=["train_accuracy"], resamples=100).scores] == ["train_accuracy"]
    assert {*rank(table, target="test_accuracy", resamples=100).scores} == {"degree", "-train_accuracy"}


def test_models_that_do_not_fit_are_counted_and_can_be_left_out():
    table = {"gap": [5.0, 1.0, 2.0, 4.0, 3.0, 0.0], "degree": [0.0, 1.0, 2.0, 4.0, 3.0, 9.0]}
    table["train_accuracy"] = [0.5, 1.0, 1.0, 0.99, 1.0, None]
    every = rank(table, measures=["degree"], resamples=100)
    (note,) = every.warnings()
    assert note.startswith("note: 2 of 6 models do not fit (train_accuracy below 0.99 or missing)")
    assert note.endswith("leave them out with fit=0.99.")
    assert every.notes() == []
    percent = table | {"train_accuracy": [50.0, 100.0, 100.0, 99.0, 100.0, None]}
    assert "below 99 or missing" in rank(percent, measures=["degree"], resamples=100).warnings()[0]
    fitting = rank(table, measures=["degree"], fit=0.99, resamples=100)
    assert (fitting.pool.names, fitting.scores["degree"].kendall.value) == (["2", "3", "4", "5"], 1)
    assert "note: left out: 2 models with a train_accuracy below 0.99, or without one." in str(fitting)
    assert "do not fit" not in str(fitting)
    for accuracies in ([1.0] * 6, [0.5] * 6):
        assert "do not fit" not in str(rank(table | {"train_accuracy": accuracies}, resamples=100))


def test_a_gap_that_is_not_the_difference_of_the_accuracies_is_pointed_out():
    test = [0.9, 0.8, 0.7, 0.75]
    table = {"train_accuracy": [1.0] * 4, "test_accuracy": test, "loss": [0.1, 0.2, 0.4, 0.3]}

    def note(gaps):
        return [each for each in rank(table | {"gap": gaps}, resamples=100).warnings() if "gap is not" in each]

    for same in ([0.1, 0.2, 0.3, 0.25], [10.2, 19.7, 30, 25]):
        assert note(same) == []
    (negative,) = note([-0.1, -0.2, -0.3, -0.25])
    assert negative == "note: gap is not train_accuracy − test_accuracy but its negative: rank by target='-gap'."
    (other,) = note([0.3, 0.2, 0.1, 0.25])
    assert other == "note: gap is not train_accuracy − test_accuracy; it is ranked as it is."


def test_settings_that_differ_by_rounding_are_one():
    noise = np.random.default_rng(0).standard_normal((2, 12))
    table = {"gap": noise[0], "m": noise[1], "lr": [0.3, 3 * 0.1, 0.1] * 4}
    strata = rank(table, measures=["m"], strata=["lr"], resamples=100).strata
    assert {name: len(inside.pool) for name, inside in strata.items()} == {"0.3": 8}
    assert rank(table, measures=["m"], hyperparameters=["lr"], resamples=100).pool.levels["lr"] == [0.1, 0.3]
    large = table | {"lr": [1e13 + row for row in range(12)]}
    assert rank(large, measures=["m"], hyperparameters=["lr"], resamples=100).pool.levels["lr"] == large["lr"]


def test_a_leading_minus_turns_the_target_round():
    table = {"test_accuracy": [0.9, 0.8, 0.7, 0.75], "loss": [0.1, 0.2, 0.4, 0.3], "gap": [0, 1, 2, 3]}
    by_accuracy = rank(table, target="test_accuracy", resamples=100)
    assert by_accuracy.scores["loss"].kendall.value == pytest.approx(-1)
    assert "note: larger values of test_accuracy count as worse" in str(by_accuracy)
    ranking = rank(table, target="-test_accuracy", resamples=100)
    assert {name: score.kendall.value for name, score in ranking.scores.items()} == pytest.approx({"loss": 1})
    assert ranking.title() == "4 models, 1 measure of -test_accuracy, best first"
    strata = {"recipe": ["a"] * 6 + ["b"] * 6}
    longer = {name: column * 3 for name, column in table.items()} | strata | {"loss": list(range(12))}
    inside, turned = (
        rank(longer, target=target, measures=["loss"], strata=["recipe"], resamples=100).strata["a"].scores["loss"]
        for target in ("test_accuracy", "-test_accuracy")
    )
    assert inside.kendall.value == pytest.approx(-turned.kendall.value)


def test_by_default_measures_for_which_larger_is_better_are_reversed():
    reversed_ = ["confidence", "nuclear_norm_test", "margin@10", "spectral_margin@50", "mixup_margin"]
    plain = ["effective_degree_normalized@3", "effective_degree_random_pixels", "entropy", "sharpness@0.05", "margins"]
    columns = {name: [1.0, 3.0, 2.0] for name in (*reversed_, *plain, "gap")}
    ranking = rank(columns, resamples=100)
    assert {*ranking.scores} == {*plain, *(f"-{name}" for name in reversed_)}
    assert ranking.scores["-confidence"].kendall.value == -1
    assert ranking.pool.guessed == ["margins"]
    assert [*rank(columns, measures=["confidence"], resamples=100).scores] == ["confidence"]


def test_a_frame_has_a_row_per_measure_and_a_notebook_shows_the_tables():
    ranked = rank(grid_pool(), hyperparameters=list(AXES), resamples=100)
    frame = ranked.to_frame().set_index("measure")
    assert list(frame.index) == list(ranked.scores)
    for name, score in ranked.scores.items():
        assert frame.loc[name, "kendall"] == score.kendall.value
        assert (frame.loc[name, "psi_low"], frame.loc[name, "psi_high"]) == score.psi.interval
    few = rank({"m": [1, 3, 2], "gap": [1, 2, 3]}, resamples=100)
    assert few.to_frame()[["kendall_low", "psi"]].isna().all(axis=None)
    assert ranked._repr_html_().count("<tr>") == 1 + len(ranked.scores)


def test_a_share_is_not_compared_with_percentages():
    table = {"a": [1.0, 2.0, 3.0, 4.0], "gap": [0.1, 0.3, 0.2, 0.4], "train_accuracy": [50.0, 99.5, 99.9, 100.0]}
    with pytest.raises(ValueError, match=r"fit=0.99 is a share, but 'train_accuracy' goes above 1.*give fit=99\."):
        rank(table, measures=["a"], fit=0.99)
    assert rank(table, measures=["a"], fit=99).scores["a"].kendall.value == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([0.1, np.float32(0.1), 0.3], [0.1, 0.3]),
        ([8, "8", "16"], [8, 16]),
        ([0.5, "5e-1", "none"], ["0.5", "none"]),
        (["8", "16", "none"], ["16", "8", "none"]),
        ([8, "1_0", "inf"], ["1_0", "8", "inf"]),
    ],
    ids=str,
)
def test_one_number_of_several_types_is_one_setting(levels, expected):
    noise = np.random.default_rng(0).standard_normal((2, 12))
    rows = [{"gap": gap, "m": m, "h": levels[row % 3]} for row, (gap, m) in enumerate(noise.T)]
    found = rank(rows, measures=["m"], hyperparameters=["h"], resamples=100).pool.levels["h"]
    assert list(map(type(expected[0]), found)) == expected


@pytest.mark.parametrize(("target", "noted"), [("test_acc", True), ("acc@1", True), ("f1", True), ("facc_loss", False)])
def test_a_target_for_which_larger_is_better_is_noted(target, noted):
    table = {target: [0.9, 0.8, 0.7, 0.75], "degree": [0.1, 0.2, 0.4, 0.3]}
    assert ("count as worse" in str(rank(table, target=target, resamples=100))) == noted


def test_rows_that_summarize_others_are_pointed_out():
    table = {"model": ["a", "b", "c", "Mean"], "degree": [1, 2, 3, 2], "gap": [1, 3, 2, 2]}
    assert "note: Mean counts as any other model." in rank(table, resamples=100).warnings()
