"""Whether one measure ranks a pool of models better than another."""

from dataclasses import dataclass

import numpy as np

from effdeg.ranking._score import STATISTICS, Interval, percentiles, span
from effdeg.ranking._tables import Array

_FEWER_IS_BETTER = {"sign_error", "worst_sign_error"}


@dataclass(frozen=True)
class Advantage:
    """By how much one measure ranks a pool better than another, on the same resamples of its models.

    Compare by Kendall's tau if in doubt: by Pearson's r the test is somewhat anticonservative (8% at a nominal 5%).

    Attributes:
        measure: The measure in question.
        other: The one it is held against.
        statistic: What they are compared by.
        values: The statistic of the one and of the other.
        value: The advantage: positive where the measure ranks better, also by sign errors, of which fewer is better.
        interval: Its interval from the resamples; None where more than half of them leave it undefined.
        p_value: (k + 1) / (B + 1) for k of B resamples without an advantage; 1 for a measure against itself.
        level: The probability of the interval.
    """

    measure: str
    other: str
    statistic: str
    values: tuple[float, float]
    value: float
    interval: Interval | None
    p_value: float | None
    level: float

    @classmethod
    def of(
        cls, names: tuple[str, str], statistic: str, values: tuple[float, float], samples: Array, level: float
    ) -> "Advantage":
        """Compare a statistic of two measures, given also on the same resamples: resamples × 2."""
        direction = -1.0 if statistic in _FEWER_IS_BETTER else 1.0
        differences = direction * (samples[:, 0] - samples[:, 1])
        differences[np.abs(differences) < 1e-12] = 0.0  # rounding is no advantage
        interval = percentiles(differences, level)
        defined = differences[np.isfinite(differences)]
        p_value = (int((defined <= 0).sum()) + 1) / (len(defined) + 1)
        value = direction * (values[0] - values[1])
        return cls(*names, statistic, values, value, interval, None if interval is None else p_value, level)

    @property
    def significant(self) -> bool:
        """Whether the measure ranks better, beyond doubt at this level: the interval lies above zero."""
        return self.interval is not None and self.interval[0] > 0

    def __str__(self) -> str:
        one, other = self.values
        if self.significant:
            verdict = "ranks better than"
        elif self.interval is not None and self.interval[1] < 0:
            verdict = "ranks worse than"
        else:
            verdict = "is not distinguishable from"
        doubt = f"{self.level * 100:g}% interval {span(self.interval)}"
        p_value = "" if self.p_value is None else f", one-sided p = {self.p_value:.2g}"
        return (
            f"{self.measure} {verdict} {self.other} by {STATISTICS[self.statistic]}: {one:z.2f} against {other:z.2f}, "
            f"an advantage of {self.value:z.2f} ({doubt}{p_value})"
        )
