"""Several models on the same paths: which is simpler, and is the difference significant?"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from effdeg._models.examples import as_examples
from effdeg._models.inference import Model, seed_everything
from effdeg._utils.checks import check_count
from effdeg._utils.files import replace_nonfinite
from effdeg._utils.statistics import format_interval, interval, mean_and_stderr
from effdeg.measure._estimator import measure
from effdeg.measure._measurement import Measurement
from effdeg.measure._record import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Difference:
    """How much more complex one model is than another, path by path. :meth:`Comparison.differences` lists them.

    Attributes:
        simpler: The model with the lower effective degree.
        other: The model with the higher one.
        value: The mean over paths p of ED_other(p) − ED_simpler(p).
        stderr: Its standard error, from the differences path by path; usually much smaller than the models' own.
        interval: The confidence interval of the difference, wide enough that all intervals of the comparison hold
            together with the given probability (Bonferroni).

    Example:
        >>> import effdeg
        >>> effdeg.Difference("line", "wave", value=2.0, stderr=0.1, interval=(1.8, 2.2)).significant
        True
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

    @property
    def identical(self) -> bool:
        """Whether both have the same value on every path, as two copies of a model do."""
        return self.value == self.stderr == 0


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Models measured on the same paths, simplest first. :func:`effdeg.compare` returns it.

    Attributes:
        measurements: Each model's measurement by name, in order of increasing effective degree.
        normalized: Whether the models are compared by the normalized effective degree.
    """

    measurements: Mapping[str, Measurement]
    normalized: bool = False

    @classmethod
    def of(cls, measurements: Mapping[str, Measurement], *, normalized: bool = False) -> "Comparison":
        """Compare measurements that were made on the same paths with the same settings.

        Raises:
            ValueError: If there are fewer than two, or they differ in paths, data, outputs, settings, or in precision
                (half and full; float32 and float64 give the same value).

        Example:
            >>> import effdeg, torch
            >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
            >>> measured = {f.__name__: effdeg.measure(f, x, paths=30) for f in (torch.exp, torch.tanh)}
            >>> effdeg.Comparison.of(measured)
            Comparison(tanh < exp)
        """
        if len(measurements) < 2:
            raise ValueError(f"a comparison needs at least two models, not {len(measurements)}.")
        check_comparable(measurements)
        ranked = sorted(measurements, key=lambda name: measurements[name].estimate(normalized=normalized)[0])
        return cls({name: measurements[name] for name in ranked}, normalized)

    @property
    def ranking(self) -> list[str]:
        """The models' names, simplest first."""
        return list(self.measurements)

    def differences(self, level: float = 0.95) -> list[Difference]:
        """Return every difference between two models, with intervals that hold together with probability ``level``.

        For m models there are n = m (m − 1) / 2 differences, each with an interval of level 1 − (1 − ``level``) / n.

        Raises:
            ValueError: If ``level`` is not between 0 and 1.
        """
        pairs, found = list(combinations(self.ranking, 2)), []
        for simpler, other in pairs:
            one, two = (self.measurements[name].sample(normalized=self.normalized) for name in (simpler, other))
            mean, stderr = mean_and_stderr(two - one)
            bounds = interval(mean, stderr, count=len(one), level=1 - (1 - level) / len(pairs))
            found.append(Difference(simpler, other, mean, stderr, bounds))
        return found

    def above_simplest(self) -> dict[str, Difference]:
        """Return, for every model but the simplest, how much more complex it is than the simplest."""
        return {d.other: d for d in self.differences() if d.simpler == self.ranking[0]}

    def describe(self) -> str:
        """Describe what the models are compared by, such as ``normalized effective degree of the probabilities``."""
        output = self._settings.output
        values = {"softmax": "the probabilities", "sigmoid": "the probabilities", "identity": "the raw outputs"}
        return f"{'normalized ' if self.normalized else ''}effective degree of {values.get(str(output), output)}"

    @property
    def _settings(self) -> Settings:
        return next(iter(self.measurements.values())).settings

    def plot(self, *, theme: str = "light") -> "Figure":
        """Draw the ranking with its intervals. Needs the extra ``plots``."""
        from effdeg.plots import plot_comparison

        return plot_comparison(self, theme=theme)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, names and lists."""
        return {
            "ranking": self.ranking,
            "normalized": self.normalized,
            "differences": [
                replace_nonfinite(asdict(each) | {"significant": each.significant}) for each in self.differences()
            ],
            "notes": self.warnings(),
            "measurements": {name: measurement.to_dict() for name, measurement in self.measurements.items()},
        }

    def __str__(self) -> str:
        width = max(map(len, self.ranking))
        lines = []
        for rank, (name, measurement) in enumerate(self.measurements.items(), start=1):
            value = measurement.estimate(normalized=self.normalized)[0]
            span = format_interval(*measurement.interval(normalized=self.normalized))
            lines.append(f"{rank}. {name:<{width}}  {value:.4g}  (95% interval {span})")
        for difference in self.differences():
            if difference.identical:
                lines.append(f"{difference.simpler} has the same value as {difference.other} on every path")
                continue
            verdict = "simpler than" if difference.significant else "not distinguishable from"
            lines.append(
                f"{difference.simpler} is {verdict} {difference.other}: difference {difference.value:.3g} "
                f"({format_interval(*difference.interval)})"
            )
        return "\n".join([*lines, *self.warnings()])

    def warnings(self) -> list[str]:
        """List notes on the comparison, and each of the measurements once, with the names of its models."""
        about: dict[str, list[str]] = {}
        if self.normalized and self._settings.output == "softmax":
            about[
                "this is of the probabilities. The normalized value that follows the gap of ConvNets is that of the "
                "logits: use output='identity'."
            ] = self.ranking
        for name, measurement in self.measurements.items():
            for note in note_uniform(measurement):
                about.setdefault(note, []).append(name)
        for name, measurement in self.measurements.items():
            for note in measurement.notes():
                about.setdefault(note, []).append(name)
        return [
            f"note: {note}" if len(names) == len(self.measurements) else f"note on {', '.join(names)}: {note}"
            for note, names in about.items()
        ]

    def __repr__(self) -> str:
        return f"Comparison({' < '.join(self.ranking)})"


def compare(models: Mapping[str, Model], inputs: Any, *, normalized: bool = False, **settings: Any) -> Comparison:
    """Measure several models on the same paths and compare them path by path: model selection without labels.

    Since the paths are the same, the differences ED_a(p) − ED_b(p) are averaged path by path. They vary much less than
    the effective degrees themselves, so small differences between models can be significant.

    Args:
        models: The models by name, at least two.
        inputs: The examples, of any kind that :func:`effdeg.measure` accepts.
        normalized: Compare the normalized effective degree; that of the logits needs ``output="identity"``.
        **settings: Any setting of :func:`effdeg.measure` except ``tolerance``, for all models.

    Returns:
        The ranking, and every difference with its interval.

    Raises:
        ValueError: If there are fewer than two models or they cannot be compared (different numbers of outputs, half
            and full precision), which is checked on one path of each first; or as :func:`effdeg.measure` does.
        TypeError: If ``models`` is not a dict with strings as names; or as :func:`effdeg.measure` does.

    Example:
        >>> import effdeg, torch
        >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        >>> models = {"wave": lambda x: torch.sin(9 * x), "line": lambda x: 0.1 * x}
        >>> comparison = effdeg.compare(models, x, output="identity", paths=50)
        >>> comparison.ranking, comparison.differences()[0].significant
        (['line', 'wave'], True)
    """
    if settings.get("tolerance") is not None:
        raise ValueError("tolerance= would give each model its own number of paths; set paths= to compare models.")
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be a dict of models by name, not a {type(models).__name__}.")
    if len(models) < 2:
        raise ValueError(f"a comparison needs at least two models, not {len(models)}.")
    for name in models:
        if not isinstance(name, str):
            raise TypeError(f"models must have strings as names, such as {str(name)!r} instead of {name!r}.")
    check_count("paths", settings.get("paths", 1), least=1)
    progress = settings.pop("progress", False)
    # An iterable of batches can be read only once; a loader may draw.
    with seed_everything(check_count("seed", settings.get("seed", 0), least=0)):
        examples = as_examples(inputs)
    # One path of each shows what cannot be compared, before hours are spent on it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = {}
        for name, model in models.items():
            with naming(name):
                first[name] = measure(model, examples, **settings | {"paths": 1})
        check_comparable(first)
    measured = {}
    for number, (name, model) in enumerate(models.items(), start=1):
        title = f"{name} ({number}/{len(models)})"
        with naming(name):
            measured[name] = measure(model, examples, **settings, progress=progress and title)
    return Comparison.of(measured, normalized=normalized)


def note_uniform(measurement: Measurement) -> list[str]:
    """Return a note if the mean confidence is hardly above 1 / classes: by half of it, or by 0.05 with few classes."""
    classes = measurement.settings.outputs[0]
    if measurement.confidence is None or measurement.confidence >= 1 / classes + min(0.5 / classes, 0.05):
        return []
    return [
        f"predictions are nearly uniform, each of {classes} classes about as likely as the others. Such a model is "
        "simple because it says nothing; it may not be trained."
    ]


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Add a note to any error that says which of several models was being measured."""
    try:
        yield
    except Exception as error:
        error.add_note(f"This was found while measuring {model!r}.")
        raise


def check_comparable(measurements: Mapping[str, Measurement]) -> None:
    """Raise, naming what differs, unless all were measured along the same paths and mean the same thing."""
    (reference_name, reference), *others = measurements.items()
    for name, measurement in others:
        differences = reference.settings.differences(measurement.settings)
        if not differences and len(reference.per_path) != len(measurement.per_path):
            differences = [f"paths that were run: {len(reference.per_path)} and {len(measurement.per_path)}"]
        if differences:
            raise ValueError(
                f"{reference_name!r} and {name!r} cannot be compared. They differ in {'; '.join(differences)}. Measure "
                "models for the same task on the same examples, with the same settings."
            )
