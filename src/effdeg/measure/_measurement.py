"""The result of measuring a model: one number, its error bar, and what lies behind them."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from effdeg._models.outputs import Described, output_name
from effdeg._models.settings import FitSettings, PathSettings
from effdeg._utils.checks import shorten
from effdeg._utils.files import finite, write_atomically, write_json
from effdeg._utils.shapes import Float, Int
from effdeg._utils.statistics import format_estimate, format_interval, interval, mean_and_stderr
from effdeg._version import __version__
from effdeg.functional._conditioning import describe_ill_conditioning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 2
"""Rises when files of older versions cannot be read any more. 2: what was measured is recorded."""

RESIDUAL_LIMIT = 0.05
"""Above this residual a measurement warns."""

UPPER_HALF_LIMIT = 0.1
"""Above this share of the value in the upper half of the degrees a measurement warns. In docs/estimator.md that catches
all values that are more than 5% off, of which the residual sees less than half, and warns of many that are not."""

_TENSORS = ("per_path", "per_path_normalized", "pairs", "spectrum", "spectrum_stderr")


_DESCRIPTIVE = {
    *("model", "tensor", "other_tensors", "tolerance", "version"),
    *("data", "weights", "weights_sha256", "preprocessing"),
}
"""Settings in which comparable measurements may differ."""


@dataclass(frozen=True, kw_only=True)
class PathRecord(PathSettings):
    """Which paths a model was run along, and which model that was."""

    examples: int
    dtype: str | None
    model: str
    fingerprint: str

    def __post_init__(self) -> None:
        """Check nothing: what was measured is a fact."""


@dataclass(frozen=True, kw_only=True)
class Settings(FitSettings, PathRecord):
    """What was measured, and how.

    Attributes:
        paths: How many paths, at most.
        nodes: How many points on each path.
        sampling: How the nodes are placed.
        at: The name of the layer at which the paths live, if not the inputs.
        seed: Determines pairs and nodes.
        degree: The highest degree of the fitted polynomials.
        basis: The basis of the polynomials.
        output: What was made of the model's output: ``softmax``, ``sigmoid``, ``identity`` or a function's name.
        components: How many principal components were fitted, if not all outputs.
        damping: The paper's eps in the fit.
        tolerance: The relative standard error that was asked for.
        examples: How many examples the pairs were drawn from.
        dtype: The precision that the model ran in, or that of what it returned if that is coarser.
        model: The class of the model, or the name of the function.
        tensor: Which of the tensors that the model returned was fitted: ``output`` if it returned just one, ``logits``,
            a key, ``[0]`` …; None if ``output`` is a function, which got them all.
        other_tensors: The tensors that could have been meant as well, if one had to be chosen.
        outputs: The shape of the fitted values of one example.
        fingerprint: A hash of the examples at the ends of the first 16 paths, as they were given. The same for any
            model, batch size and number of processes; other data, or other preprocessing, have another.
        version: The version of effdeg.
        data: Where the examples came from, if that is known: the command line fills this in and what follows.
        weights: The file of the weights.
        weights_sha256: Its checksum.
        preprocessing: What was done to the examples.
    """

    tolerance: float | None
    tensor: str | None
    other_tensors: tuple[str, ...]
    outputs: tuple[int, ...]
    version: str = __version__
    data: str | None = None
    weights: str | None = None
    weights_sha256: str | None = None
    preprocessing: str | None = None

    def __post_init__(self) -> None:
        """Check nothing: the record of a function's name as the output is no valid setting."""
    @classmethod
    def of(
        cls, paths: PathRecord, fit: FitSettings, outputs: Described, *, tolerance: float | None = None
    ) -> "Settings":
        """Put together what is known of the paths, the fit and the outputs."""
        together = {**vars(paths), **vars(fit), **vars(outputs), "output": output_name(fit.output)}
        # A function has no precision but that of what it returns, and autocast may return less than the weights have.
        known = filter(None, (paths.dtype, outputs.dtype))
        together["dtype"] = max(known, key=lambda name: torch.finfo(getattr(torch, name)).eps)
        return cls(**together, tolerance=tolerance)

    def comparable_with(self, other: "Settings") -> bool:
        """Return whether two measurements ran along the same paths and mean the same thing, whatever the models."""
        return not self.differences(other)

    def differences(self, other: "Settings") -> list[str]:
        """List what makes two measurements incomparable, with both values, such as ``degree: 40 and 20``."""
        own, others = asdict(self), asdict(other)
        compared = [name for name in own if name not in _DESCRIPTIVE]
        names = [name for name in compared if _meaning(name, own[name]) != _meaning(name, others[name])]
        if len(names) > 1 and {"paths", "seed", "examples"} & set(names):
            # Other pairs are drawn, so that the fingerprint says nothing about the data.
            names = [name for name in names if name != "fingerprint"]
        return [_difference(name, own[name], others[name]) for name in names]

    def describe_outputs(self) -> str:
        """Describe the fitted values, such as ``probabilities (softmax) of logits, 10 outputs``."""
        transformed = {"softmax": "probabilities (softmax)", "sigmoid": "probabilities (sigmoid)"}
        if self.tensor is None:
            what = f"{self.output} of what the model returned"
        else:
            what = transformed.get(str(self.output), "raw values")
            what += f" of {self.tensor}" if self.tensor != "output" else ""
        size = " × ".join(map(str, self.outputs)) or "1"
        reduced = f", first {self.components} principal components" if self.components else ""
        return f"{what}, {size} {'output' if size == '1' else 'outputs'}{reduced}"


def _meaning(name: str, value: Any) -> Any:
    """Return what of a setting must be the same for measurements to be comparable."""
    if name == "outputs":
        return tuple(size for size in value if size != 1)  # a number per example may be of shape () or (1,)
    # Only the rounding of half precision looks complex.
    return "float32" if name == "dtype" and value == "float64" else value


def _difference(name: str, one: object, other: object) -> str:
    named = {
        "outputs": "shape of the outputs of one example",
        "fingerprint": "examples (by their fingerprint)",
        "dtype": "precision",
    }
    remedy = " (rounding looks complex: pass dtype=torch.float32)" if name == "dtype" else ""
    return f"{named.get(name, name)}: {one} and {other}{remedy}"


@dataclass(frozen=True, eq=False, repr=False)
class Measurement:
    """The effective degree of a model on some data, with its error bar.

    The error bars say how well this many paths determine the mean over all pairs of the given examples; they do not
    speak of other data.

    Attributes:
        per_path: The effective degree along each path.
        per_path_normalized: The normalized effective degree along each path.
        pairs: The indices of the two examples that each path joins; alpha = 1 at the first, 0 at the second.
        spectrum: The mean of |c_k| over paths and outputs, for each degree k.
        spectrum_stderr: Its standard error.
        residual: The share of the variation along the paths (their variance) that the fit misses. Near 0 is good; much
            above a few per cent, the degree is too low for this model. With ``nodes == degree + 1`` the polynomial goes
            through every value and the residual is 0 whatever the model.
        settings: What it was made with.
    """

    per_path: Float[Tensor, " paths"]
    per_path_normalized: Float[Tensor, " paths"]
    pairs: Int[Tensor, "paths 2"]
    spectrum: Float[Tensor, " degrees"]
    spectrum_stderr: Float[Tensor, " degrees"]
    residual: float
    settings: Settings

    def estimate(self, *, normalized: bool = False) -> tuple[float, float]:
        """Return the mean over paths and its standard error, raw or normalized."""
        return mean_and_stderr(self.sample(normalized=normalized))

    def sample(self, *, normalized: bool = False) -> Float[Tensor, " paths"]:
        """Return the effective degree along each path, raw or normalized."""
        return self.per_path_normalized if normalized else self.per_path

    @property
    def value(self) -> float:
        """The effective degree: the mean over paths."""
        return self.estimate()[0]

    @property
    def stderr(self) -> float:
        """The standard error of the effective degree."""
        return self.estimate()[1]

    @property
    def normalized(self) -> float:
        """The normalized effective degree: the mean over paths, a degree between 0 and the highest fitted one."""
        return self.estimate(normalized=True)[0]

    @property
    def normalized_stderr(self) -> float:
        """The standard error of the normalized effective degree."""
        return self.estimate(normalized=True)[1]

    @property
    def upper_half(self) -> float:
        """The share of the value that lies in the upper half of the degrees: what the last doubling of them brought.

        Above a tenth, a higher degree may find notably more. For a piecewise linear function it always does: there the
        value grows with the logarithm of the degree.
        """
        weighed = torch.arange(len(self.spectrum), dtype=self.spectrum.dtype) * self.spectrum
        whole = weighed.sum().item()
        return weighed[(len(weighed) + 1) // 2 :].sum().item() / whole if whole > 0 else 0.0

    def interval(self, level: float = 0.95, *, normalized: bool = False) -> tuple[float, float]:
        """Return the interval that covers the true mean over pairs with probability ``level``."""
        return interval(*self.estimate(normalized=normalized), count=len(self.per_path), level=level)

    def plot(self, *, theme: str = "light") -> "Figure":
        """Draw the spectrum with its intervals and the distribution over paths. Needs ``effdeg[plots]``."""
        from effdeg.plots import plot_measurement

        return plot_measurement(self, theme=theme)

    def save(self, file: str | Path) -> Path:
        """Write the measurement, losing nothing, to a ``.json`` or ``.safetensors`` file, completely or not at all."""
        file = _checked_suffix(Path(file))
        if file.suffix == ".safetensors":
            from safetensors.torch import save

            header = {"format": FORMAT, "residual": self.residual, "settings": asdict(self.settings)}
            tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
            write_atomically(file, save(tensors, metadata={"effdeg": json.dumps(header)}))
        else:
            write_json(file, self.to_dict())
        return file

    @classmethod
    def load(cls, file: str | Path) -> "Measurement":
        """Read a measurement that :meth:`save` wrote."""
        file = _checked_suffix(Path(file))
        try:
            header, tensors = _read(file)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{file} is not a measurement that effdeg saved: {error}.") from error
        if not isinstance(header, dict) or not {"format", "residual", "settings"} <= set(header):
            raise ValueError(f"{file} is not a measurement that effdeg saved, though it can be read.")
        if header["format"] != FORMAT:
            raise ValueError(
                f"{file} has format {header['format']}, and this version of effdeg ({__version__}) reads {FORMAT}: "
                f"it was saved by a{'n older' if header['format'] == 1 else 'nother'} version. Measure again, or read "
                "it with the version that saved it."
            )
        try:
            # JSON has lists only.
            settings: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in header["settings"].items()
            }
            found = {name: _tensor(name, tensors[name]) for name in _TENSORS}
            return cls(**found, residual=header["residual"], settings=Settings(**settings))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{file} is a measurement that was changed or damaged: {error}.") from error

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and lists, the summary first."""
        summary = ("value", "stderr", "normalized", "normalized_stderr", "residual", "upper_half")
        everything: dict[str, Any] = finite({
            "format": FORMAT,
            **{name: getattr(self, name) for name in summary},
            "interval": self.interval(),
            "notes": self.warnings(),
            "settings": asdict(self.settings),
            **{name: getattr(self, name).tolist() for name in _TENSORS},
        })
        return everything

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
        """List, in sentences, what a reader should not overlook."""
        settings = self.settings
        found = self._notes_on_outputs()
        if self._constant:
            return [*found, "note: the outputs are constant along the paths, up to rounding."]
        if (problem := describe_ill_conditioning(settings.sampling, settings.nodes, settings.degree)) is not None:
            return [*found, f"note: {problem}"]
        found += self._notes_on_fit()
        if settings.tolerance is not None and self.stderr > settings.tolerance * abs(self.value):
            found.append(
                f"note: {len(self.per_path)} paths did not reach the tolerance of {settings.tolerance:g}; raise paths=."
            )
        return found

    @property
    def _constant(self) -> bool:
        """Whether the value is what rounding, of the outputs and of the damped fit, makes of a constant."""
        settings = self.settings
        eps = torch.finfo(torch.float64 if settings.dtype == "float64" else torch.float32).eps
        level = settings.degree * (eps + settings.damping / settings.nodes)
        return self.value <= level * float(self.spectrum[0])

    def _notes_on_outputs(self) -> list[str]:
        settings, found = self.settings, []
        if settings.other_tensors:
            found.append(
                f"note: the model returned several tensors; {settings.tensor} was measured, not "
                f"{shorten(settings.other_tensors)}. To measure another, use output=lambda returned: …, or a model "
                "that returns it alone."
            )
        if settings.output == "softmax" and settings.tensor != "logits" and len(settings.outputs) > 1:
            found.append(
                f"note: softmax is over the last of {' × '.join(map(str, settings.outputs))} outputs. If these are "
                "features and not logits, use output='identity'."
            )
        return found

    def _notes_on_fit(self) -> list[str]:
        settings, found = self.settings, []
        if settings.nodes == settings.degree + 1:
            found.append(
                "note: nodes = degree + 1, so the fit goes through every value and cannot show what it misses."
            )
        elif self.residual > RESIDUAL_LIMIT:
            found.append(
                f"note: the fit misses {self.residual:.0%} of the variation; a higher degree= would see more of it."
            )
        if settings.degree > 1 and self.upper_half > UPPER_HALF_LIMIT:
            found.append(
                f"note: {self.upper_half:.0%} of the value lies in the upper half of the degrees; a higher degree=, "
                "with nodes= to match, may find more. Compare at equal degree only."
            )
        return found

    def __repr__(self) -> str:
        return f"Measurement(value={self.value:.6g}, stderr={self.stderr:.2g}, paths={len(self.per_path)})"


def _checked_suffix(file: Path) -> Path:
    if file.suffix not in {".json", ".safetensors"}:
        raise ValueError(
            f"{file} has the suffix {file.suffix!r}; a measurement is kept in a .json or .safetensors file."
        )
    return file


def _read(file: Path) -> tuple[Any, Any]:
    """Read a file into a header and what can be made into tensors."""
    if file.suffix == ".json":
        header = json.loads(file.read_text())
        return header, header
    from safetensors import safe_open

    with safe_open(file, "pt") as stored:
        return json.loads((stored.metadata() or {}).get("effdeg", "null")), {
            name: stored.get_tensor(name)
            for name in stored.keys()  # noqa: SIM118  (not a dict)
        }


def _tensor(name: str, numbers: Any) -> Tensor:
    if isinstance(numbers, Tensor):
        return numbers
    if name == "pairs":
        return torch.tensor(numbers, dtype=torch.int64)
    return torch.tensor([math.inf if number is None else number for number in numbers], dtype=torch.float64)
