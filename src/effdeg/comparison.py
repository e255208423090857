"""Several models on the same paths: which is simpler, and is the difference real?"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from effdeg.estimator import measure
from effdeg.examples import as_examples
from effdeg.inference import Model
from effdeg.measurement import Measurement, finite
from effdeg.statistics import interval, mean_and_stderr

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Difference:
    """How much more complex one model is than another, path by path.

    Attributes:
        simpler: The model with the lower effective degree.
        other: The model with the higher one.
        value: The mean over paths of (other - simpler).
        stderr: Its standard error, from the differences path by path: much smaller than those of the two models.
        interval: The interval of the difference, wide enough that all differences of the comparison lie in theirs with
            the given probability (Bonferroni).
    """

    simpler: str
    other: str
    value: float
    stderr: float
    interval: tuple[float, float]

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero."""
        return self.interval[0] > 0


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Models measured on the same paths, simplest first.

    Attributes:
        measurements: Each model's measurement by name, in order of increasing effective degree.
        normalized: Whether the models are compared by the normalized effective degree.
    """

    measurements: Mapping[str, Measurement]
    normalized: bool = False

    @classmethod
    def of(cls, measurements: Mapping[str, Measurement], *, normalized: bool = False) -> "Comparison":
        """Compare measurements that were made on the same paths with the same settings."""
        if len(measurements) < 2:
            raise ValueError(f"a comparison needs at least two models, not {len(measurements)}.")
        (reference_name, reference), *others = measurements.items()
        for name, measurement in others:
            same = len(measurement.per_path) == len(reference.per_path)
            if not same or not measurement.settings.comparable_with(reference.settings):
                raise ValueError(
                    f"{reference_name!r} and {name!r} were measured on different paths or with different settings; "
                    "measure all models with the same data, seed and settings, or let effdeg.compare do it."
                )
        ranked = sorted(measurements, key=lambda name: measurements[name].estimate(normalized=normalized)[0])
        return cls({name: measurements[name] for name in ranked}, normalized)

    @property
    def ranking(self) -> list[str]:
        """The models' names, simplest first."""
        return list(self.measurements)

    def differences(self, level: float = 0.95) -> list[Difference]:
        """Give every difference between two models, with intervals that hold together with probability ``level``."""
        pairs = list(combinations(self.ranking, 2))
        return [self._difference(one, other, 1 - (1 - level) / len(pairs)) for one, other in pairs]

    def above_simplest(self) -> dict[str, Difference]:
        """Give, for every model but the simplest, how much more complex it is."""
        return {d.other: d for d in self.differences() if d.simpler == self.ranking[0]}

    def plot(self, *, theme: str = "light") -> "Figure":
        """Draw the ranking with its intervals. Needs ``effdeg[plots]``."""
        from effdeg.plots import plot_comparison

        return plot_comparison(self, theme=theme)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain numbers, names and lists."""
        differences = [
            {
                "simpler": difference.simpler,
                "other": difference.other,
                "value": difference.value,
                "stderr": finite(difference.stderr),
                "interval": finite(list(difference.interval)),
                "significant": difference.significant,
            }
            for difference in self.differences()
        ]
        measurements = {name: measurement.to_dict() for name, measurement in self.measurements.items()}
        return {
            "ranking": self.ranking,
            "normalized": self.normalized,
            "differences": differences,
            "measurements": measurements,
        }

    def __str__(self) -> str:
        width = max(map(len, self.ranking))
        lines = []
        for rank, (name, measurement) in enumerate(self.measurements.items(), start=1):
            low, high = measurement.interval(normalized=self.normalized)
            value = measurement.estimate(normalized=self.normalized)[0]
            lines.append(f"{rank}. {name:<{width}}  {value:.4g}  (95% interval {low:.4g} to {high:.4g})")
        for difference in self.differences():
            verdict = "simpler than" if difference.significant else "not distinguishable from"
            lines.append(
                f"{difference.simpler} is {verdict} {difference.other}: difference {difference.value:.3g} "
                f"({difference.interval[0]:.3g} to {difference.interval[1]:.3g})"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Comparison({' < '.join(self.ranking)})"

    def _difference(self, simpler: str, other: str, level: float) -> Difference:
        one, two = (self.measurements[name].sample(normalized=self.normalized) for name in (simpler, other))
        sample = two - one
        mean, stderr = mean_and_stderr(sample)
        return Difference(simpler, other, mean, stderr, interval(mean, stderr, count=len(sample), level=level))


def compare(models: Mapping[str, Model], inputs: Any, *, normalized: bool = False, **settings: Any) -> Comparison:
    """Measure several models on the same paths and compare them path by path: model selection without labels.

    Args:
        models: The models by name.
        inputs: The examples, of any kind that :func:`effdeg.measure` takes.
        normalized: Compare the normalized effective degree.
        **settings: Any setting of :func:`effdeg.measure`, for all models; ``tolerance`` is not one, since the paths
            must be the same.

    Returns:
        The ranking, and every difference with its interval.
    """
    if settings.get("tolerance") is not None:
        raise ValueError("tolerance= would give each model a number of paths of its own; set paths= to compare models.")
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be a dict of models by name, not a {type(models).__name__}.")
    if len(models) < 2:
        raise ValueError(f"a comparison needs at least two models, not {len(models)}.")
    # An iterable of batches can be read once only.
    examples = as_examples(inputs)
    measured = {name: measure(model, examples, **settings) for name, model in models.items()}
    return Comparison.of(measured, normalized=normalized)
