"""The settings of a run that holds the estimator against one known function."""

from dataclasses import dataclass, field
from typing import Literal

from effdeg._utils.checks import check_count
from effdeg.lab.settings import checked_fields
from effdeg.lab.training.settings import SCALE

# The exact series of sin ωx ends soon after degree ω, and is kept up to degree 640.
_HIGHEST_FREQUENCY = 400


@dataclass(frozen=True)
class Estimation:
    """The settings of one run.

    Attributes:
        function: What is measured: a random ``polynomial`` map, a ``sine``, or a random ReLU network with one hidden
            layer, whose ``kinks`` along a path are known.
        frequency: The sine's ω, for inputs between -1 and 1.
        units: The hidden units of the network.
        seed: Decides the function, the examples, the paths and the nodes.
        examples: How many examples the paths join.
        paths: Paths of every measurement.
        draws: How often nodes are drawn anew on the same paths, to see what random nodes alone do.
    """

    function: Literal["polynomial", "sine", "kinks"] = "polynomial"
    frequency: float = 4.0
    units: int = 32
    seed: int = field(default=0, metadata=SCALE)
    examples: int = field(default=2000, metadata=SCALE)
    paths: int = field(default=2000, metadata=SCALE)
    draws: int = field(default=8, metadata=SCALE)

    def __post_init__(self) -> None:
        for name, value in checked_fields(self).items():
            object.__setattr__(self, name, value)
        check_count("seed", self.seed, least=0)
        check_count("units", self.units, least=1)
        for name in ("examples", "paths", "draws"):
            check_count(name, getattr(self, name), least=2)
        if not 0 < self.frequency <= _HIGHEST_FREQUENCY:
            raise ValueError(
                f"frequency={self.frequency!r} must be positive, or the sine would be constant, and "
                f"{_HIGHEST_FREQUENCY} at most, or its series would be longer than what is kept of it."
            )
