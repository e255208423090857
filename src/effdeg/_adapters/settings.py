"""The settings of paths and fits: declared and checked once, and passed on whole."""

from dataclasses import dataclass
from typing import Any, get_args

from effdeg._adapters.layers import Layer, check_layer
from effdeg._adapters.outputs import Output, check_output
from effdeg._adapters.paths import Sampling
from effdeg._utils.checks import check_choice, check_components, check_count, check_damping, check_fit
from effdeg.functional import BASES, DAMPING


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """The nodes of a path, and where the path lies: among the inputs, or at the output of a layer."""

    nodes: int = 200
    sampling: Sampling = "cosine"
    at: Layer | None = None

    def __post_init__(self) -> None:
        _check_counts(self, nodes=1)
        check_choice("sampling", self.sampling, get_args(Sampling))
        if self.at is not None:
            check_layer(self.at)


@dataclass(frozen=True, kw_only=True)
class PathSettings(NodeSettings):
    """Which paths a model is measured along."""

    paths: int = 400
    seed: int = 0
    partners: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts(self, paths=1, seed=0)


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """The polynomials of a fit, and the values that they are fitted to."""

    degree: int = 40
    basis: str = "chebyshev"
    output: Output = "softmax"
    components: int | None = None
    damping: float = DAMPING

    def __post_init__(self) -> None:
        _check_counts(self, degree=1)
        check_choice("basis", self.basis, BASES)
        check_output(self.output)
        check_damping(self.damping)
        if self.components is not None:
            _check_counts(self, components=1)

    def check_nodes(self, nodes: int) -> None:
        """Raise unless ``nodes`` nodes determine the fit."""
        check_fit(nodes, self.degree, least_degree=1)
        if self.components is not None:
            check_components(self.components, nodes)

    def count_components(self, outputs: int) -> int | None:
        """Return how many principal components of this many outputs are used; None if outputs are not reduced."""
        # No more than there are: zeros in place of others would lower the mean. Probabilities sum to 1.
        return None if self.components is None else min(self.components, outputs - (self.output == "softmax"))


def _check_counts(settings: object, **least: int) -> None:
    """Raise unless these fields are at least so large; integers of numpy become Python's."""
    for name, bound in least.items():
        object.__setattr__(settings, name, check_count(name, getattr(settings, name), least=bound))
