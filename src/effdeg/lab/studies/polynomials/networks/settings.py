"""The settings of one polynomial network."""

from dataclasses import dataclass, field

from effdeg._utils.checks import check_count, check_fit
from effdeg.lab.settings import checked_fields
from effdeg.lab.studies.polynomials.networks.network import DEGREE
from effdeg.lab.studies.polynomials.networks.targets import TASKS
from effdeg.lab.training.settings import SCALE


@dataclass(frozen=True)
class PolynomialFit:
    """The settings of one run: a network is fitted to a map, then both are measured along the same paths.

    Attributes:
        task: Which of the six maps.
        width: Units in each of the three hidden layers.
        seed: Decides the first weights, the inputs and the paths.
        examples: Inputs to train on.
        steps: Steps of Levenberg and Marquardt's method.
        paths: Paths to measure along.
        nodes: Nodes on each path.
        degree: The highest degree of the fits.
        pairs: Pairs of inputs over which the map's exact values are integrated.
    """

    task: int = 1
    width: int = 16
    seed: int = field(default=0, metadata=SCALE)
    examples: int = field(default=1000, metadata=SCALE)
    steps: int = field(default=100, metadata=SCALE)
    paths: int = field(default=20_000, metadata=SCALE)
    nodes: int = field(default=16, metadata=SCALE)
    degree: int = field(default=10, metadata=SCALE)
    pairs: int = field(default=2**18, metadata=SCALE)

    def __post_init__(self) -> None:
        for name, value in checked_fields(self).items():
            object.__setattr__(self, name, value)
        if self.task not in TASKS:
            raise ValueError(f"task={self.task} is not one of the six maps: choose from 1 to 6.")
        check_count("seed", self.seed, least=0)
        for name in ("width", "steps"):
            check_count(name, getattr(self, name), least=1)
        for name in ("examples", "paths", "pairs"):
            check_count(name, getattr(self, name), least=2)
        if self.degree < DEGREE:
            raise ValueError(
                f"degree={self.degree} is too low: a network that squares three times is a polynomial of degree "
                f"{DEGREE}. Use degree={DEGREE} or more."
            )
        check_fit(self.nodes, self.degree)
