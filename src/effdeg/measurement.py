"""The result of measuring a model: one number, its error bar, and what lies behind them."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from effdeg._shapes import Float, Int
from effdeg.statistics import interval, mean_and_stderr
from effdeg.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
RESIDUAL_LIMIT = 0.05
"""Above this residual a measurement warns."""

UPPER_HALF_LIMIT = 0.1
"""Above this share of the value in the upper half of the degrees a measurement warns. In docs/estimator.md that catches
all values that are more than 5% off, of which the residual sees less than half, and warns of many that are not."""

_DESCRIPTIVE = {"dtype", "version", "tolerance", "data", "weights", "weights_sha256", "preprocessing"}
"""Settings that may differ between measurements that are compared."""

_TENSORS = ("per_path", "per_path_normalized", "pairs", "spectrum", "spectrum_stderr")


@dataclass(frozen=True)
class Settings:
    """The settings a measurement was made with: given the model and the data, they determine it.

    The last four fields are filled by the command line, which reads files: ``data`` and ``weights`` as they were given,
    the SHA-256 of the weights, and what was done to the examples when they were read.
    """

    paths: int
    nodes: int
    sampling: str
    degree: int
    basis: str
    output: str
    components: int | None
    at: str | None
    seed: int
    damping: float
    tolerance: float | None
    examples: int
    dtype: str | None
    version: str = __version__
    data: str | None = None
    weights: str | None = None
    weights_sha256: str | None = None
    preprocessing: str | None = None

    def comparable_with(self, other: "Settings") -> bool:
        """Tell whether two measurements ran along the same paths and mean the same thing, whatever the models."""
        own, others = asdict(self), asdict(other)
        return all(own[name] == others[name] for name in own if name not in _DESCRIPTIVE)


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
        """Give the mean over paths and its standard error, raw or normalized."""
        return mean_and_stderr(self.sample(normalized=normalized))

    def sample(self, *, normalized: bool = False) -> Float[Tensor, " paths"]:
        """Give the effective degree along each path, raw or normalized."""
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
        """Give the interval that covers the true mean over pairs with probability ``level``."""
        return interval(*self.estimate(normalized=normalized), count=len(self.per_path), level=level)

    def plot(self, *, theme: str = "light") -> "Figure":
        """Draw the spectrum with its intervals and the distribution over paths. Needs ``effdeg[plots]``."""
        from effdeg.plots import plot_measurement

        return plot_measurement(self, theme=theme)

    def save(self, file: str | Path) -> Path:
        """Write the measurement, losing nothing, to a ``.json`` or ``.safetensors`` file."""
        file = _checked_suffix(Path(file))
        if file.suffix == ".safetensors":
            from safetensors.torch import save_file

            header = {
                "effdeg": json.dumps({"format": FORMAT, "residual": self.residual, "settings": asdict(self.settings)})
            }
            save_file({name: getattr(self, name).contiguous() for name in _TENSORS}, file, metadata=header)
        else:
            file.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        return file

    @classmethod
    def load(cls, file: str | Path) -> "Measurement":
        """Read a measurement that :meth:`save` wrote."""
        file = _checked_suffix(Path(file))
        try:
            if file.suffix == ".safetensors":
                from safetensors import safe_open

                with safe_open(file, "pt") as stored:
                    header = json.loads(stored.metadata()["effdeg"])
                    tensors = {name: stored.get_tensor(name) for name in _TENSORS}
            else:
                header = json.loads(file.read_text())
                tensors = {name: _tensor(name, header[name]) for name in _TENSORS}
            if header["format"] != FORMAT:
                raise ValueError(f"it has format {header['format']}, this version reads {FORMAT}")
            return cls(**tensors, residual=header["residual"], settings=Settings(**header["settings"]))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise ValueError(f"{file} is not a measurement that effdeg saved: {error}.") from error

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain numbers and lists, the summary first."""
        low, high = self.interval()
        return {
            "format": FORMAT,
            "value": self.value,
            "stderr": finite(self.stderr),
            "interval": finite([low, high]),
            "normalized": self.normalized,
            "normalized_stderr": finite(self.normalized_stderr),
            "residual": self.residual,
            "upper_half": self.upper_half,
            "settings": asdict(self.settings),
            **{name: finite(getattr(self, name).tolist()) for name in _TENSORS},
        }

    def __str__(self) -> str:
        settings, (low, high) = self.settings, self.interval()
        names = {"softmax": "probabilities", "sigmoid": "probabilities", "identity": "raw outputs"}
        what = names.get(settings.output, settings.output)
        reduced = f", first {settings.components} principal components" if settings.components else ""
        lines = [
            f"effective degree  {self.value:.4g} ± {self.stderr:.2g}  (95% interval {low:.4g} to {high:.4g})",
            f"normalized        {self.normalized:.4g} ± {self.normalized_stderr:.2g}",
            f"{len(self.per_path)} paths × {settings.nodes} {settings.sampling} nodes at "
            f"{settings.at or 'the inputs'}, {settings.basis} degree {settings.degree}, {what}{reduced}; "
            f"the fit misses {self.residual:.2g} of the variation",
        ]
        return "\n".join([*lines, *self.warnings()])

    def warnings(self) -> list[str]:
        """Say, in sentences, what a reader should not overlook."""
        found = []
        settings = self.settings
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
        if settings.tolerance is not None and self.stderr > settings.tolerance * abs(self.value):
            found.append(
                f"note: {len(self.per_path)} paths did not reach the tolerance of {settings.tolerance:g}; raise paths=."
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


def finite(numbers: Any) -> Any:
    """Write infinities, which JSON does not know, as None, in a number or lists of numbers."""
    if isinstance(numbers, list):
        return [finite(number) for number in numbers]
    return numbers if math.isfinite(numbers) else None


def _tensor(name: str, numbers: list[Any]) -> Tensor:
    if name == "pairs":
        return torch.tensor(numbers, dtype=torch.int64)
    return torch.tensor([math.inf if number is None else number for number in numbers], dtype=torch.float64)
