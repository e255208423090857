"""The record of what was measured, and how."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from effdeg._adapters.outputs import Described, identify_output
from effdeg._adapters.settings import FitSettings, PathSettings
from effdeg._utils.checks import pluralize
from effdeg._version import __version__

_DESCRIPTIVE = {
    *("model", "tensor", "other_tensors", "tolerance", "version", "new_norms", "notes"),
    *("data", "weights", "weights_sha256", "preprocessing"),
}
"""Settings in which comparable measurements may differ."""


@dataclass(frozen=True, kw_only=True)
class PathRecord(PathSettings):
    """Which paths a model was run along, and which model that was."""

    examples: int
    dtype: str
    model: str
    fingerprint: str
    new_norms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check nothing: a record describes what was measured."""


@dataclass(frozen=True, kw_only=True)
class Settings(FitSettings, PathRecord):
    """The record of what was measured, and how.

    The settings of :func:`effdeg.measure` have the same names here; a layer or function is recorded by its name.

    Attributes:
        examples: The number of examples that pairs were drawn from.
        dtype: The precision that the model ran in (of a function: its inputs), or that of its outputs if it is coarser.
        model: The class of the model, or the name of the function.
        tensor: Which of the tensors that the model returned was fitted: ``output`` if it returned only one,
            ``logits``, a key, ``[0]`` …; None if ``output`` is a function, which received them all.
        other_tensors: The tensors that could also have been meant, if there was a choice.
        outputs: The shape of the fitted values of one example.
        fingerprint: A hash of the examples at the ends of all paths, as they were given.
        new_norms: The BatchNorm layers that no batch has given running statistics.
        notes: What was noticed on the way, such as tensors of the data that were not used.
        version: The version of effdeg.
        data: The source of the examples. The command line fills in this field and the following ones.
        weights: The file of the weights.
        weights_sha256: The checksum of that file.
        preprocessing: What was done to the examples.

    Example:
        >>> import effdeg, torch
        >>> settings = effdeg.measure(torch.tanh, torch.randn(10, 3), paths=5, nodes=12, degree=6).settings
        >>> settings.model, settings.nodes, settings.outputs
        ('tanh', 12, (3,))
        >>> settings.describe_outputs()
        'probabilities (softmax), 3 outputs'
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
        """Check nothing: in a record, ``output`` may be the name of a function."""

    @classmethod
    def of(cls, paths: PathRecord, fit: FitSettings, outputs: Described, *, tolerance: float | None = None) -> Self:
        """Combine the records of the paths, the fit and the outputs."""
        combined = {**vars(paths), **vars(fit), **vars(outputs), "output": identify_output(fit.output)}
        known = filter(None, (paths.dtype, outputs.dtype))
        combined["dtype"] = max(known, key=lambda name: torch.finfo(getattr(torch, name)).eps)
        return cls(**combined, tolerance=tolerance)

    def differences(self, other: "Settings") -> list[str]:
        """List what makes two measurements incomparable, with both values, such as ``degree: 40 and 20``."""
        own, others = asdict(self), asdict(other)
        compared = [name for name in own if name not in _DESCRIPTIVE]
        names = [name for name in compared if _comparable(name, own[name]) != _comparable(name, others[name])]
        if len(names) > 1 and {"paths", "seed", "examples"} & set(names):
            # The pairs differ, so the fingerprint says nothing about the data.
            names = [name for name in names if name != "fingerprint"]
        named = {
            "outputs": "shape of the outputs of one example",
            "fingerprint": "examples (by their fingerprint)",
            "dtype": "precision",
        }
        remedies = {"dtype": " (rounding looks complex: pass dtype=torch.float32)"}
        if not {own["output"], others["output"]} & {"softmax", "sigmoid", "identity"}:
            same = "a function is the same only with the same code, or as the same object: define it once, by def"
            remedies["output"] = f" ({same})"
        return [f"{named.get(n, n)}: {own[n]} and {others[n]}{remedies.get(n, '')}" for n in names]

    def describe_outputs(self) -> str:
        """Describe the fitted values, such as ``probabilities (softmax) of logits, 10 outputs``."""
        transformed = {"softmax": "probabilities (softmax)", "sigmoid": "probabilities (sigmoid)"}
        if self.tensor is None:
            what = f"{self.output} of what the model returned"
        else:
            what = transformed.get(str(self.output), "raw values")
            what += f" of {self.tensor}" if self.tensor != "output" else ""
        size = " × ".join(map(str, self.outputs)) or "1"
        components = self.count_components(math.prod(self.outputs))
        reduced = f", first {pluralize(components, 'principal component')}" if components else ""
        return f"{what}, {size} {'output' if size == '1' else 'outputs'}{reduced}"


def _comparable(name: str, value: Any) -> Any:
    """Return the part of a setting that must be equal for measurements to be comparable."""
    if name == "outputs":
        return tuple(size for size in value if size != 1)  # a number per example may be of shape () or (1,)
    # Only the rounding of half precision looks complex.
    return "float32" if name == "dtype" and value == "float64" else value
