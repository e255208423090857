"""Differences with their 95% intervals, in words."""

from dataclasses import dataclass

from torch import Tensor

from effdeg._utils.statistics import interval, mean_and_stderr


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, and its 95% interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, changes: Tensor) -> "Difference":
        """Return the mean difference over pairs."""
        mean, stderr = mean_and_stderr(changes.double())
        return cls(mean, *interval(mean, stderr, count=len(changes), level=0.95))

    @property
    def sign(self) -> int:
        """1 if the interval lies above zero, -1 if below, 0 if it holds zero."""
        return (self.low > 0) - (self.high < 0)

    def describe(self, *, scale: float = 1.0, unit: str = "") -> str:
        """Return whether the difference is clear, with its interval."""
        words = ("no clear difference", "higher", "lower")[self.sign]
        low, high = scale * self.low, scale * self.high
        return f"{words} (95% interval of the difference {low:+.2g} to {high:+.2g}{unit})"
