"""From a table of models to a ranking of measures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from effdeg._checks import check_count
from effdeg.io.optional import require
from effdeg.ranking.correlations import scaled
from effdeg.ranking.evaluation import Evaluation, draw
from effdeg.ranking.pool import Pool
from effdeg.ranking.result import Ranking
from effdeg.ranking.score import STATISTICS, Score, Statistic, percentiles
from effdeg.ranking.tables import Array, as_columns


def rank(
    table: Any,
    *,
    target: str = "gap",
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] = (),
    model: str | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Score how well measures rank a pool of models by their generalization gap.

    Args:
        table: One row per model: a dict of columns, a list of dicts, a data frame, or the path of a ``.csv`` or
            ``.parquet`` file.
        target: The column to predict; larger is worse.
        measures: The columns that may predict it; a leading minus, as in ``"-margin"``, turns one round for which
            larger is better. By default every column of numbers that has no other part.
        hyperparameters: The columns that say how each model was trained: without them there is neither Psi nor sign
            error nor conditional information. Numbers are ordered by size, anything else by appearance.
        model: The column with the models' names; by default ``"model"`` if there is one.
        resamples: How many times the models are drawn anew, with replacement, for the intervals.
        level: The probability of the intervals.
        seed: Determines the resamples, which all measures share.

    Returns:
        The measures by Kendall's tau, best first. A measure that is constant, or not finite for some model, says so.
    """
    require("scipy", extra="ranking", purpose="effdeg.ranking")
    check_count("resamples", resamples, least=1)
    check_count("seed", seed, least=0)
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must lie between 0 and 1, such as 0.95.")
    pool = Pool.of(as_columns(table), target=target, measures=measures, hyperparameters=hyperparameters, model=model)
    undefined = [Score(name, undefined=reason) for name, reason in pool.undefined.items()]
    if not pool.measures:
        return Ranking(pool, {score.measure: score for score in undefined}, {}, level, seed)
    evaluation = Evaluation(pool)
    found = evaluation(np.ones((1, len(pool))))
    resampled = evaluation(draw(len(pool), resamples, seed))
    scores = [_score(pool, evaluation, found, resampled, column, level) for column in range(len(pool.measures))]
    scores.sort(key=lambda score: score.kendall.value if score.kendall else -np.inf, reverse=True)
    varied = evaluation.neighbours.axes if evaluation.neighbours else []
    return Ranking(
        pool=pool,
        scores={score.measure: score for score in [*scores, *undefined]},
        resampled={name: resampled[name] for name in STATISTICS if name in resampled},
        level=level,
        seed=seed,
        unvaried=[name for name in pool.hyperparameters if name not in varied],
    )


def _score(
    pool: Pool, evaluation: Evaluation, found: dict[str, Array], resampled: dict[str, Array], column: int, level: float
) -> Score:
    """Put together what was found of one measure."""
    name = list(pool.measures)[column]

    def statistic(values: Array, samples: Array) -> Statistic:
        return Statistic(float(values[0, column]), percentiles(samples[:, column], level))

    parts: dict[str, Any] = {key: statistic(found[key], resampled[key]) for key in STATISTICS if key in found}
    parts |= _standard(pool.measures[name], pool.gaps, parts, level)
    if evaluation.neighbours:
        by_axis = zip(evaluation.neighbours.axes, found["psi_by_axis"], resampled["psi_by_axis"], strict=True)
        parts["psi_by_axis"] = {axis: statistic(values, samples) for axis, values, samples in by_axis}
    if "sign_errors" in found and evaluation.neighbours:
        worst = int(found["sign_errors"][:, 0, column].argmax())
        parts["worst_environment"] = evaluation.neighbours.environments[worst]
    if evaluation.information:
        least = int(np.nanargmin(found["information_by_set"][:, 0, column]))
        parts["information_given"] = evaluation.information.sets[least]
    return Score(name, **parts)


def _standard(values: Array, gaps: Array, resampled: dict[str, Statistic], level: float) -> dict[str, Any]:
    """Give SciPy's correlations, with Fisher's interval for Pearson's."""
    stats = require("scipy.stats", extra="ranking", purpose="effdeg.ranking")
    linear = stats.pearsonr(scaled(values), scaled(gaps))
    low, high = linear.confidence_interval(level)
    return {
        "pearson": Statistic(float(linear.statistic), (float(low), float(high))),
        "pearson_resampled": resampled["pearson"].interval,
        "spearman": Statistic(float(stats.spearmanr(values, gaps)[0]), resampled["spearman"].interval),
        "kendall": Statistic(float(stats.kendalltau(values, gaps)[0]), resampled["kendall"].interval),
    }
