"""The settings of the penalty, checked before any work, and what they say about a batch."""

import math
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from typing import get_args

import torch
from torch import Tensor, nn

from effdeg._checks import check_choice, check_components, check_count, check_damping, check_fit
from effdeg._shapes import Float
from effdeg.functional import chebyshev_nodes, cosine_nodes, uniform_nodes
from effdeg.functional.bases import BASES, Basis
from effdeg.joined import BatchNorm
from effdeg.layers import Layer
from effdeg.outputs import Output, check_output
from effdeg.paths import Sampling

TRAINING_DAMPING = 1e-3
"""Two of four random nodes may all but coincide, and the gradient grows as 1 / distance. This much damping takes away
those rare large gradients and changes the value of steps from 0 to 1 by less than 0.5%; ``docs/training.md`` has the
figures."""

_SHARE_UNIT = 2**20


@dataclass(frozen=True)
class PenaltySettings:
    """The settings of a penalty, checked."""

    degree: int = 3
    nodes: int = 4
    pairs: float | int = 0.5
    sampling: Sampling = "cosine"
    basis: Basis = "chebyshev"
    anchor_labels: bool = False
    output: Output = "softmax"
    components: int | None = None
    normalized: bool = False
    at: Layer | None = None
    batchnorm: BatchNorm = "joint"
    damping: float = TRAINING_DAMPING
    generator: torch.Generator | None = None
    # The share of pairs in whole units: of a float, torch.compile would make a variable that cannot be a tensor's size.
    _share: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        check_count("nodes", self.nodes, least=2)
        if self.anchor_labels and self.nodes < 3:
            raise ValueError(
                f"nodes={self.nodes} is too few for anchor_labels=True: the labels take the two at the ends, and at "
                "least one must be left for the model. Use nodes=3 or more."
            )
        check_fit(self.nodes, self.degree, least_degree=1)
        _check_pairs(self.pairs)
        object.__setattr__(self, "_share", round(self.pairs * _SHARE_UNIT))
        check_choice("sampling", self.sampling, get_args(Sampling))
        check_choice("basis", self.basis, BASES)
        check_choice("batchnorm", self.batchnorm, get_args(BatchNorm))
        check_output(self.output)
        check_damping(self.damping)
        if self.components is not None:
            check_components(self.components, self.nodes)
        if self.at is not None and not isinstance(self.at, str | nn.Module):
            raise TypeError(f"at={self.at!r} must be the name of a layer or a module.")

    def count_pairs(self, examples: int) -> int:
        """Count the pairs for a batch of so many examples."""
        if not isinstance(self.pairs, float):
            return int(self.pairs)
        count = (self._share * examples + _SHARE_UNIT // 2) // _SHARE_UNIT
        if count == 0:
            raise ValueError(
                f"pairs={self.pairs} of a batch of {examples} rounds to none. Use a larger share or a count, pairs=1."
            )
        return count

    def draw_alpha(self, pairs: int, device: torch.device) -> Float[Tensor, "pairs nodes"]:
        """Place the nodes on so many paths; with anchoring, the first at alpha = 0 and the last at 1."""
        if self.sampling == "cosine":
            home = device if self.generator is None else self.generator.device
            draw = partial(cosine_nodes, anchored=self.anchor_labels, generator=self.generator, device=home)
            return draw(self.nodes, pairs).to(device)
        alpha = (chebyshev_nodes if self.sampling == "chebyshev" else uniform_nodes)(self.nodes, device=device)
        if self.anchor_labels:
            inner = alpha[1:-1]
            alpha = torch.cat([torch.zeros_like(alpha[:1]), inner, torch.ones_like(alpha[:1])])
        return alpha.expand(pairs, -1)

    @property
    def inner(self) -> slice:
        """The nodes that are run: not those at the very ends, which labels or the batch's own outputs serve."""
        return slice(1, -1) if self.anchor_labels or self.sampling == "uniform" else slice(None)


def _check_pairs(pairs: object) -> None:
    if isinstance(pairs, bool) or not isinstance(pairs, Integral | float):
        raise TypeError(f"pairs={pairs!r} must be a share of the batch (a float, 0.5) or a count (an int, 128).")
    if not 0 < float(pairs) < math.inf:
        raise ValueError(f"pairs={pairs} must be positive: a share of the batch (0.5) or a count (128).")
