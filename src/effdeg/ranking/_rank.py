"""From a table of models to a ranking of measures: all statistics, on the models and on resamples of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from effdeg._utils.checks import check_count
from effdeg._utils.imports import require
from effdeg.ranking._pool import MIN_CLUSTERS, Pool
from effdeg.ranking._result import STATISTICS, Ranking, Score, Statistic, percentiles
from effdeg.ranking._statistics import Evaluation, scale_down, tally
from effdeg.ranking._tables import Array, as_columns

# With fewer, the ends of a 95% interval are too uncertain.
_MIN_RESAMPLES = 100


def rank(
    table: Any,
    *,
    target: str = "gap",
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] = (),
    clusters: Sequence[str] | None = None,
    model: str | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Score how well measures rank a pool of models by their generalization gap.

    :class:`Score` defines the statistics. Their intervals come from resamples of the models, with replacement. Seeds of
    one configuration are not independent models: where several share all their hyperparameters, configurations are
    drawn, each with all its models (a cluster bootstrap). Configurations that differ only in a hyperparameter that
    hardly matters are nearly the same model, and intervals are too narrow: name the other hyperparameters as
    ``clusters``. Without hyperparameters every model counts as independent.

    Example:
        >>> from effdeg.ranking import rank
        >>> table = {
        ...     "lr": [0.1, 0.1, 0.3, 0.3],
        ...     "degree": [1.2, 1.9, 1.4, 2.0],
        ...     "margin": [3.0, 1.0, 4.0, 2.0],
        ...     "gap": [0.05, 0.11, 0.08, 0.12],
        ... }
        >>> ranking = rank(table, measures=["-margin", "degree"], hyperparameters=["lr"], resamples=100)
        >>> [(name, round(score.kendall.value, 2)) for name, score in ranking.scores.items()]
        [('degree', 1.0), ('-margin', 0.33)]

    Args:
        table: One row per model: a dict of columns, a list of dicts, a data frame, or the path of a ``.csv`` or
            ``.parquet`` file (see :func:`read_table`).
        target: The column to predict; larger is worse.
        measures: The columns that may predict it; a leading minus, as in ``"-margin"``, negates one for which larger is
            better. By default every column of numbers that has no other role.
        hyperparameters: The columns that describe how each model was trained, needed for Ψ, sign errors and
            conditional information. Numbers are ordered by size; anything else has no order, and all pairs
            of its values count as neighbors.
        clusters: The hyperparameters whose combinations are drawn, each with all its models; by default all.
        model: The column with the models' names; by default ``"model"`` if there is one.
        resamples: The number of resamples for the intervals; at least 100.
        level: The probability of the intervals.
        seed: The seed of the resamples, which all measures share.

    Returns:
        The measures by Kendall's τ, best first. Those that are constant, or not finite for some model, are undefined.

    Raises:
        ValueError: If a column does not exist, is given twice or in two roles, or holds text where numbers are needed;
            if the target is missing or the same for all models; if there are fewer than 3 models; if a setting is out
            of range; or if the file cannot be read.
        TypeError: If the table is of an unknown kind, or a single string is given for a list of columns.
        FileNotFoundError: If the table is a path and there is no such file.
        ImportError: If SciPy is not installed, or pyarrow for a ``.parquet`` file.
    """
    require("scipy", extra="ranking", purpose="effdeg.ranking")
    check_count("resamples", resamples, least=_MIN_RESAMPLES)
    check_count("seed", seed, least=0)
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} must lie between 0 and 1, such as 0.95.")
    pool = Pool.from_columns(as_columns(table), target, measures, hyperparameters, clusters, model)
    undefined = [Score(name, undefined=reason) for name, reason in pool.undefined.items()]
    if not pool.measures:
        return Ranking(pool, {score.measure: score for score in undefined}, {}, level, seed)
    evaluation = Evaluation(pool)
    found = evaluation(np.ones((1, len(pool))))
    drawn = np.random.default_rng(seed).integers(0, pool.cluster_count, (resamples, pool.cluster_count))
    resampled = evaluation(tally(drawn)[:, pool.clusters])
    if pool.cluster_count < MIN_CLUSTERS:
        resampled = {name: np.full_like(values, np.nan) for name, values in resampled.items()}
    scores = [_score(pool, evaluation, found, resampled, column, level) for column in range(len(pool.measures))]
    scores.sort(key=lambda score: score.kendall.value if score.kendall else -np.inf, reverse=True)
    varied = evaluation.neighbors.axes if evaluation.neighbors else []
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
    """Collect the statistics of one measure: SciPy's correlations where it has them, intervals from the resamples."""
    name, measured = list(pool.measures.items())[column]

    def statistic(values: Array, samples: Array) -> Statistic:
        return Statistic(float(values[0, column]), percentiles(samples[:, column], level))

    parts: dict[str, Any] = {key: statistic(found[key], resampled[key]) for key in STATISTICS if key in found}
    stats = require("scipy.stats", extra="ranking", purpose="effdeg.ranking")
    linear = stats.pearsonr(scale_down(measured), scale_down(pool.gaps))
    parts["pearson_resampled"] = drawn = parts["pearson"].interval
    # Fisher's interval holds for independent models.
    low, high = linear.confidence_interval(level)
    parts["pearson"] = Statistic(float(linear.statistic), drawn if pool.clustered else (float(low), float(high)))
    for key, correlate in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
        parts[key] = Statistic(float(correlate(measured, pool.gaps)[0]), parts[key].interval)
    if evaluation.neighbors:
        by_axis = zip(evaluation.neighbors.axes, found["psi_by_axis"], resampled["psi_by_axis"], strict=True)
        parts["psi_by_axis"] = {axis: statistic(values, samples) for axis, values, samples in by_axis}
    if "sign_errors" in found and evaluation.neighbors:
        worst = int(found["sign_errors"][:, 0, column].argmax())
        parts["worst_environment"] = evaluation.neighbors.environments[worst]
    if evaluation.information:
        least = int(np.nanargmin(found["information_by_set"][:, 0, column]))
        parts["information_given"] = evaluation.information.sets[least]
    return Score(name, **parts)
