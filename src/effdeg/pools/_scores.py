"""Scores of measures with their intervals, and what compares them: one with another, the best of several variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from effdeg._utils.checks import suggest
from effdeg.pools._reading import Array
from effdeg.pools._statistics import Environment

Interval = tuple[float, float]

CORRELATIONS = ("pearson", "spearman", "kendall")
# Beyond, z = atanh r is infinite: all models in a row.
_LARGEST = 1 - 1e-12

STATISTICS = {
    "pearson": "Pearson's r",
    "spearman": "Spearman's rho",
    "kendall": "Kendall's tau",
    "psi": "granulated Kendall's Psi",
    "sign_error": "the mean sign error",
    "worst_sign_error": "the worst sign error",
    "conditional_information": "conditional information",
}


@dataclass(frozen=True)
class Statistic:
    """A number and its interval.

    The interval is None if there are too few models to resample, or more than half of the resamples leave the number
    undefined.

    Example:
        >>> from effdeg.pools import Statistic
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
        >>> from effdeg.pools import rank
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
        information_given: The set of hyperparameters that gives the least conditional information.
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
        >>> from effdeg.pools import rank
        >>> table = {"good": [1, 2, 3, 4, 5, 6], "bad": [6, 4, 5, 3, 1, 2], "gap": [1, 2, 3, 4, 5, 6]}
        >>> advantage = rank(table, resamples=100).compare("good", "bad")
        >>> round(advantage.value, 2), advantage.significant
        (1.73, True)

    Attributes:
        values: The statistic of the measure and of the other.
        value: The advantage: positive where the measure ranks better, even for sign errors, where lower is better.
        interval: Its interval from the resamples; None in the same cases as for a :class:`Statistic`.
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


@dataclass(frozen=True)
class BestVariant:
    """The best of several variants of a measure by one correlation with the gap: an element of ``Ranking.best``.

    With r_k the correlation of variant k on the pool, r*_k on a resample, z = atanh r, and q the quantile of the level:

    - ``value`` = max_k r_k is too high: the highest of many estimates is a lucky one.
    - ``corrected`` is nearly unbiased for the variant that is chosen. On each resample the best variant k is chosen and
      its correlation h_k is taken on the models that the resample does not draw, which had no part in the choice (the
      leave-one-out bootstrap of Efron and Tibshirani, 1997, "Improvements on cross-validation"). These models are few,
      which alone changes a correlation, so ``corrected`` is the mean of r_k + h_k - h̄_k, where h̄_k is the mean of h_k
      over all resamples. The choice sees only the 63% of the models that a resample draws: where one variant is far
      better, the value is somewhat low.
    - ``interval`` holds for the variant that is chosen, whichever it is, and for the best one. On the scale of z it
      reaches from the simultaneous lower bound of all variants (as in White, 2000, "A reality check for data
      snooping") to the upper percentile of the chosen one alone, since the highest estimate is hardly ever too low.
      The lower bound is max_k z_k less q(max_k (z_k - z*_k)) or q(max_k (z*_k - z_k)), whichever is larger: resamples
      of a correlation are skewed. If no variant correlates, a 95% interval covers 0 in 95% of simulated pools or more.

    Example:
        >>> from effdeg.pools import rank
        >>> table = {"a@1": [1, 3, 2, 5, 4, 8, 6, 7], "a@2": [2, 1, 4, 3, 6, 5, 7, 8], "gap": [1, 2, 3, 4, 5, 6, 8, 7]}
        >>> best = rank(table, variants={"a": "a@*"}, resamples=100).best["a"]["pearson"]
        >>> best.variant, round(best.value, 2), best.interval[0] < best.corrected < best.interval[1]
        ('a@2', 0.9, True)

    Attributes:
        family: The name of the measure that the variants belong to.
        statistic: ``"pearson"``, ``"spearman"`` or ``"kendall"``.
        variants: The variants that were chosen from; those that are undefined are left out.
        variant: The best one.
        value: Its correlation with the gap.
        corrected: The correlation, corrected for the choice. None if the whole pool or a stratum has fewer than 8
            configurations to draw from: too few would be left that are not drawn.
        interval: The interval that accounts for the choice; None where more than half of the resamples are undefined.
    """

    family: str
    statistic: str
    variants: Sequence[str]
    variant: str
    value: float
    corrected: float | None
    interval: tuple[float, float] | None


def find_variants(variants: Mapping[str, str | Sequence[str]], measures: Sequence[str]) -> dict[str, list[str]]:
    """Return the measures of each family, which are given by their names or by patterns."""
    if not isinstance(variants, Mapping):
        raise TypeError(f"variants={variants!r} must be a dict, such as {{'sharpness': 'sharpness@*'}}.")
    families = {}
    for family, given in variants.items():
        if family in measures:
            raise ValueError(f"the family of variants {family!r} is the name of a measure; give it another name.")
        names: list[str] = []
        for pattern in [given] if isinstance(given, str) else given:
            matched = [pattern] if pattern in measures else [name for name in measures if fnmatchcase(name, pattern)]
            matched = matched or [name for name in measures if fnmatchcase(name.removeprefix("-"), pattern)]
            if not matched:
                raise ValueError(
                    f"no measure is called {pattern!r}, a variant of {family!r}. {suggest(pattern, measures)}"
                )
            names += [name for name in matched if name not in names]
        if len(names) < 2:
            number = f"a single variant, {names[0]}" if names else "no variant"
            raise ValueError(f"the family {family!r} has {number}: nothing to choose from.")
        families[family] = names
    return families


def choose_best(
    families: Mapping[str, Sequence[str]],
    measures: Sequence[str],
    observed: Mapping[str, Array],
    resampled: Mapping[str, Array],
    outside: Mapping[str, Array] | None,
    level: float,
) -> dict[str, dict[str, BestVariant]]:
    """Choose the best variant of each family by each correlation: on the pool, 1 × measures, and on resamples.

    ``outside`` are those on the models that each resample does not draw; None if these are too few.
    """
    best: dict[str, dict[str, BestVariant]] = {}
    for family, names in families.items():
        defined = [name for name in names if name in measures]
        columns = [measures.index(name) for name in defined]
        for statistic in CORRELATIONS if defined else ():
            held_out = None if outside is None else outside[statistic][:, columns]
            on_pool, drawn = observed[statistic][0, columns], resampled[statistic][:, columns]
            variant, *numbers = _choose(on_pool, drawn, held_out, level)
            chosen = BestVariant(family, statistic, defined, defined[variant], *numbers)
            best.setdefault(family, {})[statistic] = chosen
    return best


def _choose(observed: Array, resampled: Array, outside: Array | None, level: float) -> tuple[Any, ...]:
    """Return which variant is best, its value, the corrected one and the interval."""
    best = int(observed.argmax())
    value = float(observed[best])
    complete = np.isfinite(resampled).all(1)
    if complete.sum() * 2 < len(resampled):
        return best, value, None, None
    corrected = None
    if outside is not None:
        deviations = observed + outside - np.nanmean(outside, axis=0)
        chosen = np.take_along_axis(deviations, resampled.argmax(1)[:, None], 1)[complete]
        corrected = min(value, float(np.nanmean(chosen)))
    z, drawn = (np.arctanh(np.clip(each, -_LARGEST, _LARGEST)) for each in (observed, resampled[complete]))
    low = z[best] - max(np.quantile(shifts.max(1), (1 + level) / 2) for shifts in (z - drawn, drawn - z))
    high = np.quantile(drawn[:, best], (1 + level) / 2)
    return best, value, corrected, (float(np.tanh(low)), float(np.tanh(high)))
