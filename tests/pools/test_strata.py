"""Rankings within strata: nothing is compared across them, and the combination is what its definition says."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from effdeg.pools import rank
from tests.oracles import ranking as oracle
from tests.pools.pools import columns, ragged_pool

BY = ["width", "norm", "depth"]
CORRELATIONS = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}


def stratified_pool(seed=0, sizes=(16, 9, 6)):
    """A pool with holes, ties and text, in strata of different sizes, in mixed order."""
    rows = ragged_pool(seed, models=sum(sizes))
    recipes = [f"recipe {index}" for index, size in enumerate(sizes) for _ in range(size)]
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[index] | {"recipe": recipes[index]} for index in order]


def split(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["recipe"], []).append(row)
    return groups


def random_search(models=24, seed=0):
    generator = np.random.default_rng(seed)
    table = {name: list(generator.random(models)) for name in ("lr", "decay", "m", "n", "gap")}
    return table | {"epochs": [4 + index % 3 for index in range(models)], "recipe": ["plain", "mixup"] * (models // 2)}


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("by", [BY, [*BY, "recipe"]])
def test_point_values_against_loops_over_pairs_within_strata(seed, by):
    rows = stratified_pool(seed)
    ranking = rank(rows, measures=["coarse", "fine"], hyperparameters=by, strata=["recipe"], resamples=100)
    levels = {name: sorted({row[name] for row in rows}) for name in by}
    groups = split(rows)
    for name in ("coarse", "fine"):
        score = ranking.scores[name]
        assert score.kendall.value == pytest.approx(oracle.kendall_within(rows, name, "recipe"))
        weights = [len(group) - 1 for group in groups.values()]
        for statistic in ("pearson", "spearman"):
            inside = [
                CORRELATIONS[statistic]([row[name] for row in group], [row["gap"] for row in group])[0]
                for group in groups.values()
            ]
            assert getattr(score, statistic).value == pytest.approx(np.average(inside, weights=weights))
        # A hyperparameter more, which never differs alone between models of one stratum.
        within = [*BY, "recipe"]
        axes = {axis: oracle.psi_of(rows, name, axis, within) for axis in BY}
        axes = {axis: value for axis, value in axes.items() if not math.isnan(value)}
        assert score.psi.value == pytest.approx(oracle.mean(axes.values()))
        errors = oracle.sign_errors(rows, name, within, levels | {"recipe": []})
        assert score.sign_error.value == pytest.approx(oracle.mean(errors.values()))
        assert score.worst_sign_error.value == pytest.approx(max(errors.values()))
        found = oracle.conditional_information(rows, name, by, stratum="recipe")
        assert score.conditional_information.value == pytest.approx(min(found.values()), abs=1e-12)


def test_each_stratum_is_ranked_as_if_it_were_alone():
    rows = stratified_pool()
    ranking = rank(rows, measures=["coarse", "fine"], hyperparameters=BY, strata=["recipe"], resamples=100)
    for index, (name, group) in enumerate(split(rows).items()):
        alone = rank(group, measures=["coarse", "fine"], hyperparameters=BY, resamples=100)
        inside = ranking.strata[name]
        assert list(inside.scores) == list(alone.scores)
        assert inside.pool.levels == alone.pool.levels
        assert inside.unvaried == alone.unvaried
        for measure, score in alone.scores.items():
            for statistic in (*CORRELATIONS, "psi", "sign_error", "worst_sign_error", "conditional_information"):
                expected, found = (getattr(each, statistic) for each in (score, inside.scores[measure]))
                assert (expected is None) == (found is None)
                if expected is not None:
                    assert found.value == pytest.approx(expected.value)
                    # The strata draw from one generator, one after another.
                    assert index > 0 or found.interval == pytest.approx(expected.interval)


def test_seeds_of_one_configuration_stay_together_within_a_stratum():
    rows = [
        {"recipe": recipe, "lr": lr, "seed": seed, "m": 1.7 * lr + seed, "gap": 3 * lr - seed * lr + len(recipe)}
        for recipe in ("plain", "mixup plus")
        for lr in range(4)
        for seed in range(2)
    ]
    ranking = rank(rows, measures=["m"], hyperparameters=["lr"], strata=["recipe"], resamples=100)
    assert ranking.pool.cluster_count == 8  # the four learning rates of one recipe are not those of the other
    assert [inside.pool.cluster_count for inside in ranking.strata.values()] == [4, 4]
    generator = np.random.default_rng(0)
    drawn = [generator.integers(0, 4, (100, 4)) for _ in range(2)]
    for number in range(100):
        chosen = [
            start + 2 * lr + seed
            for start, each in zip((0, 8), drawn, strict=True)
            for lr in each[number]
            for seed in range(2)
        ]
        table = [rows[index] for index in chosen]
        if len({row["lr"] for row in table[:8]}) > 1 < len({row["lr"] for row in table[8:]}):
            expected = oracle.kendall_within(table, "m", "recipe")
            assert ranking.resampled["kendall"][number, 0] == pytest.approx(expected)
    clustered = rank(rows, measures=["m"], hyperparameters=["lr"], clusters=["lr"], strata=["recipe"], resamples=100)
    assert "resample the 8 combinations of lr within recipe" in clustered.legend()


def test_the_interval_of_equal_strata_is_that_of_a_meta_analysis():
    """With equal r and n, the mean is r and the error of z is 1/√(S (n - 3)) for S strata."""
    generator = np.random.default_rng(0)
    m, gap = generator.standard_normal((2, 20))
    table = {"s": np.repeat([0, 1, 2], 20), "m": np.tile(m, 3) + np.repeat([0, 5, 9], 20), "gap": np.tile(gap, 3)}
    score = rank(table, measures=["m"], strata=["s"], resamples=100).scores["m"]
    r = stats.pearsonr(m, gap).statistic
    half = stats.norm.ppf(0.975) / math.sqrt(3 * 17)
    assert score.pearson.value == pytest.approx(r)
    assert score.pearson.interval == pytest.approx((math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)))
    perfect = rank(table | {"m": table["gap"]}, measures=["m"], strata=["s"], resamples=100).scores["m"]
    assert perfect.pearson.value == pytest.approx(1)
    assert perfect.pearson.interval == pytest.approx((1, 1))


def test_a_measure_that_one_stratum_leaves_undefined():
    rows = stratified_pool()
    rows = [
        row
        | {
            "flat": 1.0 if row["recipe"] == "recipe 2" else row["fine"],
            "steps": len(row["recipe"]) * int(row["recipe"][-1]),
        }
        for row in rows
    ]
    ranking = rank(rows, measures=["fine", "flat", "steps"], strata=["recipe"], resamples=100)
    assert ranking.scores["steps"].undefined == "constant within each stratum: correlation undefined"
    assert ranking.strata["recipe 2"].scores["flat"].undefined == "constant: correlation undefined"
    others = [row for row in rows if row["recipe"] != "recipe 2"]
    expected = rank(others, measures=["flat"], strata=["recipe"], resamples=100).scores["flat"]
    assert ranking.scores["flat"].pearson == expected.pearson
    assert ranking.scores["flat"].spearman.value == pytest.approx(expected.spearman.value)
    assert "note: in recipe recipe 2, flat is constant: correlation undefined." in ranking.warnings()
    assert "nan" not in str(ranking).lower()
    advantage = ranking.compare("fine", "flat")
    assert advantage.value == pytest.approx(ranking.scores["fine"].kendall.value - ranking.scores["flat"].kendall.value)


def test_everything_as_plain_numbers_and_in_words():
    table = random_search() | {"-m": [-value for value in random_search()["gap"]]}
    both = {"both": ["m", "n"]}
    ranking = rank(table, measures=["m", "n", "-m"], strata=["recipe"], resamples=100, variants=both)
    record = json.loads(json.dumps(ranking.to_dict(), allow_nan=False))
    assert (list(record["strata"]), record["strata"]["mixup"]["models"]) == (["plain", "mixup"], 12)
    assert record["strata"]["mixup"]["best"]["both"]["pearson"]["variants"] == ["m", "n"]
    text = str(ranking)
    assert "24 models within recipe (plain, mixup), 3 measures of gap" in text
    assert "recipe mixup: 12 models, 3 measures of gap" in text
    assert "models are compared within recipe only; 95% intervals" in text


def test_several_columns_of_strata():
    table = random_search(models=36)
    ranking = rank(table, measures=["m"], hyperparameters=["lr", "epochs"], strata=["recipe", "epochs"], resamples=100)
    assert list(ranking.strata) == ["plain, 4", "mixup, 5", "plain, 6", "mixup, 4", "plain, 5", "mixup, 6"]
    assert ranking.strata["plain, 4"].pool.describe_stratum() == "plain, 4"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"strata": ["lr"]},
            ValueError,
            r"no stratum of lr can be ranked \(0.63.*: 1 model, .*; …\). Name a column",
        ),
        ({"strata": ["recipe"], "hyperparameters": ["batch"]}, ValueError, "plain: 12 models of 2 configurations, "),
        ({"strata": ["recipe"], "fit": 0.9}, ValueError, "mixup: 4 models, fewer than 5.* below fit=0.9 are left out"),
        ({"strata": ["recipes"]}, ValueError, "no column 'recipes' for the stratum. Did you mean 'recipe'"),
        ({"strata": ["gap"]}, ValueError, "'gap' is given as the target and as a stratum"),
        ({"strata": ["m"]}, ValueError, "'m' is given as a stratum and as a measure"),
        ({"strata": "recipe"}, TypeError, r"strata must be a list of names, such as \['recipe'\], not a single string"),
        ({"strata": ["missing"]}, ValueError, "'missing' is missing for model 3; write a value, such as 'plain'"),
    ],
)
def test_mistakes(settings, error, message):
    table = random_search() | {"missing": ["a", "a", None] + ["a"] * 21, "batch": [1, 1, 2, 2] * 6}
    table["train_accuracy"] = [1.0] * 8 + [0.5] * 16
    with pytest.raises(error, match=message):
        rank(table, measures=["m"], resamples=100, **settings)


def test_a_random_search_has_no_neighbors_and_says_so():
    ranking = rank(random_search(), measures=["m", "n"], hyperparameters=["lr", "decay", "epochs"], resamples=100)
    score = ranking.scores["m"]
    assert score.psi is score.sign_error is score.worst_sign_error is None
    text = str(ranking)
    assert "no two models differ in lr or decay or epochs alone, as in a random search: there are no neighbors" in text
    assert "given lr or decay, no order is left to predict: left out of CMI" in text
    assert ranking.rows()[0] == ["measure", "Pearson", "Spearman", "Kendall", "CMI"]
    assert "sign error mean/worst" not in text
    assert "nan" not in text.lower()
    with pytest.raises(ValueError, match="'m' cannot be compared by granulated Kendall's Psi: no two models are"):
        ranking.compare("m", "n", "psi")
    alone = rank(random_search(), measures=["m", "n"], hyperparameters=["lr", "decay"], resamples=100)
    assert "given lr or decay, no order is left to predict: CMI is not conditional" in str(alone)


def test_columns_that_are_ranked_without_being_named_are_listed():
    note = "note: ranked because they hold numbers, although effdeg does not compute them: {}."
    assert note.format("lr, decay, m, n, epochs") in str(rank(random_search(), resamples=100))
    table = random_search() | {"margin@10_test": random_search()["m"]}
    by = rank(table, hyperparameters=["lr", "decay", "epochs"], resamples=100)
    assert set(by.scores) == {"m", "n", "-margin@10_test"}
    assert note.format("m, n") in str(by)
    assert "does not compute" not in str(rank(table, measures=["m"], resamples=100))


def test_a_figure_for_each_stratum_with_the_same_four_measures(tmp_path):
    generator = np.random.default_rng(1)
    table = random_search(models=40)
    table |= {f"sharpness@{index}": generator.standard_normal(40) for index in range(3)}
    measures = [name for name in table if name not in {"gap", "recipe", "epochs"}]
    ranking = rank(table, measures=measures, strata=["recipe"], variants={"sharpness": "sharpness@*"}, resamples=100)
    figures = ranking.plot_strata(theme="dark")
    assert list(figures) == ["plain", "mixup"]
    others = [name for name in ranking.scores if not name.startswith("sharpness")][:3]
    for name, figure in figures.items():
        figure.savefig(tmp_path / "figure.png")
        inside = ranking.strata[name]
        best = inside.best["sharpness"]["pearson"]
        assert [axes.get_title("left").split("\n")[0] for axes in figure.axes] == [best.variant, *others]
        assert f"r = {inside.scores[best.variant].pearson}" in figure.axes[0].get_title("left")
        assert figure.get_suptitle() == f"recipe {name} (20 models)"
        assert f"not corrected for the choice: {best.variant} (best of 3)" in figure.get_supxlabel().replace("\n", " ")
        assert figure.get_supxlabel().endswith("; 4 of 5 measures")
        rows = [index for index, recipe in enumerate(table["recipe"]) if recipe == name]
        points = figure.axes[0].collections[-1].get_offsets()
        expected = [[table[best.variant][row], table["gap"][row]] for row in rows]
        np.testing.assert_allclose(points, expected)
    named = ranking.plot_strata(["m", "sharpness"])["plain"]
    assert len(named.axes) == 2
    assert "measures" not in named.get_supxlabel()
    with pytest.raises(ValueError, match="strata, which are not mixed in one figure: use plot_strata"):
        ranking.plot()
    with pytest.raises(ValueError, match="measure='sharp' is not known"):
        ranking.plot_strata(["sharp"])
    with pytest.raises(ValueError, match="no strata: rank with"):
        rank(columns(ragged_pool()), resamples=100).plot_strata()
