"""The settings of the penalty, checked before any work, and what they say about a batch."""

import math
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from effdeg._adapters.partners import check_changes
from effdeg._adapters.paths import FIXED, draw_examples_of_batch, draw_pairs_of_batch
from effdeg._adapters.settings import FitSettings, NodeSettings
from effdeg._utils.checks import check_choice, check_count, check_degree_weights, check_flag, check_generator
from effdeg._utils.shapes import Float, Int
from effdeg.functional import cosine_nodes
from effdeg.functional._bases import Weights
from effdeg.functional._conditioning import warn_if_ill_conditioned

TRAINING_DAMPING = 1e-3
"""Our choice: the paper asks for a small eps. Two random nodes may nearly coincide, where the gradient grows as 1 /
distance; this much damping removes those gradients and hardly changes the value (``docs/training.md``)."""

Anchor = Literal["labels", "self"]
"""Where the values at the ends of a path come from: labels, or the outputs of a model for the examples there."""

BatchNorm = Literal["joint", "frozen"]
"""Whether the points count in the batch's statistics, or are normalized with those of the batch alone."""

_SHARE_UNIT = 2**20


@dataclass(frozen=True, kw_only=True)
class PenaltySettings(NodeSettings, FitSettings):
    """The settings of a penalty, checked. Their defaults are those of :class:`effdeg.Penalty`."""

    pairs: float | int
    anchor: Anchor | None
    weights: Weights
    top: int
    normalized: bool
    batchnorm: BatchNorm
    partners: Any
    generator: torch.Generator | None
    # The share of pairs in whole units: of a float, torch.compile would make a variable that cannot be a tensor's size.
    _share: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        check_flag("normalized", self.normalized)
        check_generator(self.generator)
        check_count("nodes", self.nodes, least=2)
        NodeSettings.__post_init__(self)
        FitSettings.__post_init__(self)
        check_count("top", self.top, least=2)  # the labels of both ends
        self._check_anchor()
        self.check_nodes(self.nodes)
        object.__setattr__(self, "weights", check_degree_weights(self.weights, self.degree))
        _check_pairs(self.pairs)
        object.__setattr__(self, "_share", round(self.pairs * _SHARE_UNIT))
        if self.partners is not None:
            check_changes(self.partners, "in training, a batch does not say which examples of it are theirs")
        check_choice("batchnorm", self.batchnorm, get_args(BatchNorm))
        # Two frames up is Penalty.__init__; its caller chose the nodes.
        warn_if_ill_conditioned(self.sampling, self.nodes, self.degree, stacklevel=4)

    def _check_anchor(self) -> None:
        if self.anchor not in {*get_args(Anchor), None}:
            raise ValueError(f"anchor={self.anchor!r} is not known. Choose from: 'labels', 'self', None.")
        if self.anchor is not None and self.nodes < 3:
            raise ValueError(
                f"nodes={self.nodes} is too few for anchor={self.anchor!r}: the anchors take the outer two, and at "
                "least one must be left for the model. Use nodes=3 or more."
            )
        if self.anchor == "self":
            self.check_ends("anchor='self'")

    def check_ends(self, what: str) -> None:
        """Raise if the outer nodes are not at the ends of the path, where ``what`` has the values for them."""
        if self.sampling == "chebyshev":
            raise ValueError(
                f"{what} uses the outputs for the examples at the ends of a path, but sampling='chebyshev' has no "
                "nodes there: the first and the last lie inside. Use sampling='cosine' or 'uniform'."
            )

    def count_pairs(self, examples: int) -> int:
        """Return the number of pairs for a batch of this many examples."""
        if not isinstance(self.pairs, float):
            return int(self.pairs)
        count = (self._share * examples + _SHARE_UNIT // 2) // _SHARE_UNIT
        if count == 0:
            raise ValueError(
                f"pairs={self.pairs} of a batch of {examples} rounds to none. Use a larger share or a count, pairs=2."
            )
        return count

    def draw_pairs(self, examples: int, device: torch.device) -> Int[Tensor, "pairs 2"]:
        """Draw pairs of a batch of this many examples; each with itself if paths lead to changed copies."""
        count = self.count_pairs(examples)
        draw = draw_pairs_of_batch if self.partners is None else draw_examples_of_batch
        return draw(examples, count, device=device, generator=self.generator)

    def draw_alpha(self, pairs: int, device: torch.device) -> Float[Tensor, "pairs nodes"]:
        """Place the nodes on ``pairs`` paths; with anchors the outer two of cosine sampling are at the very ends."""
        if self.sampling in FIXED:
            return FIXED[self.sampling](self.nodes, device=device).expand(pairs, -1)
        home = device if self.generator is None else self.generator.device
        anchored = self.anchor is not None
        alpha = cosine_nodes(self.nodes, pairs, anchored=anchored, generator=self.generator, device=home)
        return alpha.to(device)

    @property
    def inner(self) -> slice:
        """The nodes that are run: not the outer two where labels or the batch's own outputs serve as values."""
        # The batch's own outputs are not those of changed copies.
        own = self.sampling == "uniform" and self.partners is None
        return slice(1, -1) if self.anchor is not None or own else slice(None)

    @property
    def reaches_ends(self) -> bool:
        """Whether the outer two nodes are the ends of the path themselves, alpha = 0 and 1."""
        return self.sampling == "uniform" or (self.sampling == "cosine" and self.anchor is not None)


def _check_pairs(pairs: object) -> None:
    if isinstance(pairs, bool) or not isinstance(pairs, Integral | float):
        raise TypeError(f"pairs={pairs!r} must be a share of the batch (a float, 0.5) or a count (an int, 128).")
    if not 0 < float(pairs) < math.inf:
        raise ValueError(f"pairs={pairs} must be positive: a share of the batch (0.5) or a count (128).")
    if isinstance(pairs, Integral) and int(pairs) == 1:
        raise ValueError(
            "pairs=1, a single path per batch, is easily taken for pairs=1.0, as many paths as examples. Write "
            "pairs=1.0 for these; for a single path, write its share of the batch, such as pairs=1/256."
        )
    if isinstance(pairs, float) and pairs > 1:
        raise ValueError(
            f"pairs={pairs} is a float, and so a share of the batch, which is at most 1.0 (as many paths as examples). "
            "A count of paths is an int, such as pairs=128."
        )
