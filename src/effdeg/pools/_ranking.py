"""Rank measures by how they order a pool of models: all statistics, on the models and on resamples of them."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from effdeg._utils.checks import check_choice, check_count, pluralize, shorten, suggest
from effdeg._utils.imports import require
from effdeg._utils.tables import Rows, align_columns, make_frame, render_tables
from effdeg.pools._ranked import (
    FEW_CLUSTERS,
    FITTED,
    MIN_RESAMPLED,
    TESTED,
    Array,
    Indices,
    Pool,
    as_frame,
    find_least_fit,
    is_numeric,
    join,
)
from effdeg.pools._statistics import (
    LEVEL,
    STATISTICS,
    Advantage,
    BestVariant,
    Evaluation,
    Score,
    Statistic,
    choose_best,
    find_variants,
    format_range,
    percentiles,
    scale_down,
    tally,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_MIN_RESAMPLES = 100  # with fewer, the ends of a 95% interval are too uncertain
_SUMMARIES = {"mean", "average", "median", "std", "min", "max", "sum", "total"}  # rows that a spreadsheet may have
_LARGER_IS_BETTER = {"acc", "accuracy", "auc", "auroc", "score", "f", "precision", "recall", "reward", "return", "top"}
_STRATUM_PANELS = 4  # as in the paper's Figures 3 and 8


class Strata(dict[str, "Ranking"]):
    """The rankings of strata by name; the error for another name says why there is none."""

    def __init__(self, rankings: "Mapping[str, Ranking]", left_out: Mapping[str, str]) -> None:
        super().__init__(rankings)
        self._left_out = left_out

    def __missing__(self, name: str) -> "Ranking":
        if name in self._left_out:
            raise KeyError(f"the stratum {name!r} is left out: {self._left_out[name]}")
        raise KeyError(f"there is no stratum {name!r}. {suggest(name, self)}" if self else "there are no strata")


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """How well each of several measures ranks a pool of models; :func:`rank` returns it.

    Example:
        >>> from effdeg.pools import rank
        >>> ranking = rank({"norm": [3, 1, 2], "degree": [1, 2, 4], "gap": [0.1, 0.2, 0.3]}, resamples=100)
        >>> ranking
        Ranking(degree > norm)
        >>> print(ranking.title())
        3 models, 2 measures of gap, best first

    Attributes:
        scores: The score of each measure by its name, best first by Kendall's τ; undefined ones last.
        resampled: Each statistic by name, resamples × measures in the order of ``pool.measures``; nan where undefined.
        unvaried: Hyperparameters that are never the only difference between two models, as Ψ and sign errors need.
        unconditioned: Hyperparameters that leave no order of gaps to predict: conditional information leaves them out.
        best: The best variant of each family, by family and correlation; empty without ``variants``.
        strata: The ranking of each stratum by its name; empty without ``strata``.
    """

    pool: Pool
    scores: Mapping[str, Score]
    resampled: Mapping[str, Array]
    unvaried: Sequence[str] = ()
    unconditioned: Sequence[str] = ()
    best: Mapping[str, Mapping[str, BestVariant]] = field(default_factory=dict)
    strata: "Mapping[str, Ranking]" = field(default_factory=dict)

    @property
    def resamples(self) -> int:
        """The number of resamples that the intervals come from."""
        return len(self.resampled["kendall"]) if self.resampled else 0

    @property
    def falling(self) -> list[str]:
        """The measures that significantly decrease as the gap increases."""
        kendalls = {name: score.kendall for name, score in self.scores.items()}
        return [name for name, tau in kendalls.items() if tau and tau.interval and tau.interval[1] < 0]

    def compare(self, measure: str, other: str, statistic: str = "kendall") -> Advantage:
        """Test whether one measure ranks the pool better than another, on the same resamples.

        The sign counts: a measure that falls where the gap rises ranks wrongly. If in doubt, compare by Kendall's
        τ: by Pearson's r the test is somewhat anticonservative (8% at a nominal 5%).

        Args:
            measure: The measure that may be better.
            other: The measure that it is compared with.
            statistic: The name of an attribute of :class:`Score`, such as ``"pearson"`` or ``"sign_error"``.

        Raises:
            ValueError: If a name is not known, or the statistic is undefined for one of the measures.
        """
        check_choice("statistic", statistic, STATISTICS)
        for name in (measure, other):
            check_choice("measure", name, self.scores)
            if getattr(self.scores[name], statistic) is None:
                missing = "two models are neighbors" if self.pool.hyperparameters else "hyperparameters were named"
                reason = self.scores[name].undefined or f"no {missing}"
                raise ValueError(f"{name!r} cannot be compared by {STATISTICS[statistic]}: {reason}.")
        values = getattr(self.scores[measure], statistic).value, getattr(self.scores[other], statistic).value
        sign = -1.0 if "sign_error" in statistic else 1.0  # lower is better
        one, two = (self.resampled[statistic][:, list(self.pool.measures).index(name)] for name in (measure, other))
        differences = sign * (one - two)
        differences[np.abs(differences) < 1e-12] = 0.0  # a rounding error is no advantage
        interval = percentiles(differences)
        defined = differences[np.isfinite(differences)]
        p_value = None if interval is None else (int((defined <= 0).sum()) + 1) / (len(defined) + 1)
        value = sign * (values[0] - values[1])
        return Advantage(measure, other, statistic, values, value, interval, p_value)

    def plot(self, measures: Sequence[str] | None = None, *, theme: str = "light") -> "Figure":
        """Plot the gap against each measure, with a linear fit and its confidence band. Needs the extra ``plots``.

        A measure of one sign that spans more than three orders of magnitude has a logarithmic axis, on which the fit is
        a curve. The band treats models as independent.

        Args:
            measures: The measures to plot, a panel each; by default the 12 best by Kendall's τ.
            theme: ``"light"`` or ``"dark"``.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If a measure or the theme is not known, there is no measure to plot, or there are strata.
        """
        if self.strata:
            raise ValueError("the ranking has strata, which are not mixed in one figure: use plot_strata.")
        from effdeg.plots import plot_ranking

        return plot_ranking(self, measures, theme=theme)

    def plot_strata(self, measures: Sequence[str] | None = None, *, theme: str = "light") -> "dict[str, Figure]":
        """Plot the gap against the same few measures in each stratum: a figure like that of :meth:`plot` by its name.

        Args:
            measures: The measures to plot. The name of a family stands for its best variant in the stratum, by
                Pearson's r. By default four: the families, then the best other measures by Kendall's τ over all strata;
                the caption says of how many.
            theme: ``"light"`` or ``"dark"``.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If a measure or the theme is not known, there is no measure to plot, or there are no strata.
        """
        if not self.strata:
            raise ValueError("the ranking has no strata: rank with strata=['recipe'], or use plot.")
        from effdeg.plots import plot_ranking

        in_families = {name for best in self.best.values() for name in best["pearson"].variants}
        every = [*self.best, *(name for name in self.scores if name not in in_families)]
        some = measures is None and len(every) > _STRATUM_PANELS
        caption = f"; {_STRATUM_PANELS} of {len(every)} measures" if some else ""
        measures = every[:_STRATUM_PANELS] if measures is None else measures
        for name in measures:
            check_choice("measure", name, [*self.best, *self.scores])
        figures = {}
        for stratum, inside in self.strata.items():
            chosen = {family: best["pearson"].variant for family, best in {**self.best, **inside.best}.items()}
            names = [chosen.get(name, name) for name in measures]
            figures[stratum] = plot_ranking(inside, names, theme=theme, caption=caption)
        return figures

    def warnings(self) -> list[str]:
        """Return what a reader should not overlook, in sentences."""
        return [f"note: {note}." for note in (*_list_notes(self), *_list_advice(self))]

    def notes(self) -> list[str]:
        """Return all warnings except advice on models that do not fit, the target and signs, without periods."""
        return list(_list_notes(self))

    def rows(self) -> Rows:
        """Return a table of strings: a header, then a row per measure; :meth:`warnings` explains undefined ones."""
        heads = ["Pearson", "Spearman", "Kendall"]
        heads += ["Ψ", "sign error"] if any(score.psi for score in self.scores.values()) else []
        heads += ["CMI"] if self.pool.hyperparameters else []
        rows = [["measure", *heads]]
        for name, score in self.scores.items():
            value = {key: f"{each.value:z.2f}" if (each := getattr(score, key)) else "–" for key in STATISTICS}
            cells = {
                "Pearson": str(score.pearson).replace(" to ", "…"),
                "Spearman": value["spearman"],
                "Kendall": str(score.kendall).replace(" to ", "…"),
                "Ψ": value["psi"],
                "sign error": f"{value['sign_error']}/{value['worst_sign_error']}",
                "CMI": value["conditional_information"],
            }
            undefined = ["undefined", *[""] * (len(heads) - 1)]
            rows.append([name, *(undefined if score.undefined else (cells[head] for head in heads))])
        return rows

    def best_rows(self) -> Rows:
        """Return a table of strings with the best variant of each family; only a header without ``variants``."""
        rows = [["best of", "by", "variant", "", "corrected for the choice"]]
        for best in (each[statistic] for each in self.best.values() for statistic in ("pearson", "kendall")):
            corrected = "–" if best.corrected is None else f"{best.corrected:z.2f}"
            row = [f"{len(best.variants)} {best.family}", best.statistic.title(), best.variant, f"{best.value:z.2f}"]
            rows.append([*row, f"{corrected} ({format_range(best.interval)})"])
        return rows

    def legend(self) -> str:
        """Describe what the columns of :meth:`rows` mean."""
        text, head = self.describe_intervals(), self.rows()[0]
        text += "; Ψ granulated Kendall; sign error mean/worst" if "Ψ" in head else ""
        text += "; CMI conditional mutual information" if self.resampled and "CMI" in head else ""
        return f"{text}."

    def describe_intervals(self) -> str:
        """Describe where the intervals come from, without a period."""
        if not self.resampled:
            return "no measure can be ranked" + (" over all strata" if self.strata else "")
        text = f"{LEVEL:.0%} intervals"
        if self.strata:
            text = f"models are compared within {join(self.pool.strata_by)} only; {text}"
        if self.pool.cluster_count < MIN_RESAMPLED:
            return f"{text} are left out" if self.pool.clustered else f"{text}: Pearson's by Fisher's z"
        if self.pool.clustered:
            return f"{text} resample the {self.pool.describe_clusters()}, with all their models, {self.resamples} times"
        return f"{text}: Pearson's by Fisher's z, Kendall's tau-b from {self.resamples} resamples"

    def to_frame(self) -> "DataFrame":
        """Return a data frame with a row per measure: each statistic and the ends of its interval, or NaN."""
        rows = []
        for name, score in self.scores.items():
            row: dict[str, Any] = {"measure": name}
            for key in STATISTICS:
                statistic = getattr(score, key) or Statistic(np.nan, None)
                row[key], (row[f"{key}_low"], row[f"{key}_high"]) = statistic.value, statistic.interval or (np.nan,) * 2
            rows.append(row)
        return make_frame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the resamples as plain numbers, names and lists."""
        scores = {name: asdict(score) for name, score in self.scores.items()}
        return {
            "target": self.pool.target,
            "models": len(self.pool),
            "hyperparameters": list(self.pool.hyperparameters),
            "clusters": self.pool.cluster_count,
            "resamples": self.resamples,
            "ranking": list(self.scores),
            "scores": json.loads(json.dumps(scores, default=str)),  # tuples become lists, other types strings
            "best": {
                family: {key: asdict(best) | {"variants": list(best.variants)} for key, best in by_statistic.items()}
                for family, by_statistic in self.best.items()
            },
            "duplicates": [list(names) for names in self.pool.duplicates],
            "notes": self.warnings(),
            "strata": {name: inside.to_dict() for name, inside in self.strata.items()},
        }

    def title(self) -> str:
        """Describe what was ranked."""
        models, measures = pluralize(len(self.pool), "model"), pluralize(len(self.scores), "measure")
        if self.strata:
            models += f" within {join(self.pool.strata_by)} ({', '.join(self.strata)})"
        return f"{models}, {measures} of {self.pool.target}, best first"

    def tables(self) -> list[tuple[str, Rows]]:
        """Return all tables with their titles: the scores, the best variants, and the same of each stratum."""
        parts = [(self.title(), self.rows())]
        if self.best:
            parts.append((f"the best of several variants, with its {LEVEL:.0%} interval", self.best_rows()))
        for inside in self.strata.values():
            parts += [(f"{inside.pool.describe_stratum()}: {title}", rows) for title, rows in inside.tables()]
        return parts

    def _repr_html_(self) -> str:
        return render_tables(self.tables(), [self.legend(), *self.warnings()])

    def __str__(self) -> str:
        tables = ("\n".join([title, *align_columns(rows)]) for title, rows in self.tables())
        return "\n".join(["\n\n".join(tables), self.legend(), *self.warnings()])

    def __repr__(self) -> str:
        return f"Ranking({' > '.join(self.scores)})"


def rank(
    table: Any,
    *,
    target: str = "gap",
    measures: Sequence[str] | None = None,
    hyperparameters: Sequence[str] = (),
    clusters: Sequence[str] | None = None,
    strata: Sequence[str] | None = None,
    variants: Mapping[str, str | Sequence[str]] | None = None,
    fit: float | None = None,
    resamples: int = 2000,
) -> Ranking:
    """Score how well measures rank a pool of models by their generalization gap.

    :class:`Score` defines the statistics. Their intervals come from resamples of the models. Models that share all
    their hyperparameters, such as seeds, are not independent: configurations are drawn, each with all its models (a
    cluster bootstrap). Where a hyperparameter hardly matters, intervals are too narrow: name the others as
    ``clusters``. Without hyperparameters every model counts as independent. Fewer than 6 models or configurations are
    not resampled; only Pearson's r then has an interval, by Fisher's z. Rows of one name (if there are names) that
    agree in all columns of numbers and in all columns named here are one model and count once; so do rows with the same
    ``sha256``, as :func:`effdeg.measure_pool` writes it, and the same measures.

    **Strata.** A recipe such as mixup may shift the gaps and the measures of all its models. With ``strata`` each
    stratum is ranked by itself, in ``Ranking.strata``, and the scores of the ranking combine the strata without
    comparing models across them. Kendall's τ, Ψ, sign errors and conditional information count pairs within strata
    only. Pearson's r and Spearman's ρ are the means of the strata's own, weighted by n - 1 for n models (Hunter and
    Schmidt, 2004, "Methods of meta-analysis"): the correlation of values standardized within strata. Models are
    resampled within strata. The interval of the mean r̄ = Σ w_s r_s is Fisher's, with the standard error of z by the
    delta method: √(Σ w_s² (1 - r_s²)² / (n_s - 3)) / (1 - r̄²).

    **Variants.** The best of several variants of a measure, such as sharpness at several radii, correlates too well.
    ``variants`` names such families, and ``Ranking.best`` has the best of each, corrected: see :class:`BestVariant`.

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
            ``.parquet`` file (see :func:`read_table`). A column ``model`` holds the models' names.
        target: The column to predict; larger is worse. A leading minus, as in ``"-test_accuracy"``, negates it.
        measures: The columns that may predict it; a leading minus, as in ``"-margin"``, negates one for which larger is
            better. By default every column of numbers that has no other role, except the accuracies and the gap;
            effdeg's own columns for which larger is better, such as ``confidence``, then have a leading minus.
        hyperparameters: The columns that describe how each model was trained, needed for Ψ, sign errors and
            conditional information. Only numbers have an order: all pairs of other values count as neighbors.
        clusters: The hyperparameters whose combinations are drawn, each with all its models; by default all.
        strata: The columns whose combinations are strata, such as ``["recipe"]``; they may be hyperparameters too.
            Strata of fewer than 5 models or 3 configurations, or in which the target is constant, are left out.
        variants: The variants of a measure by the name of the family: names, or patterns such as ``"sharpness@*"``.
        fit: The least ``train_accuracy``, such as 0.99; models below it, or without one, are left out. By default all
            are ranked, and a note says how many are below 0.99.
        resamples: The number of resamples for the intervals of 95%, which all measures share; at least 100.

    Returns:
        The measures by Kendall's τ, best first. Those that are constant, or not finite for some model, are undefined;
        with strata, in that stratum and in the scores that combine all.

    Raises:
        ValueError: If a column does not exist, is given twice or in two roles, or holds text where numbers are needed;
            if the target is missing or the same for all models; if there are fewer than 3 models; if no stratum can be
            ranked; if a family has fewer than two variants; if a setting is out of range; or if a file cannot be read.
        TypeError: If the table is of an unknown kind, or a single string is given for a list of columns.
        FileNotFoundError: If the table is a path and there is no such file.
        ImportError: If SciPy or pandas is not installed, or pyarrow for a ``.parquet`` file.
    """
    require("scipy", extra="pools", purpose="a ranking")
    check_count("resamples", resamples, least=_MIN_RESAMPLES)
    pool = Pool.from_table(as_frame(table), target, measures, hyperparameters, clusters, strata or (), fit)
    families = find_variants(variants or {}, [*pool.measures, *pool.undefined])
    counts = _draw(pool, resamples, np.random.default_rng(0))
    inside = {name: _rank_pool(pool.select(name), counts[:, rows], families) for name, rows in pool.strata.items()}
    return replace(_rank_pool(pool, counts, families), strata=Strata(inside, pool.left_out_strata))


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


def _rank_pool(pool: Pool, counts: Array, families: Mapping[str, Sequence[str]]) -> Ranking:
    undefined = {name: Score(name, undefined=reason) for name, reason in pool.undefined.items()}
    if not pool.measures:
        return Ranking(pool, undefined, {})
    evaluation = Evaluation(pool)
    observed = evaluation(np.ones((1, len(pool))))
    resampled = evaluation(counts)
    if pool.cluster_count < MIN_RESAMPLED:
        resampled = {name: np.full_like(values, np.nan) for name, values in resampled.items()}
    scores = [_score(evaluation, observed, resampled, column) for column in range(len(pool.measures))]
    scores.sort(key=lambda score: score.kendall.value if score.kendall else -np.inf, reverse=True)
    varied = evaluation.neighbors.axes if evaluation.neighbors else []
    given = {name for names in evaluation.information.sets for name in names} if evaluation.information else set()
    enough = families and pool.least_clusters >= FEW_CLUSTERS
    outside = evaluation((counts == 0).astype(np.float64), correlations_alone=True) if enough else None
    return Ranking(
        pool=pool,
        scores={score.measure: score for score in scores} | undefined,
        resampled=resampled,
        unvaried=[name for name in pool.hyperparameters if name not in varied],
        unconditioned=[name for name in pool.hyperparameters if name not in given],
        best=choose_best(families, list(pool.measures), observed, resampled, outside),
    )


def _correlate(measured: Array, pool: Pool) -> Statistic:
    """Return Pearson's r with Fisher's interval; with strata the mean of their own, as :func:`rank` defines it."""
    stats = require("scipy.stats", extra="pools", purpose="a ranking")
    if not pool.strata:
        linear = stats.pearsonr(scale_down(measured), scale_down(pool.gaps))
        low, high = linear.confidence_interval(LEVEL)
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
    low, high = np.tanh(np.arctanh(value) + stats.norm.ppf((1 + LEVEL) / 2) * error * np.array([-1, 1]))
    return Statistic(value, (float(low), float(high)))


def _score(evaluation: Evaluation, observed: dict[str, Array], resampled: dict[str, Array], column: int) -> Score:
    """Collect the statistics of one measure: SciPy's correlations where it has them, intervals from the resamples."""
    pool = evaluation.pool
    name, measured = list(pool.measures.items())[column]
    parts: dict[str, Any] = {
        key: Statistic(float(values[0, column]), percentiles(resampled[key][:, column]))
        for key, values in observed.items()
    }
    stats = require("scipy.stats", extra="pools", purpose="a ranking")
    linear = _correlate(measured, pool)
    # Fisher's interval holds for independent models.
    parts["pearson"] = Statistic(linear.value, parts["pearson"].interval if pool.clustered else linear.interval)
    if not pool.strata:
        for key, correlate in (("spearman", stats.spearmanr), ("kendall", stats.kendalltau)):
            parts[key] = Statistic(float(correlate(measured, pool.gaps)[0]), parts[key].interval)
    return Score(name, **parts)


def _list_advice(ranking: Ranking) -> Iterator[str]:
    """Return advice on models that do not fit, the target and signs of measures, and notes on strata."""
    pool = ranking.pool
    target, table = pool.target, pool.table
    if pool.fit is None and 0 < len(pool.below_fit) < len(pool):
        least = find_least_fit(table)
        yield (
            f"{len(pool.below_fit)} of {len(pool)} models do not fit ({FITTED} below {least:g} or missing), and a "
            f"correlation over both kinds may come from that difference: leave them out with fit={least:g}"
        )
    if target == "gap" and all(name in table and is_numeric(table[name]) for name in (FITTED, TESTED)):
        yield from _compare_gaps(pool.gaps, (table[FITTED] - table[TESTED]).to_numpy(dtype=np.float64))
    elif not target.startswith("-") and _LARGER_IS_BETTER & {*re.split(r"[^a-z]+", target.lower())}:
        yield (
            f"larger values of {target} count as worse, as those of a gap do, so τ > 0 is for measures that rise with "
            f"it: if larger is better, use target='-{target}'"
        )
    yield from _describe_falling(pool, ranking.falling)
    for inside in ranking.strata.values():
        stratum = inside.pool.describe_stratum()
        undefined = {name: why for name, why in inside.pool.undefined.items() if name not in pool.undefined}
        yield from (f"in {stratum}, {name} is {why}" for name, why in undefined.items())
        falling = [name for name in inside.falling if name not in ranking.falling]
        yield from (f"in {stratum}, {note}" for note in _describe_falling(inside.pool, falling))


def _compare_gaps(gaps: Array, differences: Array) -> Iterator[str]:
    """Point out a gap that is not the difference of the accuracies; these may be rounded, or percentages."""
    known = np.isfinite(differences)
    gaps, differences = gaps[known], differences[known]
    limit = 0.02 * np.abs(differences).max(initial=0.0)
    agree, opposite = (
        any(bool((np.abs(sign * unit * gaps - differences) <= limit).all()) for unit in (1, 100, 0.01))
        for sign in (1, -1)
    )
    if not agree:
        advice = " but its negative: rank by target='-gap'" if opposite else "; it is ranked as it is"
        yield f"gap is not {FITTED} − {TESTED}{advice}"


def _describe_falling(pool: Pool, names: Sequence[str]) -> Iterator[str]:
    if names:
        fall, them = ("falls", "it") if len(names) == 1 else ("fall", "them")
        target = "the gap" if pool.target == "gap" else pool.target
        opposite = ", ".join(f"-{name}" if name == pool.sources[name] else name[1:] for name in names)
        advice = f"if larger is meant to be better, rank {them} as {opposite}"
        yield f"{', '.join(names)} {fall} as {target} rises: {advice}"


def _list_notes(ranking: Ranking) -> Iterator[str]:
    """Return what was left out, guessed, undefined or is rough."""
    pool = ranking.pool
    yield from _describe_rows(pool)
    yield from (f"{name} is {why}" for name, why in pool.undefined.items())
    for content in dict.fromkeys(pool.left_out.values()):
        names = [name for name, held in pool.left_out.items() if held == content]
        yield f"not ranked, since {'it holds' if len(names) == 1 else 'they hold'} {content}: {', '.join(names)}"
    if pool.guessed:
        yield (
            f"ranked because they hold numbers, although effdeg does not compute them: {', '.join(pool.guessed)}. Name "
            "those that describe how a model was trained with hyperparameters=…, or the columns to rank with measures=…"
        )
    yield from _describe_neighbors(ranking)
    yield from _describe_few(ranking)
    chosen = [best["pearson"] for each in (ranking, *ranking.strata.values()) for best in each.best.values()]
    if any(best.corrected is None for best in chosen):
        few = f"{FEW_CLUSTERS} configurations or more"
        yield f"the best of several variants is corrected for the choice only with {few}"


def _describe_rows(pool: Pool) -> Iterator[str]:
    """Describe rows that count once, that may be no models of their own, and that are left out."""
    if groups := pool.duplicates:
        described = [
            f"{join(names)} are the same model" if len({*names}) > 1 else f"{names[0]} is listed {len(names)} times"
            for names in groups[:3]
        ]
        if len(groups) > 3:
            described = [f"{sum(map(len, groups))} rows are {len(groups)} models", *described, "…"]
        yield f"{'; '.join(described)}: counted once"
    numbers = [name for name in pool.table if is_numeric(pool.table[name]) or name in pool.hyperparameters]
    twins = pool.table[pool.table.duplicated(numbers, keep=False)].groupby(numbers, sort=False, observed=True)
    if alike := [join([str(name) for name in rows]) for rows in twins.groups.values()]:
        yield f"{shorten(alike)} agree in every number: if they are the same model, leave one of them out"
    if summaries := [str(name) for name in pool.names if str(name).lower() in _SUMMARIES]:
        yield f"{join(summaries)} {'counts' if len(summaries) == 1 else 'count'} as any other model"
    yield from (f"{join(pool.strata_by)} {name} is left out: {why}" for name, why in pool.left_out_strata.items())
    if pool.fit is not None and pool.below_fit:
        models = pluralize(len(pool.below_fit), "model")
        yield f"left out: {models} with a {FITTED} below {pool.fit:g}, or without one"


def _describe_neighbors(ranking: Ranking) -> Iterator[str]:
    """Describe which statistics some hyperparameters leave undefined, as those of a random search do."""
    varying = [name for name in ranking.pool.hyperparameters if name not in ranking.pool.strata_by]
    if not ranking.resampled or not varying:
        return
    if alone := [name for name in varying if name in ranking.unvaried]:
        what = ": left out of Ψ and sign errors"
        if alone == varying:
            what = ", as in a random search: there are no neighbors, which Ψ and sign errors compare"
        yield f"no two models differ in {' or '.join(alone)} alone{what}"
    if given := [name for name in varying if name in ranking.unconditioned]:
        rest = "CMI is not conditional" if given == varying else "left out of CMI"
        yield f"given {' or '.join(given)}, no order is left to predict: {rest}"


def _describe_few(ranking: Ranking) -> Iterator[str]:
    pool, count = ranking.pool, ranking.pool.cluster_count
    rough, narrow = "intervals are rough", "intervals would be too narrow, and are left out"
    for least, limit, problem in ((MIN_RESAMPLED, FEW_CLUSTERS, rough), (0, MIN_RESAMPLED, narrow)):
        if few := [name for name, inside in ranking.strata.items() if least <= inside.pool.cluster_count < limit]:
            them = f"{join(pool.strata_by)} {', '.join(few)}"
            yield f"fewer than {limit} configurations to resample in {them}: {problem}"
    if not ranking.resampled or ranking.strata:
        return
    if pool.clustered and count < FEW_CLUSTERS:
        problem = f"few to resample: {rough}" if count >= MIN_RESAMPLED else f"too few to resample: {narrow}"
        yield f"{pool.describe_clusters()} are {problem}. Name every hyperparameter in which models differ"
    elif count < MIN_RESAMPLED:
        yield f"{count} models are too few to resample: {narrow}, except Pearson's by Fisher's z"
