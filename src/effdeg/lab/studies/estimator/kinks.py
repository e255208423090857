"""A random ReLU network with one hidden layer, and its Chebyshev coefficients along paths in closed form."""

import math

import torch
from torch import Tensor

from effdeg._utils.shapes import Float

VARIABLES = 10
OUTPUTS = 3


class Kinks:
    """A random ReLU network of ten normal variables: along a path, one kink where a hidden unit turns on or off."""

    def __init__(self, units: int, generator: torch.Generator, device: torch.device) -> None:
        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator).to(device)

        self._hidden, self._bias = drawn(VARIABLES, units) / math.sqrt(VARIABLES), drawn(units)
        self._output = drawn(units, OUTPUTS) / math.sqrt(units)

    def inputs(self, count: int, generator: torch.Generator) -> Float[Tensor, "examples variables"]:
        """Draw examples."""
        drawn = torch.randn(count, VARIABLES, dtype=torch.float64, generator=generator)
        return drawn.to(self._hidden.device)

    def __call__(self, x: Float[Tensor, "points variables"]) -> Float[Tensor, "points outputs"]:
        """Run the network."""
        return (x @ self._hidden + self._bias).relu() @ self._output

    def coefficients(
        self, first: Float[Tensor, "paths variables"], second: Float[Tensor, "paths variables"], degree: int
    ) -> Float[Tensor, "paths degrees outputs"]:
        """Expand along the paths, unit by unit, so that memory does not grow with the units."""
        centre, half = (first + second) / 2 @ self._hidden + self._bias, (first - second) / 2 @ self._hidden
        found = torch.zeros(len(first), degree + 1, OUTPUTS, dtype=torch.float64, device=first.device)
        for constant, slope, weights in zip(centre.T, half.T, self._output, strict=True):
            found += relu_coefficients(constant, slope, degree)[..., None] * weights
        return found


def relu_coefficients(
    constant: Float[Tensor, " paths"], slope: Float[Tensor, " paths"], degree: int
) -> Float[Tensor, "paths degrees"]:
    """Expand max(0, u + w t) in Chebyshev polynomials of t.

    For w > 0 it is positive for t above s = -u / w, that is, with t = cos φ, for φ below θ = arccos s (s clipped to
    [-1, 1]). With S_j = ∫ cos(jφ) dφ from 0 to θ, which is sin(jθ) / j and S_0 = θ, and
    cos φ cos kφ = (cos (k-1)φ + cos (k+1)φ) / 2,

        c_k = (2/π) ∫ (u + w cos φ) cos kφ dφ = (2/π) (u S_k + w (S_{k-1} + S_{k+1}) / 2),

    and half of it for k = 0, where S_{-1} = S_1. For w < 0 t is turned round, and T_k(-t) = (-1)^k T_k(t). For a kink
    inside, c_k falls as k⁻² only, so that the sum of k |c_k| grows as log K and has no limit.

    Args:
        constant: u, for each path.
        slope: w, not zero.
        degree: The highest k.

    Returns:
        The coefficients.
    """
    size = slope.abs()
    angle = torch.arccos((-constant / size).clamp(-1, 1))[:, None]
    orders = torch.arange(1, degree + 2, dtype=torch.float64, device=slope.device)
    integrals = torch.cat([angle, torch.sin(orders * angle) / orders], dim=1)
    below = torch.cat([integrals[:, 1:2], integrals[:, :-2]], dim=1)
    found = constant[:, None] * integrals[:, :-1] + size[:, None] * (below + integrals[:, 1:]) / 2
    found *= 2 / math.pi
    found[:, 0] /= 2
    found[:, 1::2] *= slope.sign()[:, None]
    return found
