"""From a table of models to a ranking of measures: all statistics, on the models and on resamples of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from effdeg._utils.checks import check_count, check_level
from effdeg._utils.imports import require
from effdeg.pools._ranked import FEW_CLUSTERS, MIN_RESAMPLED, Indices, Pool
from effdeg.pools._reading import Array, as_frame
from effdeg.pools._result import Ranking, Strata
from effdeg.pools._scores import STATISTICS, Score, Statistic, choose_best, find_variants, percentiles
from effdeg.pools._statistics import Evaluation, scale_down, tally

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
    strata: Sequence[str] | None = None,
    variants: Mapping[str, str | Sequence[str]] | None = None,
    fit: float | None = None,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Score how well measures rank a pool of models by their generalization gap.

    :class:`Score` defines the statistics. Their intervals come from resamples of the models, with replacement. Seeds of
    one configuration are not independent models: where several share all their hyperparameters, configurations are
    drawn, each with all its models (a cluster bootstrap). Configurations that differ only in a hyperparameter that
    hardly matters are nearly the same model, which makes intervals too narrow: name the other hyperparameters as
    ``clusters``. Without hyperparameters every model counts as independent. Fewer than 6 models or configurations are
    not resampled, since intervals would be too narrow; only Pearson's r then has one, by Fisher's z. Rows of one name
    (if there are names) that agree in all columns of numbers and in all columns named here are one model and count
    once; so do rows with the same ``sha256``, as :func:`effdeg.measure_pool` writes it, and the same measures.

    **Strata.** A recipe such as mixup may shift the gaps and the measures of all its models, and a correlation over
    models of several recipes then reflects that shift. With ``strata`` each stratum is ranked by itself, in
    ``Ranking.strata``, and the scores of the ranking combine the strata without comparing models across them.
    Kendall's τ, Ψ, sign errors and conditional information count pairs within strata only. Pearson's r and Spearman's
    ρ are the means of the strata's own, weighted by n - 1 for n models (Hunter and Schmidt, 2004, "Methods of
    meta-analysis"): r̄ = Σ (n_s - 1) r_s / Σ (n_s - 1), which is the correlation of values standardized within strata.
    The partial correlation given the stratum would weight strata by their variance instead, so the one on the largest
    scale would decide; and the mean of Fisher's z = atanh r is infinite as soon as one r_s is 1, as in
    resamples of small strata. Models are resampled within strata. The interval of r̄ is Fisher's, with the standard
    error of z by the delta method: √(Σ w_s² (1 - r_s²)² / (n_s - 3)) / (1 - r̄²), for weights w_s that sum to 1.

    **Variants.** The best of several variants of a measure, such as sharpness at several radii, correlates better than
    it should: the maximum of many estimates is too high. ``variants`` names such families, and ``Ranking.best``
    has the best of each, corrected for the choice; see :class:`BestVariant`.

    Example:
        >>> from effdeg.pools import rank
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
        target: The column to predict; larger is worse. A leading minus, as in ``"-test_accuracy"``, negates it.
        measures: The columns that may predict it; a leading minus, as in ``"-margin"``, negates one for which larger is
            better. By default every column of numbers that has no other role, except the accuracies behind the gap
            (``train_accuracy`` and ``test_accuracy``), and the gap if one of them is the target; effdeg's own columns
            for which larger is better, such as ``confidence``, then have a leading minus.
        hyperparameters: The columns that describe how each model was trained, needed for Ψ, sign errors and
            conditional information. Numbers are ordered by size; anything else has no order, and all pairs
            of its values count as neighbors.
        clusters: The hyperparameters whose combinations are drawn, each with all its models; by default all.
        model: The column with the models' names; by default ``"model"`` if there is one.
        strata: The columns whose combinations are strata, such as ``["recipe"]``; they may be hyperparameters too.
            Strata of fewer than 5 models or 3 configurations, or in which the target is constant, are left out.
        variants: The variants of a measure by the name of the family: names of measures, or patterns such as
            ``"sharpness@*"``.
        fit: The least training accuracy, such as 0.99, in the column ``train_accuracy``; models below it, or without
            one, are left out. By default all are ranked, and a note says how many are below 0.99.
        resamples: The number of resamples for the intervals; at least 100.
        level: The confidence level of the intervals.
        seed: The seed of the resamples, which all measures share.

    Returns:
        The measures by Kendall's τ, best first. Those that are constant, or not finite for some model, are undefined;
        with strata, in that stratum and in the scores that combine all.

    Raises:
        ValueError: If a column does not exist, is given twice or in two roles, or holds text where numbers are needed;
            if the target is missing or the same for all models; if there are fewer than 3 models; if no stratum can be
            ranked; if a family has fewer than two variants; if ``fit`` is given without a column ``train_accuracy``; if
            a setting is out of range; or if the file cannot be read.
        TypeError: If the table is of an unknown kind, or a single string is given for a list of columns.
        FileNotFoundError: If the table is a path and there is no such file.
        ImportError: If SciPy or pandas is not installed, or pyarrow for a ``.parquet`` file.
    """
    require("scipy", extra="pools", purpose="a ranking")
    check_count("resamples", resamples, least=_MIN_RESAMPLES)
    check_count("seed", seed, least=0)
    check_level(level)
    pool = Pool.from_table(as_frame(table), target, measures, hyperparameters, clusters, model, strata or (), fit)
    families = find_variants(variants or {}, [*pool.measures, *pool.undefined])
    counts = _draw(pool, resamples, np.random.default_rng(seed))
    inside = {
        name: _rank_pool(pool.select(name), counts[:, rows], level, seed, families)
        for name, rows in pool.strata.items()
    }
    return replace(_rank_pool(pool, counts, level, seed, families), strata=Strata(inside, pool.left_out_strata))


def _draw(pool: Pool, resamples: int, generator: np.random.Generator) -> Array:
    """Draw how often each resample counts each model, resamples × models: whole clusters, within strata."""

    def draw(clusters: Indices) -> Array:
        count = int(clusters.max()) + 1
        drawn: Array = tally(generator.integers(0, count, (resamples, count)))[:, clusters]
        return drawn

    if not pool.strata:
        return draw(pool.clusters)
    counts = np.zeros((resamples, len(pool)))
    for rows in pool.strata.values():
        counts[:, rows] = draw(np.unique(pool.clusters[rows], return_inverse=True)[1].reshape(-1))
    return counts


def _rank_pool(pool: Pool, counts: Array, level: float, seed: int, families: Mapping[str, Sequence[str]]) -> Ranking:
    undefined = {name: Score(name, undefined=reason) for name, reason in pool.undefined.items()}
    if not pool.measures:
        return Ranking(pool, undefined, {}, level, seed)
    evaluation = Evaluation(pool)
    observed = evaluation(np.ones((1, len(pool))))
    resampled = evaluation(counts)
    if pool.cluster_count < MIN_RESAMPLED:
        resampled = {name: np.full_like(values, np.nan) for name, values in resampled.items()}
    scores = [_score(evaluation, observed, resampled, column, level) for column in range(len(pool.measures))]
    scores.sort(key=lambda score: score.kendall.value if score.kendall else -np.inf, reverse=True)
    varied = evaluation.neighbors.axes if evaluation.neighbors else []
    given = {name for names in evaluation.information.sets for name in names} if evaluation.information else set()
    enough = families and pool.least_clusters >= FEW_CLUSTERS
    outside = evaluation.correlations((counts == 0).astype(np.float64)) if enough else None
    return Ranking(
        pool=pool,
        scores={score.measure: score for score in scores} | undefined,
        resampled={name: resampled[name] for name in STATISTICS if name in resampled},
        level=level,
        seed=seed,
        unvaried=[name for name in pool.hyperparameters if name not in varied],
        unconditioned=[name for name in pool.hyperparameters if name not in given],
        best=choose_best(families, list(pool.measures), observed, resampled, outside, level),
    )


def _correlate(measured: Array, pool: Pool, level: float) -> Statistic:
    """Return Pearson's r with Fisher's interval; with strata the mean of their own, as :func:`rank` defines it."""
    stats = require("scipy.stats", extra="pools", purpose="a ranking")
    if not pool.strata:
        linear = stats.pearsonr(scale_down(measured), scale_down(pool.gaps))
        low, high = linear.confidence_interval(level)
        return Statistic(float(linear.statistic), (float(low), float(high)))
    varied = [rows for rows in pool.strata.values() if np.any(measured[rows] != measured[rows[0]])]
    pairs = [(scale_down(measured[rows]), scale_down(pool.gaps[rows])) for rows in varied]
    inside = np.array([stats.pearsonr(*pair).statistic for pair in pairs])
    sizes = np.array([len(rows) for rows in varied])
    weights = (sizes - 1) / (sizes - 1).sum()
    value = float(weights @ inside)
    if abs(value) > 1 - 1e-12:
        return Statistic(value, (value, value))
    error = np.sqrt((weights**2 * (1 - inside**2) ** 2 / (sizes - 3)).sum()) / (1 - value**2)
    low, high = np.tanh(np.arctanh(value) + stats.norm.ppf((1 + level) / 2) * error * np.array([-1, 1]))
    return Statistic(value, (float(low), float(high)))


def _score(
    evaluation: Evaluation, observed: dict[str, Array], resampled: dict[str, Array], column: int, level: float
) -> Score:
    """Collect the statistics of one measure: SciPy's correlations where it has them, intervals from the resamples."""
    pool = evaluation.pool
    name, measured = list(pool.measures.items())[column]

    def statistic(values: Array, samples: Array) -> Statistic:
        return Statistic(float(values[0, column]), percentiles(samples[:, column], level))

    parts: dict[str, Any] = {key: statistic(observed[key], resampled[key]) for key in STATISTICS if key in observed}
    stats = require("scipy.stats", extra="pools", purpose="a ranking")
    linear = _correlate(measured, pool, level)
    parts["pearson_resampled"] = drawn = parts["pearson"].interval
    # Fisher's interval holds for independent models.
    parts["pearson"] = Statistic(linear.value, drawn if pool.clustered else linear.interval)
    if not pool.strata:
        for key, correlate in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
            parts[key] = Statistic(float(correlate(measured, pool.gaps)[0]), parts[key].interval)
    if neighbors := evaluation.neighbors:
        by_axis = zip(neighbors.axes, observed["psi_by_axis"], resampled["psi_by_axis"], strict=True)
        parts["psi_by_axis"] = {axis: statistic(values, samples) for axis, values, samples in by_axis}
        if neighbors.environments:
            worst = int(observed["sign_errors"][:, 0, column].argmax())
            parts["worst_environment"] = neighbors.environments[worst]
    if evaluation.information:
        least = int(np.nanargmin(observed["information_by_set"][:, 0, column]))
        parts["information_given"] = evaluation.information.sets[least]
    return Score(name, **parts)
