"""The best of several variants: against loops that follow the definition, and by simulation."""

import numpy as np
import pytest
from scipy import stats

from effdeg.pools import rank

CORRELATIONS = {"pearson": stats.pearsonr, "kendall": stats.kendalltau}


def make_table(seed=0, models=20, variants=3, truth=0.0, shared=0.0):
    """Variants whose correlation with the gap is ``truth``; ``shared`` is the part of their noise in common."""
    generator = np.random.default_rng(seed)
    gap, common, *own = generator.standard_normal((2 + variants, models))
    noises = [np.sqrt(shared) * common + np.sqrt(1 - shared) * each for each in own]
    values = [truth * gap + np.sqrt(1 - truth**2) * noise for noise in noises]
    return {"gap": gap} | {f"m@{index}": each for index, each in enumerate(values)}


@pytest.mark.parametrize("statistic", CORRELATIONS)
def test_against_a_loop_over_resamples(statistic):
    table, correlate = make_table(truth=0.4), CORRELATIONS[statistic]
    found = rank(table, variants={"m": "m@*"}, resamples=200).best["m"][statistic]
    names = ["m@0", "m@1", "m@2"]

    def correlations(rows):
        return np.array([correlate(table[name][rows], table["gap"][rows])[0] for name in names])

    on_pool = correlations(np.arange(20))
    resampled, held_out, chosen = [], [], []
    for rows in np.random.default_rng(0).integers(0, 20, (200, 20)):
        drawn = correlations(rows)
        resampled.append(np.arctanh(drawn))
        outside = np.setdiff1d(np.arange(20), rows)
        held_out.append(correlations(outside))
        chosen.append(drawn.argmax())
    best = on_pool.argmax()
    assert (found.family, found.statistic, found.variant) == ("m", statistic, names[best])
    assert found.variants == names
    assert found.value == pytest.approx(on_pool[best])
    usual = np.mean(held_out, axis=0)
    parts = [on_pool[k] + outside[k] - usual[k] for k, outside in zip(chosen, held_out, strict=True)]
    assert found.corrected == pytest.approx(np.mean(parts))
    assert found.corrected < found.value
    drops = np.arctanh(on_pool) - np.array(resampled)
    low = np.arctanh(on_pool[best]) - max(np.quantile(each.max(axis=1), 0.975) for each in (drops, -drops))
    high = np.quantile(np.array(resampled)[:, best], 0.975)
    assert found.interval == pytest.approx((np.tanh(low), np.tanh(high)))


def test_without_any_correlation_the_corrected_interval_covers_zero():
    """The best of five variants that tell nothing: its own interval misses 0 too often, the corrected one does not."""
    pools = 100
    covered, naive, values, corrected = ({name: [] for name in CORRELATIONS} for _ in range(4))
    for seed in range(pools):
        table = make_table(seed, models=30, variants=5, shared=0.4)
        ranking = rank(table, variants={"m": "m@*"}, resamples=200)
        for name, best in ranking.best["m"].items():
            covered[name].append(best.interval[0] <= 0 <= best.interval[1])
            low, high = getattr(ranking.scores[best.variant], name).interval
            naive[name].append(low <= 0 <= high)
            values[name].append(best.value)
            corrected[name].append(best.corrected)
    for name in CORRELATIONS:
        # Two standard errors of a rate of 95% are 4.4%.
        assert 0.9 <= np.mean(covered[name]) <= 1
        assert np.mean(naive[name]) <= np.mean(covered[name])
        assert np.mean(values[name]) > 0.05
        assert abs(np.mean(corrected[name])) < 5 * np.std(corrected[name]) / np.sqrt(pools)


def test_equal_variants_leave_nothing_to_correct():
    table = make_table(truth=0.5)
    table |= {"m@1": 2 * table["m@0"], "m@2": table["m@0"] - 3}
    ranking = rank(table, variants={"m": "m@*"}, resamples=200)
    best = ranking.best["m"]["kendall"]
    low, high = ranking.scores["m@0"].kendall.interval
    assert best.interval == pytest.approx((min(low, 2 * best.value - high), high), abs=0.05)  # not on the scale of z


def test_names_patterns_and_negated_measures():
    table = make_table(variants=4) | {"n@1": np.arange(20.0), "constant@": np.ones(20)}
    measures = ["m@0", "-m@1", "-m@2", "m@3", "n@1", "constant@"]
    given = {
        "negated": "-m@*",
        "named": ["m@0", "n@1"],
        "mixed": ["m@*", "m@0", "-m@?", "constant@"],
        "odd": ["n@1", "constant@"],
    }
    ranking = rank(table, measures=measures, variants=given, resamples=100)
    variants = {family: best["pearson"].variants for family, best in ranking.best.items()}
    assert variants == {
        "negated": ["-m@1", "-m@2"],
        "named": ["m@0", "n@1"],
        "mixed": ["m@0", "m@3", "-m@1", "-m@2"],
        "odd": ["n@1"],
    }
    negated = ranking.best["negated"]["pearson"]
    highest = max(ranking.scores[name].pearson.value for name in ("-m@1", "-m@2"))
    assert negated.value == pytest.approx(highest)
    assert ranking.best_rows()[1][:3] == ["2 negated", "Pearson", negated.variant]
    assert "the best of several variants, with its 95% interval" in str(ranking)
    renamed = {name.replace("m@", "margin@"): column for name, column in make_table(variants=2).items()}
    by_default = rank(renamed, variants={"margins": "margin@*"}, resamples=100)
    assert by_default.best["margins"]["pearson"].variants == ["-margin@0", "-margin@1"]
    with_brackets = rank(make_table() | {"[x]": np.arange(20.0)}, variants={"x": ["[x]", "m@0"]}, resamples=100)
    assert with_brackets.best["x"]["pearson"].variants == ["[x]", "m@0"]


def test_a_family_without_a_defined_variant_is_left_out():
    table = make_table() | {"flat@1": np.ones(20), "flat@2": np.zeros(20)}
    ranking = rank(table, variants={"flat": "flat@*", "m": "m@*"}, resamples=100)
    assert list(ranking.best) == ["m"]
    rows = {"lr": [1, 1, 1, 2, 2], "m@1": [1, 3, 2, 5, 4], "m@2": [2, 1, 3, 5, 4], "gap": range(5)}
    few = rank(rows, hyperparameters=["lr"], variants={"m": "m@*"}, resamples=100).best["m"]["kendall"]
    assert (few.variant, few.corrected, few.interval) == ("m@1", None, None)


def test_few_configurations_leave_nothing_to_correct_with():
    table = make_table(models=21) | {"lr": np.repeat(range(7), 3), "seed": list(range(3)) * 7}
    ranking = rank(table, measures=["m@0", "m@1"], hyperparameters=["lr"], variants={"m": "m@*"}, resamples=100)
    best = ranking.best["m"]["kendall"]
    assert best.corrected is None
    assert best.interval is not None
    assert ranking.best_rows()[2][-1].startswith("– (")
    note = "note: the best of several variants is corrected for the choice only with 8 configurations or more."
    assert note in ranking.warnings()
    eight = rank(make_table(models=8), variants={"m": "m@*"}, resamples=100)
    assert eight.best["m"]["kendall"].corrected is not None
    assert note not in eight.warnings()
    strata = make_table(models=16) | {"s": [0] * 7 + [1] * 9}
    strata = rank(strata, variants={"m": "m@*"}, strata=["s"], resamples=100)
    assert strata.best["m"]["kendall"].corrected is strata.strata["0"].best["m"]["kendall"].corrected is None
    assert strata.strata["1"].best["m"]["kendall"].corrected is not None
    assert {"note: fewer than 8 configurations to resample in s 0: intervals are rough.", note} <= {*strata.warnings()}


@pytest.mark.parametrize(
    ("variants", "error", "message"),
    [
        ({"m": "n@*"}, ValueError, r"no measure is called 'n@\*', a variant of 'm'. "),
        ({"m": ["m@0", "m@9"]}, ValueError, "no measure is called 'm@9', a variant of 'm'. Did you mean 'm@"),
        ({"m": ["m@0"]}, ValueError, "the family 'm' has a single variant, m@0: nothing to choose from"),
        ({"m@0": "m@*"}, ValueError, "the family of variants 'm@0' is the name of a measure"),
        ({"m": []}, ValueError, "the family 'm' has no variant"),
        (["m@*"], TypeError, "must be a dict, such as"),
    ],
)
def test_mistakes(variants, error, message):
    with pytest.raises(error, match=message):
        rank(make_table(), variants=variants, resamples=100)
