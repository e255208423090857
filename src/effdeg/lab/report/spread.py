"""What several seeds say together: a mean with its spread, and whether two lines differ beyond the noise."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from effdeg._utils.statistics import interval

_LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """The mean over seeds and their standard deviation, which a single seed does not have."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Average what the seeds gave."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class SeedDifference:
    """By how much one line lies above another.

    Attributes:
        value: The difference of their means; where they share seeds, the mean of the differences seed by seed.
        interval: Its 95% interval by Student's t; None if either line has a single seed, or seeds agree to the last
            digit, which is an accident of counting and no certainty.
        paired: Whether it was taken seed by seed.
    """

    value: float
    interval: tuple[float, float] | None
    paired: bool

    @classmethod
    def of(cls, one: Mapping[int, float], other: Mapping[int, float]) -> "SeedDifference":
        """Compare two lines, each given by seed."""
        shared = [one[seed] - other[seed] for seed in one if seed in other]
        if len(shared) > 1:
            value, stderr = statistics.fmean(shared), statistics.stdev(shared) / math.sqrt(len(shared))
            return cls(value, _interval(value, stderr, len(shared)), paired=True)
        sides = [Spread.of(list(side.values())) for side in (one, other)]
        value = sides[0].mean - sides[1].mean
        if any(side.std is None for side in sides):
            return cls(value, None, paired=False)
        stderr = math.sqrt(sum((side.std or 0.0) ** 2 / side.count for side in sides))
        # As many degrees of freedom as the smaller side has: cautious where the sides vary differently.
        return cls(value, _interval(value, stderr, min(side.count for side in sides)), paired=False)

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the interval leaves out zero; None if there is none."""
        return None if self.interval is None else not self.interval[0] <= 0 <= self.interval[1]


def _interval(value: float, stderr: float, count: int) -> tuple[float, float] | None:
    return interval(value, stderr, count=count, level=_LEVEL) if stderr > 1e-12 else None
