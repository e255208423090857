"""What is found of one measure: numbers with their intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from effdeg.ranking._neighbours import Environment
from effdeg.ranking._tables import Array

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
    """A number and the interval around it, None where more than half of the resamples leave it undefined."""

    value: float
    interval: Interval | None

    def __str__(self) -> str:
        return f"{self.value:z.2f} ({'interval ' if self.interval is None else ''}{span(self.interval)})"


@dataclass(frozen=True)
class Score:
    """How well one measure ranks the pool.

    Statistics are None where ``undefined`` says why; those from ``psi`` on also without hyperparameters, or where no
    two models differ in one hyperparameter alone. Intervals, Pearson's apart, are percentiles over resamples: of the
    models, or, where several models share a configuration, of the configurations with all their models, since seeds of
    one configuration are no independent models. A resample has fewer different models than the pool, which on the whole
    makes the worst sign error and the conditional information larger: their intervals lie high.

    Attributes:
        measure: Its name; with a leading minus, its values count as negative.
        undefined: Why nothing can be said of this measure, or None.
        pearson: Pearson's r, with Fisher's interval; with the resampled one where models share a configuration, which
            Fisher's does not know.
        pearson_resampled: The interval of Pearson's r from the resamples.
        spearman: Spearman's rho.
        kendall: Kendall's tau-b.
        psi: The granulated Kendall's Psi: the mean of ``psi_by_axis``.
        psi_by_axis: Kendall's tau among models that differ in one hyperparameter alone.
        sign_error: How often measure and gap move in opposite directions between neighbouring configurations (any two
            values of a text are neighbours): the mean over environments. 0 is perfect, 0.5 is chance.
        worst_sign_error: The largest over environments.
        worst_environment: Where that is.
        conditional_information: What share of the order of the gaps the order of the measure tells, 0 to 1, known
            hyperparameters being accounted for; blind to the direction.
        information_given: The hyperparameters that leave the measure the least to tell.
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


def percentiles(sample: Array, level: float) -> Interval | None:
    """Return the interval between percentiles of what is defined, or None if more than half is not."""
    defined = sample[np.isfinite(sample)]
    if len(defined) * 2 < len(sample):
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def span(interval: Interval | None) -> str:
    """Write an interval for a reader."""
    return "undefined" if interval is None else f"{interval[0]:z.2f} to {interval[1]:z.2f}"
