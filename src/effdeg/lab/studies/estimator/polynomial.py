"""A random polynomial map, and its Chebyshev coefficients along paths by polynomial algebra."""

import math
from itertools import product

import torch
from torch import Tensor

from effdeg._utils.shapes import Float

DEGREE = 5
VARIABLES = 3
OUTPUTS = 3


class Polynomial:
    """A map of three variables between -1 and 1, of total degree 5, with random coefficients."""

    def __init__(self, generator: torch.Generator, device: torch.device) -> None:
        powers = product(range(DEGREE + 1), repeat=VARIABLES)
        self._exponents = sorted((each for each in powers if sum(each) <= DEGREE), key=sum)
        weights = torch.randn(len(self._exponents), OUTPUTS, dtype=torch.float64, generator=generator)
        self._weights = weights.to(device)

    def inputs(self, count: int, generator: torch.Generator) -> Float[Tensor, "examples variables"]:
        """Draw examples."""
        drawn = torch.rand(count, VARIABLES, dtype=torch.float64, generator=generator)
        return (2 * drawn - 1).to(self._weights.device)

    def __call__(self, x: Float[Tensor, "points variables"]) -> Float[Tensor, "points outputs"]:
        """Evaluate the map."""
        powers = x.T[:, None] ** torch.arange(DEGREE + 1, device=x.device)[:, None]
        factors = [powers[variable, list(each)] for variable, each in enumerate(zip(*self._exponents, strict=True))]
        return math.prod(factors[1:], start=factors[0]).T @ self._weights

    def coefficients(
        self, first: Float[Tensor, "paths variables"], second: Float[Tensor, "paths variables"], degree: int
    ) -> Float[Tensor, "paths degrees outputs"]:
        """Expand along the paths: multiply the variables, each linear in t there, one after the other."""
        centre, half = (first + second) / 2, (first - second) / 2
        one = torch.zeros(len(first), DEGREE + 1, dtype=torch.float64, device=first.device)
        one[:, 0] = 1.0
        monomials = {self._exponents[0]: one}
        for exponents in self._exponents[1:]:
            variable = next(index for index, power in enumerate(exponents) if power)
            before = tuple(power - (index == variable) for index, power in enumerate(exponents))
            monomials[exponents] = _times_linear(monomials[before], centre[:, variable], half[:, variable])
        expanded = torch.stack([monomials[exponents] for exponents in self._exponents], dim=-1) @ self._weights
        kept = expanded[:, : degree + 1]
        return torch.nn.functional.pad(kept, (0, 0, 0, degree + 1 - kept.shape[1]))


def _times_linear(series: Tensor, constant: Tensor, slope: Tensor) -> Tensor:
    """Multiply Chebyshev series by constant + slope t, by t T_k = (T_{k+1} + T_{|k-1|}) / 2; the last term is zero."""
    by_t = torch.zeros_like(series)
    by_t[:, 1:] += series[:, :-1] / 2
    by_t[:, :-1] += series[:, 1:] / 2
    by_t[:, 1] += series[:, 0] / 2
    return constant[:, None] * series + slope[:, None] * by_t
