"""What every setting of the estimator gave for a function: its error, and what an error bar costs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from effdeg.lab.report.lines import Line
from effdeg.lab.store import Record

# The degree at which the default of effdeg.measure stops.
REFERENCE = 40
# What is meant by the whole value, in the words of tables.
WHOLE = f"the whole value (the limit of high degrees; where there is none, the exact value at degree {REFERENCE})"
# The defaults of effdeg.measure.
DEFAULT = ("cosine", 200, REFERENCE)
# What a value may still grow by between the last two degrees at which it is known, to count as settled.
_SETTLED = 1e-6
# The standard error that the tables are about.
TOLERANCE = 0.02


@dataclass(frozen=True)
class EstimatorOutcome:
    """What one setting gave for one function, as shares of the exact value; with several seeds, their mean.

    Attributes:
        sampling: Where the nodes lay.
        nodes: How many on each path.
        degree: The degree of the fit.
        bias: How far the mean over paths lay above the exact value at the same degree.
        bias_stderr: Its standard error, over paths; with several seeds, over seeds.
        whole_bias: How far it lay above the whole value.
        spread: The standard deviation between paths, as a share of the estimate.
        within: That part of it which random nodes cause on one and the same path.
        residual: The share of the variation that the fit missed.
        upper_half: The share of the estimate that lies in the upper half of the degrees.
        warned: How often the measurement warned of what the fit missed: of one run, 0 or 1.
    """

    sampling: str
    nodes: int
    degree: int
    bias: float
    bias_stderr: float
    whole_bias: float
    spread: float
    within: float
    residual: float
    upper_half: float
    warned: float

    @property
    def name(self) -> str:
        """How it is called for short: nodes/degree."""
        return f"{self.nodes}/{self.degree}"

    @property
    def interpolates(self) -> bool:
        """Whether the fit goes through every value, so that nothing can be seen of what it misses."""
        return self.nodes == self.degree + 1

    @property
    def paths(self) -> int:
        """How many paths bring the standard error down to the tolerance."""
        return math.ceil((self.spread / TOLERANCE) ** 2)

    @property
    def passes(self) -> int:
        """How many forward passes these paths take."""
        return self.nodes * self.paths

    def error(self, passes: float) -> float:
        """Return the root mean square error that so many forward passes leave, as a share of the whole value.

        The larger of the two biases counts, so that no setting looks good because errors of two kinds cancel.
        """
        bias = max(abs(self.whole_bias), abs(self.bias))
        return math.hypot(bias, (1 + self.whole_bias) * self.spread * math.sqrt(self.nodes / passes))


def exact_of(run: Record) -> dict[int, float]:
    """Return the exact value by degree."""
    summary = run.summary or {}
    return dict(zip(summary["degrees"], summary["exact"], strict=True))


def limit_of(exact: Mapping[int, float]) -> float | None:
    """Return the value that does not change any more with the degree; None if it goes on growing."""
    before, last = list(exact.values())[-2:]
    return last if last <= (1 + _SETTLED) * before else None


def outcomes_of(run: Record) -> list[EstimatorOutcome]:
    """Read the outcomes of a finished run."""
    exact = exact_of(run)
    whole = limit_of(exact) or exact[REFERENCE]
    return [
        EstimatorOutcome(
            sampling=entry["sampling"],
            nodes=entry["nodes"],
            degree=entry["degree"],
            bias=entry["bias"],
            bias_stderr=entry["bias_stderr"],
            whole_bias=entry["value"] / whole - 1,
            spread=entry["std"] / entry["value"],
            within=entry["within"] / entry["value"],
            residual=entry["residual"],
            upper_half=entry["upper_half"],
            warned=float(entry["warned"]),
        )
        for entry in run.metrics
    ]


def averaged(line: Line) -> list[EstimatorOutcome]:
    """Average the outcomes of a line over its seeds, setting by setting."""
    by_setting: dict[tuple[str, int, int], list[EstimatorOutcome]] = {}
    for run in line.runs:
        for each in outcomes_of(run):
            by_setting.setdefault((each.sampling, each.nodes, each.degree), []).append(each)
    return [_mean(found) for found in by_setting.values()]


def default_of(outcomes: Sequence[EstimatorOutcome]) -> EstimatorOutcome:
    """Find what the defaults of effdeg.measure gave."""
    return next(each for each in outcomes if (each.sampling, each.nodes, each.degree) == DEFAULT)


def _mean(found: Sequence[EstimatorOutcome]) -> EstimatorOutcome:
    first = found[0]
    if len(found) == 1:
        return first
    numbers = [each.name for each in fields(EstimatorOutcome) if each.name not in {"sampling", "nodes", "degree"}]
    means = {name: statistics.fmean(getattr(each, name) for each in found) for name in numbers}
    # Every seed has a function of its own: how far these differ is seen between seeds only.
    means["bias_stderr"] = statistics.stdev(each.bias for each in found) / math.sqrt(len(found))
    return EstimatorOutcome(first.sampling, first.nodes, first.degree, **means)
