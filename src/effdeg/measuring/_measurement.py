"""The result of measuring a model: one number, its error bar, and the settings behind them."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from effdeg._adapters.paths import draw_nodes
from effdeg._utils.checks import pluralize, shorten
from effdeg._utils.files import replace_nonfinite, write_json
from effdeg._utils.shapes import Float, Int
from effdeg._utils.statistics import format_estimate, format_interval, interval, mean_and_stderr
from effdeg._utils.tables import Rows, make_frame, render_tables
from effdeg._version import __version__
from effdeg.functional import fit_operator
from effdeg.functional._conditioning import describe_ill_conditioning
from effdeg.measuring._record import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

FORMAT = 2
"""The version of the file format, raised when older files become unreadable. Files record what was measured since 2."""

_TENSORS = ("per_path", "per_path_normalized", "pairs", "spectrum", "spectrum_stderr")


def describe_rounding(dtype: str | None) -> str | None:
    """Describe what to do about half precision; return None for any other."""
    if dtype not in {"float16", "bfloat16"}:
        return None
    return f"the model runs in {dtype}, whose rounding counts as complexity; use dtype=torch.float32, and no autocast."


@dataclass(frozen=True, eq=False, repr=False)
class Measurement:
    """The effective degree of a model on some data, with its error bar. :func:`effdeg.measure` returns it.

    Its error bars say how well these paths determine the mean over all pairs of the given examples, not over other
    data. ``print(measurement)`` shows the value, the settings and the notes of :meth:`warnings`.

    Attributes:
        per_path: The effective degree along each path, Σ_k k |c_k| averaged over outputs.
        per_path_normalized: The normalized effective degree along each path, Σ_k k |c_k| / Σ_k |c_k|.
        pairs: The indices of the two examples that each path joins; α = 1 at the first.
        spectrum: The mean of |c_k| over paths and outputs, for each degree k.
        spectrum_stderr: Its standard error.
        residual: The share of the variance along the paths that the fit misses: near 0 is good; above a few percent,
            the degree is too low for this model. With ``nodes == degree + 1`` it is 0 for any model.
        settings: What was measured, and how.
        confidence: The largest probability, averaged over the nodes of all paths; None unless of one softmax.
        RESIDUAL_LIMIT: Above this residual a measurement warns.
        UPPER_HALF_LIMIT: Above this :attr:`upper_half` a measurement warns; docs/results/estimator.md has the reason.

    Example:
        >>> import effdeg, torch
        >>> inputs = torch.tensor([[-1.0], [1.0]])
        >>> measured = effdeg.measure(torch.square, inputs, degree=4, output="identity")  # x² = (T_0 + T_2) / 2
        >>> measured.spectrum.round(decimals=4)
        tensor([0.5000, 0.0000, 0.5000, 0.0000, 0.0000], dtype=torch.float64)
        >>> round(measured.value, 4), round(measured.normalized, 4)
        (1.0, 1.0)
    """

    RESIDUAL_LIMIT: ClassVar[float] = 0.05
    UPPER_HALF_LIMIT: ClassVar[float] = 0.1

    per_path: Float[Tensor, " paths"]
    per_path_normalized: Float[Tensor, " paths"]
    pairs: Int[Tensor, "paths 2"]
    spectrum: Float[Tensor, " degrees"]
    spectrum_stderr: Float[Tensor, " degrees"]
    residual: float
    settings: Settings
    confidence: float | None = None

    def estimate(self, *, normalized: bool = False) -> tuple[float, float]:
        """Return the mean over paths and its standard error, raw or normalized."""
        return mean_and_stderr(self.sample(normalized=normalized))

    def sample(self, *, normalized: bool = False) -> Float[Tensor, " paths"]:
        """Return the effective degree along each path, raw or normalized."""
        return self.per_path_normalized if normalized else self.per_path

    @property
    def value(self) -> float:
        """The effective degree, the mean over paths."""
        return self.estimate()[0]

    @property
    def stderr(self) -> float:
        """The standard error of the effective degree."""
        return self.estimate()[1]

    @property
    def normalized(self) -> float:
        """The normalized effective degree, the mean over paths, a degree between 0 and the highest fitted one."""
        return self.estimate(normalized=True)[0]

    @property
    def normalized_stderr(self) -> float:
        """The standard error of the normalized effective degree."""
        return self.estimate(normalized=True)[1]

    @property
    def upper_half(self) -> float:
        """The share of the value in the upper half of the degrees, Σ_{k>K/2} k |c_k| / Σ_k k |c_k|.

        Above a tenth, a higher degree may find notably more. For a piecewise linear function it always does: there the
        value grows with the logarithm of the degree.
        """
        weighted = self.spectrum.new_tensor(range(len(self.spectrum))) * self.spectrum
        total = weighted.sum().item()
        return weighted[(len(weighted) + 1) // 2 :].sum().item() / total if total > 0 else 0.0

    def interval(self, *, normalized: bool = False) -> tuple[float, float]:
        """Return the interval that covers the true mean over pairs with a probability of 95%, by Student's t."""
        return interval(*self.estimate(normalized=normalized), count=len(self.per_path))

    def plot(self, *, theme: str = "light") -> "Figure":
        """Draw the spectrum with its intervals and the distribution over paths. Needs the extra ``plots``."""
        from effdeg.plots import plot_measurement

        return plot_measurement(self, theme=theme)

    def save(self, file: str | Path) -> Path:
        """Write the measurement without loss to a ``.json`` file, completely or not at all.

        Returns:
            The file, for :meth:`load`.

        Raises:
            ValueError: If the file has another suffix.

        Example:
            >>> import effdeg, tempfile, torch
            >>> measured = effdeg.measure(torch.tanh, torch.randn(10, 3), paths=5)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     again = effdeg.Measurement.load(measured.save(f"{folder}/tanh.json"))
            >>> again.value == measured.value
            True
        """
        file = Path(file)
        if file.suffix != ".json":
            raise ValueError(f"{file} has the suffix {file.suffix!r}; a measurement is kept in a .json file.")
        write_json(file, self.to_dict())
        return file

    @classmethod
    def load(cls, file: str | Path) -> "Measurement":
        """Read a measurement that :meth:`save` wrote.

        Raises:
            ValueError: If the file is not a measurement, is damaged, or was saved in another format version.
            FileNotFoundError: If there is no such file.
        """
        try:
            record = json.loads(Path(file).read_text(encoding="utf-8"))
        except (IsADirectoryError, ValueError, RecursionError) as error:
            raise ValueError(f"{file} is not a measurement that effdeg saved: {error}.") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(
                f"{file} is not a measurement of format {FORMAT}, which this version of effdeg ({__version__}) reads. "
                "If another version saved it, read it with that, or measure again."
            )
        try:
            # JSON has only lists.
            settings: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in record["settings"].items()
            }
            read = {name: _tensor(name, record[name]) for name in _TENSORS}
            if len({len(read[name]) for name in ("per_path", "per_path_normalized", "pairs")}) > 1:
                raise ValueError("its numbers of paths differ")
            confidence = record.get("confidence")  # older files have none
            return cls(**read, residual=record["residual"], settings=Settings(**settings), confidence=confidence)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{file} is a measurement that was changed or damaged: {error}.") from error

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists, the summary first."""
        summary = ("value", "stderr", "normalized", "normalized_stderr", "residual", "upper_half", "confidence")
        everything: dict[str, Any] = replace_nonfinite({
            "format": FORMAT,
            **{name: getattr(self, name) for name in summary},
            "interval": self.interval(),
            "notes": self.warnings(),
            "settings": asdict(self.settings),
            **{name: getattr(self, name).tolist() for name in _TENSORS},
        })
        return everything

    def to_frame(self) -> "DataFrame":
        """Return a data frame, a row per path: its two examples, its effective degree. Needs the extra ``pools``."""
        degrees = zip(self.pairs.tolist(), self.per_path.tolist(), self.per_path_normalized.tolist(), strict=True)
        names = ("first", "second", "effective_degree", "effective_degree_normalized")
        return make_frame(dict(zip(names, (*pair, *values), strict=True)) for pair, *values in degrees)

    def rows(self) -> Rows:
        """Return a table of strings with the results and the settings: the effective degree first, as its header."""
        settings, rows = self.settings, []
        where = f"{settings.sampling}, at {settings.at or 'the inputs'}"
        for normalized, label in ((False, "effective degree"), (True, "normalized")):
            estimate = format_estimate(*self.estimate(normalized=normalized))
            rows.append([label, f"{estimate} (95% interval {format_interval(*self.interval(normalized=normalized))})"])
        rows += [
            ["paths", f"{len(self.per_path)} × {settings.nodes} nodes ({where})"],
            ["fit", f"{settings.basis} degree {settings.degree} (misses {self.residual:.2g} of the variation)"],
            ["fitted", settings.describe_outputs()],
            ["model", settings.model],
            ["data", f"{f'{settings.data}, ' if settings.data else ''}{settings.examples} examples"],
        ]
        checksum = f" (SHA-256 {settings.weights_sha256[:12]}…)" if settings.weights_sha256 else ""
        more = {"preprocessing": settings.preprocessing, "weights": settings.weights and settings.weights + checksum}
        return [*rows, *([label, text] for label, text in more.items() if text)]

    def _repr_html_(self) -> str:
        return render_tables([("", self.rows())], self.warnings())

    def __str__(self) -> str:
        settings = self.settings
        weights = f" with {settings.weights}" if settings.weights else ""
        data = f", on {settings.data}" if settings.data else ""
        paths = f"{len(self.per_path)} paths" if len(self.per_path) > 1 else "1 path"
        lines = [
            f"effective degree  {format_estimate(self.value, self.stderr)}  "
            f"(95% interval {format_interval(*self.interval())})",
            f"normalized        {format_estimate(self.normalized, self.normalized_stderr)}",
            f"{settings.model}{weights}{data}: {settings.describe_outputs()}",
            f"{paths} × {settings.nodes} {settings.sampling} nodes at "
            f"{settings.at or 'the inputs'}, {settings.basis} degree {settings.degree}; "
            f"the fit misses {self.residual:.2g} of the variation",
        ]
        return "\n".join([*lines, *self.warnings()])

    def warnings(self) -> list[str]:
        """List notes on the measurement, such as a degree that is too low, each as a sentence."""
        return [f"note: {note}" for note in self.notes()]

    def notes(self, *, fixed_output: bool = False) -> Iterator[str]:
        """Yield the sentences of :meth:`warnings`; those for a caller with a fixed output do not advise another one."""
        settings = self.settings
        if settings.other_tensors:
            another = "" if fixed_output else "output=lambda returned: …, or "
            yield (
                f"the model returned several tensors; {settings.tensor} was measured, not "
                f"{shorten(settings.other_tensors)}. To measure another, use {another}a model that returns it alone."
            )
        if settings.output == "softmax" and settings.tensor != "logits" and len(settings.outputs) > 1:
            advice = "If these are not logits with the classes last, use a model that returns such logits."
            if not fixed_output:
                advice = (
                    "If these are features and not logits, use output='identity'; if the classes come first, "
                    "output=lambda returned: returned.softmax(1)."
                )
            yield f"softmax is over the last of {' × '.join(map(str, settings.outputs))} outputs. {advice}"
        components = settings.count_components(math.prod(settings.outputs))
        if components != settings.components:
            outputs = pluralize(math.prod(settings.outputs), "output")
            outputs += " that sum to 1" if settings.output == "softmax" else ""
            yield (
                f"components={settings.components}, but {outputs} can have no more than {components}: the value is "
                f"that of components={components}."
            )
        yield from settings.notes
        if problem := describe_rounding(settings.dtype):
            yield problem
        if settings.new_norms:
            yield (
                f"no batch has given running statistics to {pluralize(len(settings.new_norms), 'BatchNorm layer')} "
                f"({shorten(settings.new_norms)}): the network was not trained, or was saved or loaded without them."
            )
        size = float(self.spectrum[0])
        if self.value <= settings.degree * torch.finfo(torch.float64).eps * size:  # the rounding of the fit
            yield "the outputs are constant along the paths, up to rounding."
            return
        if problem := describe_ill_conditioning(settings.sampling, settings.nodes, settings.degree):
            yield problem
            return
        precision, rounding = "float64" if settings.dtype == "float64" else "float32", self._estimate_rounding()
        advice = "Use dtype=torch.float64." if precision == "float32" else "Subtract their mean in the model."
        if self.value <= 1.5 * rounding:
            yield (
                f"the outputs (about {size:.2g}) vary along the paths by no more than their rounding to {precision}: "
                f"the value is noise. {advice}"
            )
            return
        if rounding > 0.01 * self.value:
            yield (
                f"the outputs (about {size:.2g}) are rounded to {precision}, which adds roughly {rounding:.2g} to "
                f"the value ({rounding / self.value:.0%} of it). {advice}"
            )
        if settings.nodes == settings.degree + 1:
            yield "nodes = degree + 1, so the fit goes through every value and cannot show what it misses."
        elif self.residual > self.RESIDUAL_LIMIT:
            yield f"the fit misses {self.residual:.0%} of the variation; a higher degree= would capture more of it."
        if settings.degree > 1 and self.upper_half > self.UPPER_HALF_LIMIT:
            yield (
                f"{self.upper_half:.0%} of the value lies in the upper half of the degrees; a higher degree=, "
                "with nodes= to match, may find more. Compare only at equal degree."
            )
        if (pairs := settings.examples * (settings.examples - 1) // 2) < len(self.per_path):
            yield (
                f"{pluralize(settings.examples, 'example')} have only {pluralize(pairs, 'pair')} for "
                f"{len(self.per_path)} paths, so the error bar says nothing about other examples; measure on more."
            )
        if settings.tolerance is not None and self.stderr > settings.tolerance * abs(self.value):
            yield f"{len(self.per_path)} paths did not reach the tolerance of {settings.tolerance:g}; raise paths=."

    def _estimate_rounding(self) -> float:
        """Return the effective degree of the rounding of outputs alone: of independent errors at the nodes.

        Numbers from 2ⁿ to 2ⁿ⁺¹ are multiples of u = 2ⁿ eps: errors of variance u² / 12, so those of c_k about normal.
        """
        settings, size = self.settings, float(self.spectrum[0])
        if size == 0 or not math.isfinite(size):
            return 0.0
        eps = torch.finfo(torch.float64 if settings.dtype == "float64" else torch.float32).eps
        error = 2.0 ** math.floor(math.log2(size)) * eps / math.sqrt(12)
        alpha = draw_nodes(settings.sampling, settings.nodes, slice(0, 1), seed=settings.seed).reshape(-1)
        amplified = fit_operator(alpha, settings.degree, settings.basis, settings.damping).norm(dim=1)
        degrees = torch.arange(settings.degree + 1, device=amplified.device)
        return float((degrees * amplified).sum()) * error * math.sqrt(2 / math.pi)

    def __repr__(self) -> str:
        return f"Measurement(value={self.value:.6g}, stderr={self.stderr:.2g}, paths={len(self.per_path)})"


def _tensor(name: str, numbers: Any) -> Tensor:
    if name == "pairs":
        return torch.tensor(numbers, dtype=torch.int64, device="cpu")
    finite = [math.inf if number is None else number for number in numbers]
    return torch.tensor(finite, dtype=torch.float64, device="cpu")
