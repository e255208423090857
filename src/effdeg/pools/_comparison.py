"""Several models on the same paths: which is simpler, and is the difference significant?"""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor
from torch.nn.functional import cross_entropy

from effdeg._adapters.arguments import DataNote
from effdeg._adapters.examples import Examples, as_examples, split_labels
from effdeg._adapters.inference import Model, seed_everything
from effdeg._adapters.prompts import read_prompts
from effdeg._utils.checks import check_count
from effdeg._utils.files import replace_nonfinite
from effdeg._utils.statistics import format_interval, interval, mean_and_stderr
from effdeg._utils.tables import Rows, align_columns, make_frame, render_tables
from effdeg.measuring._estimator import measure
from effdeg.measuring._measurement import Measurement
from effdeg.measuring._path_runner import model_name
from effdeg.measuring._record import Settings
from effdeg.proxies import RunOptions, Table, check_names, evaluate
from effdeg.proxies._registry import find_needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True)
class Difference:
    """How much more complex one model is than another, path by path. :meth:`Comparison.differences` lists them.

    Attributes:
        simpler: The model with the lower effective degree.
        other: The model with the higher one.
        value: The mean over paths p of ED_other(p) − ED_simpler(p).
        stderr: Its standard error, from the differences path by path; usually much smaller than the models' own.
        interval: Its confidence interval; all of a comparison hold together with the given probability (Bonferroni).
        other_value: The effective degree of the other model, the larger of the two.
        NEGLIGIBLE: A difference is negligible if its whole interval lies within this share of the larger value.

    Example:
        >>> import effdeg
        >>> effdeg.Difference("line", "wave", value=2.0, stderr=0.1, interval=(1.8, 2.2), other_value=3.0).significant
        True
        >>> near = effdeg.Difference("a", "b", value=3e-7, stderr=1e-8, interval=(2e-7, 4e-7), other_value=0.061)
        >>> near.negligible, near.significant
        (True, False)
    """

    NEGLIGIBLE: ClassVar[float] = 0.001

    simpler: str
    other: str
    value: float
    stderr: float
    interval: tuple[float, float]
    other_value: float

    @property
    def negligible(self) -> bool:
        """Whether the interval lies within 0.1% of the larger value, too small to matter, however certain."""
        return max(map(abs, self.interval)) <= self.NEGLIGIBLE * abs(self.other_value)

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero, and the difference is not negligible."""
        return self.interval[0] > 0 and not self.negligible

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
        proxies: The proxies of each model, if any were asked for.

    Example:
        >>> import effdeg, torch
        >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        >>> comparison = effdeg.compare([torch.exp, torch.tanh], x, paths=30, proxies=["confidence"])
        >>> comparison.rows()[0]
        ['model', 'value (95% interval)', 'above the simplest', 'significant', 'confidence']
    """

    measurements: Mapping[str, Measurement]
    normalized: bool = False
    proxies: Mapping[str, Table] = field(default_factory=dict)

    @property
    def ranking(self) -> list[str]:
        """The models' names, simplest first."""
        return list(self.measurements)

    def differences(self) -> list[Difference]:
        """Return all n differences between two models, with intervals that hold together with a probability of 95%.

        Each interval is of level 1 − 0.05 / n.
        """
        pairs, differences = list(combinations(self.ranking, 2)), []
        for simpler, other in pairs:
            one, two = (self.measurements[name].sample(normalized=self.normalized) for name in (simpler, other))
            mean, stderr = mean_and_stderr(two - one)
            bounds = interval(mean, stderr, count=len(one), level=1 - (1 - 0.95) / len(pairs))
            differences.append(Difference(simpler, other, mean, stderr, bounds, float(two.mean())))
        return differences

    def above_simplest(self) -> dict[str, Difference]:
        """Return, for every model but the simplest, how much more complex it is than the simplest."""
        return {d.other: d for d in self.differences() if d.simpler == self.ranking[0]}

    def _list_estimates(self) -> Iterator[tuple[str, tuple[float, float], tuple[float, float], Difference | None]]:
        """Return for each model its name, estimate, 95% interval and difference from the simplest, which has none."""
        above, normalized = self.above_simplest(), self.normalized
        for name, each in self.measurements.items():
            yield name, each.estimate(normalized=normalized), each.interval(normalized=normalized), above.get(name)

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

    def rows(self) -> Rows:
        """Return a table of strings: a header, then a row per model, with its proxies."""
        proxies = list(next(iter(self.proxies.values()), ()))
        rows = [["model", "value (95% interval)", "above the simplest", "significant", *proxies]]
        for name, (value, _), span, difference in self._list_estimates():
            row = [name, f"{value:.4g} ({format_interval(*span)})", "", ""]
            if difference is not None:
                row[2] = f"{difference.value:.3g} ({format_interval(*difference.interval)})"
                row[3] = "yes" if difference.significant else "negligible" if difference.negligible else "no"
            rows.append([*row, *(self.proxies[name][proxy].estimate for proxy in proxies)])
        return rows

    def to_frame(self) -> "DataFrame":
        """Return a data frame with a row per model, simplest first. Needs the extra ``pools``.

        The columns are ``model``, ``value``, ``stderr``, ``low`` and ``high`` (the 95% interval), ``above_simplest``,
        ``above_low``, ``above_high`` and ``significant`` (NaN for the simplest), and the values of proxies.
        """
        rows = []
        for name, (value, stderr), (low, high), difference in self._list_estimates():
            row: dict[str, Any] = {"model": name, "value": value, "stderr": stderr, "low": low, "high": high}
            row |= dict.fromkeys(("above_simplest", "above_low", "above_high", "significant"), math.nan)
            if difference is not None:
                row["above_simplest"], (row["above_low"], row["above_high"]) = difference.value, difference.interval
                row["significant"] = difference.significant
            rows.append(row | (self.proxies[name].row() if self.proxies else {}))
        return make_frame(rows)

    def _repr_html_(self) -> str:
        return render_tables([(f"{self.describe()}, simplest first", self.rows())], [self.conclude(), *self.warnings()])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, names and lists."""
        proxies = {name: table.to_dict()["results"] for name, table in self.proxies.items()}
        return {
            "ranking": self.ranking,
            "normalized": self.normalized,
            "differences": [
                replace_nonfinite(asdict(each) | {"significant": each.significant, "negligible": each.negligible})
                for each in self.differences()
            ],
            "notes": self.warnings(),
            "measurements": {name: measurement.to_dict() for name, measurement in self.measurements.items()},
            **({"proxies": proxies} if proxies else {}),
        }

    def conclude(self) -> str:
        """Describe how certain it is which model is the simplest."""
        best, others = self.ranking[0], self.above_simplest()
        same = [name for name, each in others.items() if each.identical]
        near = [name for name, each in others.items() if each.negligible and name not in same]
        unclear = [name for name, each in others.items() if not each.significant and name not in (*same, *near)]
        said = []
        if same:
            said.append(f"{best} has the same value as {', '.join(same)} on every path: they may be the same model.")
        if near:
            said.append(f"{best} is as simple as {', '.join(near)}: the difference is negligible, below 0.1%.")
        if unclear:
            said.append(f"{best} is not distinguishable from {', '.join(unclear)}; more paths may distinguish them.")
        return "\n".join(said) or f"The simplest is {best}, significantly so (paired, simultaneous 95% intervals)."

    def __str__(self) -> str:
        title = f"{self.describe()}, simplest first"
        return "\n".join([title, *align_columns(self.rows()), self.conclude(), *self.warnings()])

    def warnings(self) -> list[str]:
        """List notes on the comparison, and each of the measurements once, with the names of its models."""
        about: dict[str, list[str]] = {}
        if self.normalized and self._settings.output == "softmax":
            about[
                "this is of the probabilities. The normalized value that follows the gap of ConvNets is that of the "
                "logits: use output='identity'."
            ] = self.ranking
        for list_notes in (note_uniform, Measurement.notes):
            for name, measurement in self.measurements.items():
                for note in list_notes(measurement):
                    about.setdefault(note, []).append(name)
        return [
            f"note: {note}" if len(names) == len(self.measurements) else f"note on {', '.join(names)}: {note}"
            for note, names in about.items()
        ]

    def __repr__(self) -> str:
        return f"Comparison({' < '.join(self.ranking)})"


def compare(
    models: "Mapping[str, Model | Measurement] | Sequence[Model | Measurement]",
    inputs: Any = None,
    *,
    normalized: bool = False,
    proxies: str | Iterable[str] = (),
    proxy_examples: int = 2048,
    **settings: Any,
) -> Comparison:
    """Measure several models on the same paths and compare them path by path: model selection without labels.

    The differences ED_a(p) − ED_b(p) vary much less than the effective degrees, so that small ones can be significant.

    Args:
        models: At least two models: a dict by name, or a list, whose models are called by their classes. Measurements,
            such as saved ones, are compared as they are, without ``inputs``.
        inputs: The examples, of any kind that :func:`effdeg.measure` accepts.
        normalized: Compare the normalized effective degree; that of the logits needs ``output="identity"``.
        proxies: Names of proxies to evaluate as well; see :func:`effdeg.proxies.names`. Those that need labels take
            them from the items of ``inputs``, such as ``TensorDataset(images, labels)``; the loss is cross entropy.
        proxy_examples: The number of examples for proxies, drawn from ``inputs``.
        **settings: Any setting of :func:`effdeg.measure` except ``tolerance``, for all models.

    Returns:
        The ranking, and every difference with its interval.

    Raises:
        ValueError: If there are fewer than two models; if they or measurements differ in outputs, precision (half and
            full), paths, data or settings, which is checked on one path of each first; if a proxy is unknown or needs
            what is missing; or as :func:`effdeg.measure` does.
        TypeError: If ``models`` is not a dict with strings as names or a list, or ``inputs`` are missing, or given with
            measurements; or as :func:`effdeg.measure` does.

    Example:
        >>> import effdeg, torch
        >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        >>> models = {"wave": lambda x: torch.sin(9 * x), "line": lambda x: 0.1 * x}
        >>> comparison = effdeg.compare(models, x, output="identity", paths=50)
        >>> comparison.ranking, comparison.differences()[0].significant
        (['line', 'wave'], True)
        >>> effdeg.compare([effdeg.measure(f, x, paths=30) for f in (torch.exp, torch.tanh)])
        Comparison(tanh < exp)
    """
    named = name_models(models)
    measured = {name: each for name, each in named.items() if isinstance(each, Measurement)}
    names = [proxies] if isinstance(proxies, str) else list(proxies)
    if measured:
        if len(measured) < len(named):
            raise TypeError(f"{next(iter(measured))!r} is a measurement, and others are models: measure all or none.")
        if inputs is not None or names or settings:
            raise TypeError("measurements are compared as they are: give no inputs, proxies or settings with them.")
        check_comparable(measured)
        return _rank(measured, normalized, {})
    if inputs is None:
        raise TypeError("inputs are missing: give the examples that the models are measured on.")
    if settings.get("tolerance") is not None:
        raise ValueError("tolerance= would give each model its own number of paths; set paths= to compare models.")
    check_count("paths", settings.get("paths", 1), least=1)
    check_count("proxy_examples", proxy_examples, least=1)
    progress = settings.pop("progress", False)
    # An iterable of batches can be read only once; a loader may draw.
    with seed_everything(check_count("seed", settings.get("seed", 0), least=0)):
        # What pads the prompts of one language model may do so for all, as their mask says what does.
        prompts = read_prompts(inputs, settings.get("tokenizer"), next(iter(named.values())))
        examples = _read_examples(prompts, names)
    # One path of each shows what cannot be compared, before hours are spent on it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = {}
        for name, model in named.items():
            with naming(name):
                first[name] = measure(model, examples, **settings | {"paths": 1})
        check_comparable(first)
    tables = _evaluate(named, examples, names, settings | {"examples": proxy_examples}) if names else {}
    for number, (name, model) in enumerate(named.items(), start=1):
        title = f"{name} ({number}/{len(named)})"
        with naming(name):
            measured[name] = measure(model, examples, **settings, progress=progress and title)
    check_comparable(measured)  # a data set that draws may return other examples for the other paths
    return _rank(measured, normalized, tables)


def name_models(models: object) -> dict[str, Any]:
    """Return models by name; in a list, by their classes, numbered where these are the same."""
    if isinstance(models, list | tuple):
        kinds = [each.settings.model if isinstance(each, Measurement) else model_name(each) for each in models]
        numbers = [kinds[: index + 1].count(kind) for index, kind in enumerate(kinds)]
        names = [kind if kinds.count(kind) == 1 else f"{kind} {n}" for kind, n in zip(kinds, numbers, strict=True)]
        models = dict(zip(names, models, strict=True))
    if not isinstance(models, Mapping):
        raise TypeError(f"models must be a dict of models by name, or a list, not a {type(models).__name__}.")
    if len(models) < 2:
        raise ValueError(f"at least two models are needed, not {len(models)}.")
    for name in models:
        if not isinstance(name, str):
            raise TypeError(f"models must have strings as names, such as {str(name)!r} instead of {name!r}.")
    return dict(models)


def _rank(measurements: Mapping[str, Measurement], normalized: bool, proxies: Mapping[str, Table]) -> Comparison:
    ranking = sorted(measurements, key=lambda name: measurements[name].estimate(normalized=normalized)[0])
    tables = {name: proxies[name] for name in ranking if name in proxies}
    return Comparison({name: measurements[name] for name in ranking}, normalized, tables)


def _read_examples(inputs: Any, proxies: Sequence[str]) -> Examples:
    """Read the examples, with labels if a proxy needs them; what else their entries are depends on the model."""
    check_names(proxies)
    needs = {need: name for name in proxies for need in find_needs(name)}
    for need in ("reference", "labeled", "change"):
        if need in needs:
            raise ValueError(
                f"proxies={needs[need]!r} needs {need}=…, which a comparison does not have: evaluate it with "
                "effdeg.proxies.evaluate."
            )
    if "labels" not in needs:
        return as_examples(inputs)
    # A tensor, or a tuple or dict of them, holds the arguments of the model.
    arguments = isinstance(inputs, Tensor | np.ndarray | tuple | Mapping) or hasattr(inputs, "__dataclass_fields__")
    labeled = as_examples(inputs, labeled=not arguments)
    if arguments or split_labels(labeled.fetch([0]))[1] is None:
        raise ValueError(
            f"proxies={needs['labels']!r} needs labels, and the inputs hold none: give a data set or loader of inputs "
            "with labels, such as torch.utils.data.TensorDataset(images, labels)."
        )
    return labeled


def _evaluate(
    models: Mapping[str, Model], data: Examples, names: Sequence[str], settings: Mapping[str, Any]
) -> dict[str, Table]:
    """Evaluate the proxies of each model; some compare it with the others."""
    options: Any = {name: settings[name] for name in RunOptions.__annotations__ if name in settings}
    tables = {}
    for name, model in models.items():
        others = [other for other in models.values() if other is not model] if "disagreement" in names else None
        with naming(name), warnings.catch_warnings():
            warnings.simplefilter("ignore", DataNote)  # the measurement has it
            tables[name] = evaluate(model, data, cross_entropy, names=names, others=others, **options)
    return tables


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
        # With a tolerance, of as many paths as were asked for; their examples differ then, too.
        same = reference.settings.paths == measurement.settings.paths
        if same and len(reference.per_path) != len(measurement.per_path):
            differences = [f"paths that were run: {len(reference.per_path)} and {len(measurement.per_path)}"]
        if differences:
            raise ValueError(
                f"{reference_name!r} and {name!r} cannot be compared. They differ in {'; '.join(differences)}. Measure "
                "models for the same task on the same examples, with the same settings."
            )
