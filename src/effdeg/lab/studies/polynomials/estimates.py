"""A value with its standard error, and the mean of several."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from effdeg.lab.report.spread import Spread


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error, 0 if it is exact."""

    value: float
    stderr: float = 0.0

    @classmethod
    def of(cls, found: Sequence[Mapping[str, float]]) -> "Estimate":
        """Average what several seeds have found independently, each with its own standard error."""
        value = Spread.of([each["value"] for each in found]).mean
        return cls(value, math.sqrt(math.fsum(each["stderr"] ** 2 for each in found)) / len(found))

    def above(self, other: "Estimate") -> float:
        """Return how far it lies above another, in standard errors of their difference."""
        return (self.value - other.value) / math.hypot(self.stderr, other.stderr)
