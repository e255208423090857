"""The settings of a network that learns modular arithmetic from a part of all equations."""

import math
from dataclasses import dataclass, field
from typing import Literal

from effdeg._utils.checks import check_count, check_fit
from effdeg.lab.settings import checked_fields
from effdeg.lab.studies.grokking.equations import Operation, count_equations
from effdeg.lab.training.settings import SCALE


@dataclass(frozen=True)
class Grokking:
    """The settings of one run; the defaults are the paper's, and where it is silent those of Power et al. (2022).

    Attributes:
        operation: What is done with two numbers modulo the prime: ``add``, ``subtract``, ``multiply``, ``divide``,
            ``quadratic`` (x² + xy + y²), or ``by-parity`` (x / y if y is odd, else x - y).
        prime: The modulus.
        fraction: The share of all equations that is trained on; the rest validates.
        weight_decay: AdamW's weight decay.
        lr: The learning rate, reached after ten steps and kept.
        softmax: The precision of the softmax in the loss that is trained. In ``float32``, what is memorized so well
            that its loss rounds to 0 has no gradient any more (Prieto et al., 2025).
        batch: Equations per step, at most half of those that are trained on.
        width: The width of the transformer.
        heads: The heads of its attention.
        depth: How many blocks it has.
        seed: Decides the split, the first weights and the order of the equations.
        steps: How long it is trained.
        evaluations: How often it is looked at, half of them evenly in the logarithm of the step, half in the step.
        measure_paths: Paths of each measurement of the effective degree.
        measure_nodes: Nodes on them.
        measure_degree: The highest degree of their fits.
    """

    operation: Operation = "divide"
    prime: int = 97
    fraction: float = 0.3
    weight_decay: float = 0.0
    lr: float = 1e-3
    softmax: Literal["float32", "float64"] = "float32"
    batch: int = 512
    width: int = 128
    heads: int = 4
    depth: int = 2
    seed: int = field(default=0, metadata=SCALE)
    steps: int = field(default=100_000, metadata=SCALE)
    evaluations: int = field(default=200, metadata=SCALE)
    measure_paths: int = field(default=200, metadata=SCALE)
    measure_nodes: int = field(default=64, metadata=SCALE)
    measure_degree: int = field(default=40, metadata=SCALE)

    def __post_init__(self) -> None:
        for name, value in checked_fields(self).items():
            # Whatever equal settings are given as, they are kept, and hashed, as one.
            object.__setattr__(self, name, value)
        for name in ("batch", "heads", "depth", "steps"):
            check_count(name, getattr(self, name), least=1)
        for name in ("evaluations", "measure_paths"):
            check_count(name, getattr(self, name), least=2)
        check_count("seed", self.seed, least=0)
        check_fit(self.measure_nodes, self.measure_degree, least_degree=1)
        if not _is_prime(self.prime):
            raise ValueError(f"prime={self.prime} is not a prime number: dividing by it is not always possible.")
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr!r} must be positive.")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay={self.weight_decay!r} must not be negative.")
        if self.width < 1 or self.width % (2 * self.heads):
            raise ValueError(
                f"width={self.width} cannot be shared evenly by {self.heads} heads, each of an even width: use a "
                f"multiple of {2 * self.heads}."
            )
        if not 0 < self.fraction < 1:
            raise ValueError(f"fraction={self.fraction!r} is a share of all equations: it must lie between 0 and 1.")
        if min(self.train_equations, self.equations - self.train_equations) < 2:
            raise ValueError(
                f"fraction={self.fraction!r} of {self.equations} equations leaves {self.train_equations} to train on: "
                "it must leave two at least to train on, and two to validate."
            )

    @property
    def equations(self) -> int:
        """How many equations there are."""
        return count_equations(self.operation, self.prime)

    @property
    def train_equations(self) -> int:
        """How many of them are trained on."""
        return round(self.fraction * self.equations)

    @property
    def batch_size(self) -> int:
        """How many equations a step sees: Power et al. take half of few."""
        return min(self.batch, math.ceil(self.train_equations / 2))


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
