"""Every statistic against numbers worked out by hand, loops that follow the definitions, and SciPy."""

import math
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from effdeg.pools import Pool, _statistics, rank
from effdeg.pools._ranked import MIN_RESAMPLED, as_frame
from effdeg.pools._statistics import Evaluation, tally
from tests.oracles import ranking as oracle
from tests.pools.pools import AXES, grid_pool, ragged_pool

# Gaps rise from the first model to the last: 1, 2, 3, 4.
SQUARE = {"lr": [1, 1, 2, 2], "decay": [1, 2, 1, 2], "gap": [1, 2, 3, 4]}


def scored(measure, **settings):
    settings = {"hyperparameters": ["lr", "decay"], "resamples": 100} | settings
    return rank(SQUARE | {"m": measure}, measures=["m"], **settings).scores["m"]


def test_granulated_kendall_and_sign_error_by_hand():
    score = scored([1, 4, 2, 3])
    # Six pairs, of which 2-3 (4 → 2) and 2-4 (4 → 3) disagree.
    assert score.kendall.value == pytest.approx(2 / 6)
    # lr changes from 1 to 3 (agrees) and from 2 to 4 (disagrees); decay from 1 to 2 and from 3 to 4 (both agree).
    assert (score.psi.value, score.sign_error.value) == (0.5, pytest.approx((0.5 + 0) / 2))
    assert score.worst_sign_error.value == 0.5


def test_sign_errors_of_texts_do_not_depend_on_the_order_of_rows():
    rows = ragged_pool(2)
    scores = [
        rank(table, measures=["fine"], hyperparameters=["norm", "depth"], resamples=100).scores["fine"]
        for table in (rows, rows[::-1], rows[5:] + rows[:5])
    ]
    for score in scores[1:]:
        assert score.sign_error.value == pytest.approx(scores[0].sign_error.value)
        assert score.worst_sign_error.value == scores[0].worst_sign_error.value


@pytest.mark.parametrize(
    ("rows", "hyperparameters"),
    [
        (grid_pool(), list(AXES)),
        (grid_pool(axes=2, copies=2), list(AXES)[:2]),
        *((ragged_pool(seed), ["width", "norm", "depth"]) for seed in range(2)),
    ],
)
def test_point_values_against_loops_and_scipy(rows, hyperparameters):
    ranking = rank(rows, hyperparameters=hyperparameters, resamples=100)
    levels = {name: list(ranking.pool.levels[name]) for name in hyperparameters}
    gaps = [row["gap"] for row in rows]
    for name, score in ranking.scores.items():
        values = [row[name] for row in rows]
        assert score.pearson.value == pytest.approx(stats.pearsonr(values, gaps).statistic)
        fisher = tuple(stats.pearsonr(values, gaps).confidence_interval(0.95))
        shared = len({tuple(row[name] for name in hyperparameters) for row in rows}) < len(rows)
        assert shared or score.pearson.interval == pytest.approx(fisher)
        assert score.spearman.value == pytest.approx(stats.spearmanr(values, gaps).statistic)
        assert score.kendall.value == pytest.approx(stats.kendalltau(values, gaps).statistic)
        assert score.psi.value == pytest.approx(oracle.psi(rows, name, hyperparameters))
        errors = oracle.sign_errors(rows, name, hyperparameters, levels)
        assert score.sign_error.value == pytest.approx(oracle.mean(errors.values()))
        assert score.worst_sign_error.value == pytest.approx(max(errors.values()))
        found = oracle.conditional_information(rows, name, hyperparameters)
        assert score.conditional_information.value == pytest.approx(min(found.values()), abs=1e-12)


def correlation(method, values, gaps):
    """SciPy's, or nan where it would warn that there is none."""
    return method(values, gaps)[0] if len(set(values)) > 1 and len(set(gaps)) > 1 else math.nan


@pytest.mark.parametrize(
    ("rows", "hyperparameters", "resamples"),
    [(grid_pool(axes=2), list(AXES)[:2], 60), (ragged_pool(5), ["width", "norm", "depth"], 40)],
)
def test_resamples_against_tables_with_rows_repeated(rows, hyperparameters, resamples, monkeypatch):
    """Counting a model twice is the same as writing its row twice: for all statistics, undefined ones included."""
    names = [name for name in rows[0] if name not in {"gap", *hyperparameters}]
    pool = Pool.from_table(as_frame(rows), target="gap", measures=names, hyperparameters=hyperparameters)
    drawn = np.random.default_rng(1).integers(0, len(rows), (resamples, len(rows)))
    drawn[0], drawn[1, 1:] = 3, 5  # one model only; one model and one other
    counts = tally(drawn)
    counts[2] *= 3  # clusters of several models make some resamples larger than the pool
    monkeypatch.setattr(_statistics, "_CHUNK", 7 * len(rows) ** 2)  # 7 resamples at a time
    found = Evaluation(pool)(counts)
    undefined = 0
    for number, count in enumerate(counts):
        table = [row for row, times in zip(rows, count, strict=True) for _ in range(int(times))]
        gaps = [row["gap"] for row in table]
        for column, name in enumerate(names):
            values = [row[name] for row in table]
            errors = oracle.sign_errors(table, name, hyperparameters, pool.levels).values()
            expected = {
                "pearson": correlation(stats.pearsonr, values, gaps),
                "spearman": correlation(stats.spearmanr, values, gaps),
                "kendall": correlation(stats.kendalltau, values, gaps),
                "psi": oracle.psi(table, name, hyperparameters),
                "sign_error": oracle.mean(errors),
                "worst_sign_error": max(errors, default=math.nan),
                "conditional_information": min(
                    oracle.conditional_information(table, name, hyperparameters).values(), default=math.nan
                ),
            }
            for statistic, value in expected.items():
                got = found[statistic][number, column]
                assert got == pytest.approx(value, abs=1e-9, nan_ok=True), (statistic, name, number)
                undefined += math.isnan(got)
    assert undefined >= 7 * len(names)  # a single model leaves everything undefined


@pytest.mark.parametrize(
    ("clusters", "legend"),
    [
        (None, "intervals resample the 27 configurations, with all their models, 100 times"),
        (["batch", "lr"], "intervals resample the 9 combinations of batch and lr, with all their models, 100 times"),
    ],
)
def test_models_of_one_configuration_are_resampled_together(clusters, legend):
    rows = grid_pool(copies=2)
    by = list(AXES)
    ranking = rank(rows, measures=["noise 1"], hyperparameters=by, clusters=clusters, resamples=100)
    together = {}
    for row in rows:
        together.setdefault(tuple(row[name] for name in clusters or by), []).append(row)
    groups = list(together.values())
    sample = []
    for drawn in np.random.default_rng(0).integers(0, len(groups), (100, len(groups))):
        table = [row for index in drawn for row in groups[index]]
        sample.append(correlation(stats.kendalltau, *([row[name] for row in table] for name in ("noise 1", "gap"))))
    score = ranking.scores["noise 1"]
    assert score.kendall.interval == pytest.approx(tuple(np.quantile(sample, [0.025, 0.975])))
    assert legend in ranking.legend()
    assert ranking.to_dict()["clusters"] == len(groups)


def test_few_configurations_cannot_be_resampled():
    ranking = rank(grid_pool(axes=1, copies=9), hyperparameters=["lr"], resamples=100)
    score = ranking.scores["noise 1"]
    assert score.kendall.interval is score.pearson.interval is score.psi.interval is None
    note = "3 configurations are too few to resample: intervals would be too narrow, and are left out. Name every"
    assert f"note: {note}" in str(ranking)
    assert "95% intervals are left out; " in ranking.legend()
    rows = [row for row in grid_pool(axes=2, copies=2) if row["lr"] < 0.3]
    few = rank(rows, hyperparameters=list(AXES)[:2], resamples=100)
    assert few.scores["noise 1"].kendall.interval is not None
    assert "note: 6 configurations are few to resample: intervals are rough. Name every" in str(few)
    assert "few" not in str(rank(grid_pool(axes=2, copies=2), hyperparameters=list(AXES)[:2], resamples=100))


def test_few_models_have_no_resampled_intervals():
    """Three measures that know nothing are in perfect order with the gap by chance, and so are all their resamples."""
    for models in range(3, 8):
        table = {"m": list(range(models)), "other": [*range(1, models), 0], "gap": list(range(models))}
        ranking = rank(table, resamples=100)
        score, few = ranking.scores["m"], models < 6
        assert (score.kendall.interval is None) == (score.spearman.interval is None) == few
        assert (ranking.compare("m", "other").interval is None) == few
        assert score.pearson.interval is not None
        note = f"note: {models} models are too few to resample: intervals would be too narrow, and are left out, except"
        assert (note in str(ranking)) == few
        assert ("resamples" in ranking.legend()) != few


def test_few_models_of_a_stratum_have_no_intervals_of_their_own():
    table = {"m": list(range(14)), "s": [0] * 5 + [1] * 9, "gap": [*range(1, 14), 0]}
    ranking = rank(table, measures=["m"], strata=["s"], resamples=100)
    assert ranking.scores["m"].kendall.interval is not None
    assert ranking.strata["0"].scores["m"].kendall.interval is None
    assert ranking.strata["1"].scores["m"].kendall.interval is not None
    assert "fewer than 6 configurations to resample in s 0: intervals would be too narrow, and are" in str(ranking)


def test_intervals_that_are_given_hold_their_level():
    """All orders of the fewest models that have intervals: at most one in twenty may look related to the gap."""
    orders = list(permutations(range(MIN_RESAMPLED)))
    table = {f"m{number}": order for number, order in enumerate(orders)} | {"gap": orders[0]}
    scores = rank(table, resamples=200).scores.values()
    for statistic in ("kendall", "spearman"):
        intervals = np.array([getattr(score, statistic).interval for score in scores])
        assert ((intervals > 0).all(1) | (intervals < 0).all(1)).mean() < 0.05


def test_no_information_is_exactly_none():
    # In some resamples such a measure tells nothing; rounding must not pass for something, as 1e-15 of a bound.
    rows = [row | {"both": row["lr"] + 10 * row["batch"]} for row in grid_pool(axes=2)]
    ranking = rank(rows, hyperparameters=list(AXES)[:2], resamples=300)
    sample = ranking.resampled["conditional_information"]
    assert not ((sample > 0) & (sample < 1e-12)).any()
    assert ranking.scores["both"].conditional_information.interval[0] == 0


def test_a_statistic_that_most_resamples_lack_has_no_interval():
    # Only the first two models differ in one hyperparameter alone; few resamples hold both.
    table = {"a": [1, 2, 3, 4, 5, 6], "b": [1, 1, 2, 3, 4, 5], "m": [1, 2, 4, 3, 6, 5], "gap": [1, 2, 3, 4, 5, 6]}
    score = rank(table, measures=["m"], hyperparameters=["a", "b"], resamples=400).scores["m"]
    assert score.psi.value == 1
    assert score.psi.interval is None
    assert str(score.psi) == "1.00 (interval undefined)"
    assert score.kendall.interval is not None


@pytest.mark.parametrize("largest", [1e-290, 1.7e308])
def test_values_near_the_ends_of_what_a_float_can_hold(largest):
    rows = grid_pool(axes=2)
    plain = rank(rows, measures=["noise 1"], resamples=100)
    unit = max(abs(row["noise 1"]) for row in rows)
    for row in rows:
        row["noise 1"] = row["noise 1"] / unit * largest
    scaled = rank(rows, measures=["noise 1"], resamples=100)
    assert scaled.resampled["pearson"] == pytest.approx(plain.resampled["pearson"])
    score, expected = (each.scores["noise 1"] for each in (scaled, plain))
    assert score.pearson.value == pytest.approx(expected.pearson.value)
    assert score.kendall == expected.kendall


def test_an_outlier_does_not_drown_the_resamples_that_lack_it():
    generator = np.random.default_rng(0)
    gaps = generator.standard_normal(12)
    values = np.append(gaps[:-1], 1e12)
    frame = as_frame({"m": values, "gap": gaps})
    pool = Pool.from_table(frame, target="gap")
    counts = np.ones((1, 12))
    counts[0, -1], counts[0, 0] = 0, 2
    assert Evaluation(pool)(counts)["pearson"][0, 0] == pytest.approx(1)
