"""Random polynomials of a known total degree, and where their inputs lie."""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from effdeg._utils.shapes import Float, Int


@dataclass(frozen=True, eq=False)
class RandomPolynomials:
    """Several polynomials with the same variables and total degree, as one map with an output for each.

    Attributes:
        exponents: For every term, the power of every variable; the same for all polynomials, or each has its own.
        coefficients: The factor of every term.
        degree: The total degree.
    """

    exponents: Int[Tensor, "#polynomials terms variables"]
    coefficients: Float[Tensor, "polynomials terms"]
    degree: int

    @classmethod
    def draw(
        cls, count: int, *, variables: int, degree: int, terms: int | None, generator: torch.Generator
    ) -> "RandomPolynomials":
        """Draw polynomials with normal coefficients.

        Args:
            count: How many.
            variables: How many variables.
            degree: Their total degree.
            terms: How many monomials each has, drawn from all up to the degree, the first from those of the degree
                itself; None takes all of them.
            generator: The source of randomness.

        Returns:
            The polynomials.
        """
        if terms is None:
            exponents = torch.tensor([_all_exponents(variables, degree)])
        else:
            leading = [_draw_exponents(variables - 1, degree, generator) for _ in range(count)]
            others = [_draw_exponents(variables, degree, generator) for _ in range(count * (terms - 1))]
            first = torch.tensor([[*powers, degree - sum(powers)] for powers in leading])
            rest = torch.tensor(others, dtype=torch.long).view(count, terms - 1, variables)
            exponents = torch.cat([first[:, None], rest], dim=1)
        coefficients = torch.randn(count, exponents.shape[1], dtype=torch.float64, generator=generator)
        return cls(exponents, coefficients, degree)

    def to(self, device: torch.device) -> "RandomPolynomials":
        """Move to a device."""
        return replace(self, exponents=self.exponents.to(device), coefficients=self.coefficients.to(device))

    def scaled(self, inputs: Float[Tensor, "points variables"]) -> "RandomPolynomials":
        """Return multiples of the polynomials that have a standard deviation of one over these inputs."""
        return replace(self, coefficients=self.coefficients / self(inputs).std(0)[:, None])

    def leading_part(self) -> "RandomPolynomials":
        """Return the homogeneous parts of the total degree (the paper's P_D)."""
        leads = self.exponents.sum(-1) == self.degree
        return replace(self, coefficients=torch.where(leads, self.coefficients, 0.0))

    def sizes(self) -> "RandomPolynomials":
        """Return the polynomials with the sizes of their coefficients."""
        return replace(self, coefficients=self.coefficients.abs())

    def __call__(self, inputs: Float[Tensor, "points variables"]) -> Float[Tensor, "points polynomials"]:
        """Compute all polynomials at every point."""
        powers = torch.ones_like(inputs)
        table = [powers]
        for _ in range(self.degree):
            powers = powers * inputs
            table.append(powers)
        by_power = torch.stack(table, dim=-1)
        monomials = by_power[:, 0, self.exponents[..., 0]]
        for variable in range(1, inputs.shape[1]):
            monomials = monomials * by_power[:, variable, self.exponents[..., variable]]
        return torch.einsum("npt,pt->np", monomials, self.coefficients)


def draw_examples(
    kind: Literal["uniform", "normal", "lattice"], count: int, variables: int, generator: torch.Generator
) -> Float[Tensor, "count variables"]:
    """Draw examples, in float64."""
    if kind == "normal":
        return torch.randn(count, variables, dtype=torch.float64, generator=generator)
    if kind == "lattice":
        return torch.randint(-1, 2, (count, variables), generator=generator).double()
    return 2 * torch.rand(count, variables, dtype=torch.float64, generator=generator) - 1


def _all_exponents(variables: int, degree: int) -> list[list[int]]:
    """List the exponents of all monomials up to a degree."""
    return [_gaps(places) for places in combinations(range(variables + degree), variables)]


def _draw_exponents(variables: int, degree: int, generator: torch.Generator) -> list[int]:
    """Draw a monomial from all up to a degree, each as likely as any other."""
    places = torch.randperm(variables + degree, generator=generator)[:variables]
    return _gaps(sorted(places.tolist()))


def _gaps(places: "tuple[int, ...] | list[int]") -> list[int]:
    """Read exponents off bars among stars: as many stars as lie between a bar and the one before it."""
    return [place - before - 1 for before, place in zip([-1, *places], places, strict=False)]
