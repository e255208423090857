"""The settings of one kind of random polynomials."""

from dataclasses import dataclass, field
from typing import Literal

from effdeg._utils.checks import check_count, check_fit
from effdeg.lab.settings import checked_fields
from effdeg.lab.training.settings import SCALE


@dataclass(frozen=True)
class PathDegrees:
    """The settings of one run: random polynomials of every total degree, each followed along random paths.

    Attributes:
        variables: How many variables the polynomials have.
        terms: How many random monomials each has; by default all of its degree and below.
        inputs: Where the examples lie: ``uniform`` on [-1, 1] in every variable, ``normal``, or on the ``lattice`` of
            the values -1, 0 and 1, which has no density.
        seed: Decides polynomials, examples, paths and noise.
        highest: The highest total degree; all from 1 on are tried.
        polynomials: How many of each total degree.
        paths: Paths along which all polynomials of a total degree are followed.
        nodes: Nodes on each path.
        degree: The highest degree of the fits.
    """

    variables: int = 3
    terms: int | None = None
    inputs: Literal["uniform", "normal", "lattice"] = "uniform"
    seed: int = field(default=0, metadata=SCALE)
    highest: int = field(default=10, metadata=SCALE)
    polynomials: int = field(default=20, metadata=SCALE)
    paths: int = field(default=1000, metadata=SCALE)
    nodes: int = field(default=64, metadata=SCALE)
    degree: int = field(default=16, metadata=SCALE)

    def __post_init__(self) -> None:
        for name, value in checked_fields(self).items():
            object.__setattr__(self, name, value)
        for name in ("variables", "highest"):
            check_count(name, getattr(self, name), least=1)
        for name in ("polynomials", "paths"):
            check_count(name, getattr(self, name), least=2)
        check_count("seed", self.seed, least=0)
        if self.terms is not None:
            check_count("terms", self.terms, least=1)
        if self.degree <= self.highest:
            raise ValueError(
                f"degree={self.degree} leaves no room above the polynomials' own, up to highest={self.highest}: a "
                f"degree that is found too high would not be seen. Use degree={self.highest + 1} or more."
            )
        check_fit(self.nodes, self.degree)
