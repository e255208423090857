"""How right a network is with both halves of its images, and with either of them randomized."""

from collections.abc import Mapping
from dataclasses import dataclass

from effdeg.lab.report.lines import Line, seed_of
from effdeg.lab.report.spread import SeedDifference, Spread
from effdeg.lab.store import Record

TEST, SIMPLE, COMPLEX = "test", "MNIST randomized", "CIFAR randomized"
TESTS = (TEST, SIMPLE, COMPLEX)
CHANCE = 0.5


@dataclass(frozen=True)
class Papers:
    """What the paper reports for a line, in percent: the test, and the same with either half randomized."""

    test: float
    simple: float
    complex: float

    def by_test(self) -> dict[str, float]:
        """Return the numbers by the names of the tests."""
        return {TEST: self.test, SIMPLE: self.simple, COMPLEX: self.complex}


def accuracies(run: Record) -> dict[str, float]:
    """Return the accuracies of a finished run by the names of the tests; without the randomized ones if it has none."""
    summary = run.summary or {}
    further: Mapping[str, float] = summary.get("further_tests") or {}
    return {TEST: summary["test_accuracy"], **further}


def by_seed(line: Line, test: str) -> dict[int, float]:
    """Return what every seed of a line reached in a test."""
    return {seed_of(run): accuracies(run)[test] for run in line.runs}


def spread(line: Line, test: str) -> Spread:
    """Return what a line that was run reached in a test, over its seeds."""
    return Spread.of(list(by_seed(line, test).values()))


def difference(line: Line, other: Line, test: str) -> SeedDifference:
    """Compare two lines that were run in a test."""
    return SeedDifference.of(by_seed(line, test), by_seed(other, test))
