"""The result of ranking a pool of models: scores of measures with their intervals, and tests between two measures."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from effdeg._utils.checks import check_choice, pluralize
from effdeg._utils.imports import require
from effdeg.ranking._pool import Pool, join
from effdeg.ranking._rows import FEW_CLUSTERS, MIN_RESAMPLED
from effdeg.ranking._statistics import Environment
from effdeg.ranking._tables import Array
from effdeg.ranking._variants import BestVariant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Interval = tuple[float, float]

STATISTICS = {
    "pearson": "Pearson's r",
    "spearman": "Spearman's rho",
    "kendall": "Kendall's tau",
    "psi": "granulated Kendall's Psi",
    "sign_error": "the mean sign error",
    "worst_sign_error": "the worst sign error",
    "conditional_information": "conditional information",
}
_LOWER_IS_BETTER = {"sign_error", "worst_sign_error"}
_STRATUM_PANELS = 4  # as in the paper's Figures 3 and 8


@dataclass(frozen=True)
class Statistic:
    """A number and its interval.

    The interval is None if there are too few models to resample, or more than half of the resamples leave the number
    undefined.

    Example:
        >>> from effdeg.ranking import Statistic
        >>> print(Statistic(0.5, (0.25, 0.75)))
        0.50 (0.25 to 0.75)
    """

    value: float
    interval: Interval | None

    def __str__(self) -> str:
        return f"{self.value:z.2f} ({'interval ' if self.interval is None else ''}{format_range(self.interval)})"


@dataclass(frozen=True)
class Score:
    """How well one measure ranks the pool.

    For models i and j, let s_ij and t_ij be the signs of the differences in the measure and in the gap.

    - Kendall's τ_b = Σ s_ij t_ij / √(Σ s_ij² Σ t_ij²) over all pairs; Spearman's ρ is Pearson's r of the ranks.
    - Granulated Kendall's Ψ (Jiang et al., 2020, "Fantastic generalization measures and where to find them"): among
      models that differ in one hyperparameter alone, the mean of s_ij t_ij for each setting of the others, then the
      mean over settings, then over hyperparameters. A tie counts as 0.
    - Sign error (Dziugaite et al., 2020, "In search of robust measures of generalization"): the mean of
      (1 - s_ij t_ij) / 2 over the pairs of an environment, a step of one hyperparameter. 0 is perfect, 0.5 is chance.
    - Conditional mutual information (Jiang et al., 2020): the least I(s; t | U) / H(t | U) over all sets U of at most
      two hyperparameters. It lies between 0 and 1 and ignores the direction.

    Statistics are None if the measure is ``undefined``; those from ``psi`` on also without hyperparameters, and ``psi``
    and sign errors if no two models differ in one hyperparameter alone, as in a random search. Except for Pearson's,
    intervals are percentiles over the resamples of :func:`rank`. A resample has fewer distinct models than the pool,
    which tends to raise the worst sign error and the conditional information: their intervals are biased upwards.

    Example:
        >>> from effdeg.ranking import rank
        >>> table = {"lr": [1, 1, 2, 2], "width": [8, 9, 8, 9], "degree": [1, 3, 2, 4], "gap": [1, 2, 3, 4]}
        >>> score = rank(table, hyperparameters=["lr", "width"], resamples=100).scores["degree"]
        >>> round(score.kendall.value, 3), score.psi.value, score.sign_error.value
        (0.667, 1.0, 0.0)

    Attributes:
        measure: Its name; a leading minus means that its values were negated.
        undefined: Why this measure cannot be scored, or None.
        pearson: Pearson's r, with Fisher's interval, or with the resampled one if models share a configuration and are
            not independent.
        pearson_resampled: The interval of Pearson's r from the resamples.
        psi_by_axis: The part of Ψ for each hyperparameter; ``psi`` is their mean.
        sign_error: The mean sign error over environments; ``worst_sign_error`` is the largest one.
        worst_environment: The environment of the largest one.
        information_given: The set of hyperparameters given which the conditional information is least.
    """

    measure: str
    undefined: str | None = None
    pearson: Statistic | None = None
    pearson_resampled: Interval | None = None
    spearman: Statistic | None = None
    kendall: Statistic | None = None
    psi: Statistic | None = None
    psi_by_axis: Mapping[str, Statistic] = field(default_factory=dict)
    sign_error: Statistic | None = None
    worst_sign_error: Statistic | None = None
    worst_environment: Environment | None = None
    conditional_information: Statistic | None = None
    information_given: Sequence[str] = ()

    def __str__(self) -> str:
        if self.undefined is not None:
            return f"{self.measure}: {self.undefined}"
        known = {what: getattr(self, name) for name, what in STATISTICS.items() if getattr(self, name) is not None}
        text = f"{self.measure}: " + ", ".join(f"{what} {statistic}" for what, statistic in known.items())
        return text if self.worst_environment is None else f"{text}; the worst at {self.worst_environment}"


@dataclass(frozen=True)
class Advantage:
    """By how much one measure ranks a pool better than another, on the same resamples: see :meth:`Ranking.compare`.

    Example:
        >>> from effdeg.ranking import rank
        >>> table = {"good": [1, 2, 3, 4, 5, 6], "bad": [6, 4, 5, 3, 1, 2], "gap": [1, 2, 3, 4, 5, 6]}
        >>> advantage = rank(table, resamples=100).compare("good", "bad")
        >>> round(advantage.value, 2), advantage.significant
        (1.73, True)

    Attributes:
        values: The statistic of the measure and of the other.
        value: The advantage: positive where the measure ranks better, also for sign errors, where lower is better.
        interval: Its interval from the resamples; None as that of a :class:`Statistic`.
        p_value: (k + 1) / (B + 1) for k of B resamples without an advantage; 1 for a measure against itself; None
            without an interval.
    """

    measure: str
    other: str
    statistic: str
    values: tuple[float, float]
    value: float
    interval: Interval | None
    p_value: float | None
    level: float

    @property
    def significant(self) -> bool:
        """Whether the measure ranks significantly better, with its whole interval above zero."""
        return self.interval is not None and self.interval[0] > 0

    def __str__(self) -> str:
        one, other = self.values
        verdict = "ranks better than" if self.significant else "is not distinguishable from"
        if self.interval is not None and self.interval[1] < 0:
            verdict = "ranks worse than"
        uncertainty = f"{self.level * 100:g}% interval {format_range(self.interval)}"
        p_value = "" if self.p_value is None else f", one-sided p = {self.p_value:.2g}"
        return (
            f"{self.measure} {verdict} {self.other} by {STATISTICS[self.statistic]}: {one:z.2f} against {other:z.2f}, "
            f"an advantage of {self.value:z.2f} ({uncertainty}{p_value})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """How well each of several measures ranks a pool of models; :func:`rank` returns it.

    Example:
        >>> from effdeg.ranking import rank
        >>> ranking = rank({"norm": [3, 1, 2], "degree": [1, 2, 4], "gap": [0.1, 0.2, 0.3]}, resamples=100)
        >>> ranking
        Ranking(degree > norm)
        >>> print(ranking.title())
        3 models, 2 measures of gap, best first

    Attributes:
        scores: The score of each measure by its name, best first by Kendall's τ; undefined ones last.
        resampled: Each statistic by name, resamples × measures in the order of ``pool.measures``; nan where undefined.
        unvaried: Hyperparameters in which alone no two models differ: they are left out of Ψ and sign errors.
        unconditioned: Hyperparameters given which no order of gaps is left to predict, as where all values differ: they
            are left out of the conditional information.
        best: The best variant of each family, by family and correlation; empty without ``variants``.
        strata: The ranking of each stratum by its name; empty without ``strata``.
    """

    pool: Pool
    scores: Mapping[str, Score]
    resampled: Mapping[str, Array]
    level: float
    seed: int
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
            statistic: ``"kendall"``, ``"pearson"``, ``"spearman"``, ``"psi"``, ``"sign_error"``, ``"worst_sign_error"``
                or ``"conditional_information"``.

        Returns:
            The advantage, its interval and its p value.

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
        sign = -1.0 if statistic in _LOWER_IS_BETTER else 1.0
        one, two = (self.resampled[statistic][:, list(self.pool.measures).index(name)] for name in (measure, other))
        differences = sign * (one - two)
        differences[np.abs(differences) < 1e-12] = 0.0  # a rounding error is no advantage
        interval = percentiles(differences, self.level)
        defined = differences[np.isfinite(differences)]
        p_value = None if interval is None else (int((defined <= 0).sum()) + 1) / (len(defined) + 1)
        value = sign * (values[0] - values[1])
        return Advantage(measure, other, statistic, values, value, interval, p_value, self.level)

    def plot(self, measures: Sequence[str] | None = None, *, theme: str = "light") -> "Figure":
        """Plot the gap against each measure, with a linear fit and its confidence band. Needs ``effdeg[plots]``.

        A measure whose values have one sign and span more than three orders of magnitude has a logarithmic axis, on
        which the fit is a curve. Long names are shortened in the middle. The band treats models as independent.

        Args:
            measures: The measures to plot; by default the 12 best by Kendall's τ.
            theme: ``"light"`` or ``"dark"``.

        Returns:
            The figure, with a panel for each measure.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If a measure or the theme is not known, there is no measure to plot, or the ranking has strata,
                which are not shown in one panel.
        """
        if self.strata:
            raise ValueError("the ranking has strata, which are not mixed in one figure: use plot_strata.")
        require("matplotlib", extra="plots", purpose="a figure")
        from effdeg.ranking._plots import plot_ranking

        return plot_ranking(self, measures, theme=theme)

    def plot_strata(self, measures: Sequence[str] | None = None, *, theme: str = "light") -> "dict[str, Figure]":
        """Plot the gap against the same few measures in each stratum, a figure each. Needs ``effdeg[plots]``.

        Args:
            measures: The measures to plot. The name of a family stands for its best variant in the stratum, by
                Pearson's r. By default four: the families, then the best other measures by Kendall's τ over all strata.
            theme: ``"light"`` or ``"dark"``.

        Returns:
            The figures by the names of the strata, each as :meth:`plot` makes them.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If a measure or the theme is not known, there is no measure to plot, or the ranking has no
                strata.
        """
        if not self.strata:
            raise ValueError("the ranking has no strata: rank with strata=['recipe'], or use plot.")
        in_families = {name for best in self.best.values() for name in best["pearson"].variants}
        if measures is None:
            measures = [*self.best, *(name for name in self.scores if name not in in_families)][:_STRATUM_PANELS]
        for name in measures:
            check_choice("measure", name, [*self.best, *self.scores])
        figures = {}
        for stratum, inside in self.strata.items():
            chosen = {family: best["pearson"].variant for family, best in {**self.best, **inside.best}.items()}
            figures[stratum] = inside.plot([chosen.get(name, name) for name in measures], theme=theme)
        return figures

    def warnings(self) -> list[str]:
        """Return, in sentences, what a reader should not overlook."""
        found = [*self.notes(), *self._describe_falling(self.falling)]
        for inside in self.strata.values():
            undefined = [each for each in inside._describe_undefined() if each not in found]
            falling = inside._describe_falling([name for name in inside.falling if name not in self.falling])
            found += [f"in {inside.pool.describe_stratum()}, {each}" for each in (*undefined, *falling)]
        return [f"note: {each}." for each in found]

    def _describe_falling(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        fall, them = ("falls", "it") if len(names) == 1 else ("fall", "them")
        target = "the gap" if self.pool.target == "gap" else self.pool.target
        opposite = ", ".join(name[1:] if name in self.pool.negated else f"-{name}" for name in names)
        advice = f"if larger is meant to be better, rank {them} as {opposite}"
        return [f"{', '.join(names)} {fall} as {target} rises: {advice}"]

    def _describe_undefined(self) -> list[str]:
        return [f"{name} is {reason}" for name, reason in self.pool.undefined.items()]

    def notes(self) -> list[str]:
        """Return all warnings except the advice to negate a measure, without periods."""
        pool = self.pool
        found = [f"{join(names)} are the same in all columns: counted once" for names in pool.duplicates]
        found += [
            f"{join(pool.strata_by)} {name} is left out: {reason}" for name, reason in pool.left_out_strata.items()
        ]
        found += self._describe_undefined()
        if pool.left_out:
            found.append(f"not ranked, since they hold text: {', '.join(pool.left_out)}")
        if pool.guessed:
            columns = ", ".join([*pool.measures, *pool.undefined])
            found.append(
                f"no measures or hyperparameters were named, so every column of numbers is ranked: {columns}. Name "
                "those that describe how a model was trained with hyperparameters=…, to leave them out"
            )
        found += self._describe_neighbors()
        found += self._describe_few()
        return found

    def _describe_few(self) -> list[str]:
        """Describe where there are few models or configurations to resample."""
        pool, count = self.pool, self.pool.cluster_count
        rough, narrow = "intervals are rough", "intervals would be too narrow, and are left out"
        found = []
        for least, limit, problem in ((MIN_RESAMPLED, FEW_CLUSTERS, rough), (0, MIN_RESAMPLED, narrow)):
            if few := [name for name, inside in self.strata.items() if least <= inside.pool.cluster_count < limit]:
                them = f"{join(pool.strata_by)} {', '.join(few)}"
                found.append(f"fewer than {limit} configurations to resample in {them}: {problem}")
        if not self.resampled or self.strata:
            return found
        if pool.clustered and count < FEW_CLUSTERS:
            problem = f"few to resample: {rough}" if count >= MIN_RESAMPLED else f"too few to resample: {narrow}"
            found.append(f"{pool.describe_clusters()} are {problem}. Name every hyperparameter in which models differ")
        elif count < MIN_RESAMPLED:
            found.append(f"{count} models are too few to resample: {narrow}, except Pearson's by Fisher's z")
        return found

    def _describe_neighbors(self) -> list[str]:
        """Describe which statistics some hyperparameters leave undefined, as those of a random search do."""
        varying = [name for name in self.pool.hyperparameters if name not in self.pool.strata_by]
        alone, given = ([name for name in names if name in varying] for names in (self.unvaried, self.unconditioned))
        if not self.resampled or not varying:
            return []
        found = []
        if alone == varying:
            found.append(
                f"no two models differ in {' or '.join(alone)} alone, as in a random search: there are no neighbors, "
                "which Ψ and sign errors compare"
            )
        elif alone:
            found.append(f"no two models differ in {' or '.join(alone)} alone: left out of Ψ and sign errors")
        if given:
            rest = "CMI is not conditional" if given == varying else "left out of CMI"
            found.append(f"given {' or '.join(given)}, no order is left to predict: {rest}")
        return found

    def rows(self) -> list[list[str]]:
        """Return a table of strings: a header, then a row per measure; :meth:`warnings` explains undefined ones."""
        defined = [score for score in self.scores.values() if score.spearman is not None]
        neighbors = any(score.psi is not None for score in defined)
        conditional = [*(["Ψ", "sign error"] if neighbors else []), *(["CMI"] if self.pool.hyperparameters else [])]
        rows = [["measure", "Pearson", "Spearman", "Kendall", *conditional]]
        for score in self.scores.values():
            if score.spearman is None:
                rows.append([score.measure, "undefined", *[""] * (len(rows[0]) - 2)])
                continue
            pearson, kendall = (str(each).replace(" to ", "…") for each in (score.pearson, score.kendall))
            row = [score.measure, pearson, _format_value(score.spearman), kendall]
            if neighbors:
                mean, worst = _format_value(score.sign_error), _format_value(score.worst_sign_error)
                row += [_format_value(score.psi), f"{mean}/{worst}"]
            row += [_format_value(score.conditional_information)] if self.pool.hyperparameters else []
            rows.append(row)
        return rows

    def best_rows(self) -> list[list[str]]:
        """Return a table of strings with the best variant of each family; only a header without ``variants``."""
        rows = [["best of", "by", "variant", "", "corrected for the choice"]]
        for best in (each[statistic] for each in self.best.values() for statistic in ("pearson", "kendall")):
            corrected = "–" if best.corrected is None else f"{best.corrected:z.2f}"
            corrected += f" ({format_range(best.interval)})"
            label = f"{len(best.variants)} {best.family}"
            rows.append([label, best.statistic.title(), best.variant, f"{best.value:z.2f}", corrected])
        return rows

    def legend(self) -> str:
        """Describe what the columns of :meth:`rows` mean."""
        text = self.describe_intervals()
        head = self.rows()[0]
        if "Ψ" in head:
            text += "; Ψ granulated Kendall; sign error mean/worst"
        if self.resampled and "CMI" in head:
            text += "; CMI conditional mutual information"
        return f"{text}."

    def describe_intervals(self) -> str:
        """Describe where the intervals come from, without a period."""
        if not self.resampled:
            return "no measure can be ranked"
        text = f"{self.level * 100:g}% intervals"
        if self.strata:
            text = f"models are compared within {join(self.pool.strata_by)} only; {text}"
        if self.pool.cluster_count < MIN_RESAMPLED:
            return f"{text} are left out" if self.pool.clustered else f"{text}: Pearson's by Fisher's z"
        if self.pool.clustered:
            return f"{text} resample the {self.pool.describe_clusters()}, with all their models, {self.resamples} times"
        return f"{text}: Pearson's by Fisher's z, Kendall's tau-b from {self.resamples} resamples"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the resamples as plain numbers, names and lists."""
        scores = {name: asdict(score) for name, score in self.scores.items()}
        return {
            "target": self.pool.target,
            "models": len(self.pool),
            "hyperparameters": list(self.pool.hyperparameters),
            "clusters": self.pool.cluster_count,
            "resamples": self.resamples,
            "level": self.level,
            "seed": self.seed,
            "ranking": list(self.scores),
            "scores": json.loads(json.dumps(scores, default=str)),  # tuples become lists, other types strings
            "best": {
                family: {key: asdict(best) | {"variants": list(best.variants)} for key, best in found.items()}
                for family, found in self.best.items()
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

    def tables(self) -> list[tuple[str, list[list[str]]]]:
        """Return all tables with their titles: the scores, the best variants, and the same of each stratum."""
        found = [(self.title(), self.rows())]
        if self.best:
            found.append((f"the best of several variants, with its {self.level * 100:g}% interval", self.best_rows()))
        for inside in self.strata.values():
            found += [(f"{inside.pool.describe_stratum()}: {title}", rows) for title, rows in inside.tables()]
        return found

    def __str__(self) -> str:
        tables = ("\n".join([title, *align_columns(rows)]) for title, rows in self.tables())
        return "\n".join(["\n\n".join(tables), self.legend(), *self.warnings()])

    def __repr__(self) -> str:
        return f"Ranking({' > '.join(self.scores)})"


def align_columns(rows: list[list[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table with aligned columns; if it is wider than ``width``, intervals go below numbers."""
    cells = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        return align_columns([[cell.replace(" (", "\n(") for cell in row] for row in rows])
    return [
        "  ".join(f"{part:<{size}}" for part, size in zip(line, widths, strict=True)).rstrip()
        for row in cells
        for line in zip_longest(*row, fillvalue="")
    ]


def _format_value(statistic: Statistic | None) -> str:
    return "–" if statistic is None else f"{statistic.value:z.2f}"


def percentiles(sample: Array, level: float) -> Interval | None:
    """Return the interval between percentiles of the defined values, or None if more than half are undefined."""
    defined = sample[np.isfinite(sample)]
    if len(defined) * 2 < len(sample):
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def format_range(interval: Interval | None) -> str:
    """Format an interval for a reader."""
    return "undefined" if interval is None else f"{interval[0]:z.2f} to {interval[1]:z.2f}"
