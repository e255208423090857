"""Scores of measures with their intervals, and the advantage of one measure over another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from effdeg.pools._reading import Array
from effdeg.pools._statistics import Environment

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
