"""A sine, and its Chebyshev coefficients along paths by the expansion of Jacobi and Anger."""

import math

import torch
from torch import Tensor

from effdeg._utils.shapes import Float


class Sine:
    """sin(ω x) of one variable between -1 and 1."""

    def __init__(self, frequency: float, device: torch.device) -> None:
        self._frequency, self._device = frequency, device

    def inputs(self, count: int, generator: torch.Generator) -> Float[Tensor, "examples 1"]:
        """Draw examples."""
        return (2 * torch.rand(count, 1, dtype=torch.float64, generator=generator) - 1).to(self._device)

    def __call__(self, x: Float[Tensor, "points 1"]) -> Float[Tensor, "points 1"]:
        """Evaluate the sine."""
        return torch.sin(self._frequency * x)

    def coefficients(
        self, first: Float[Tensor, "paths 1"], second: Float[Tensor, "paths 1"], degree: int
    ) -> Float[Tensor, "paths degrees 1"]:
        """Expand along the paths: sin(a + b t) has c_0 = J_0(b) sin a and c_k = 2 J_k(b) sin(a + k π / 2)."""
        centre, half = ((self._frequency * each[:, 0]) / 2 for each in (first + second, first - second))
        # |b| is at most ω, and J_k(b) vanishes beyond about k = |b|: 60 orders more leave nothing of it.
        order = 2 * math.ceil((self._frequency + 60) / 2)
        orders = torch.arange(order + 1, dtype=torch.float64, device=first.device)
        found = 2 * bessel(half, order) * torch.sin(centre[:, None] + orders * (math.pi / 2))
        found[:, 0] /= 2
        kept = found[:, : degree + 1]
        return torch.nn.functional.pad(kept, (0, degree + 1 - kept.shape[1]))[..., None]


def bessel(x: Float[Tensor, " points"], order: int) -> Float[Tensor, "points orders"]:
    """Return J_0(x) … J_order(x), of which torch has the orders 0 and 1 alone.

    The ratios J_k / J_{k-1} = 1 / (2k / x - J_{k+1} / J_k) are found from above, where they are nearly zero: the
    recurrence is stable in that direction alone, and ratios, unlike the values, cannot overflow on the way. J_0 follows
    from J_0 + 2 J_2 + 2 J_4 + … = 1.

    Args:
        x: Where to evaluate, in float64; its size must lie well below the order.
        order: The highest order, an even number.

    Returns:
        The values.
    """
    ratios = [torch.zeros_like(x)]
    for k in range(order, 0, -1):
        ratios.append(x / (2 * k - x * ratios[-1]))
    relative = torch.stack([torch.ones_like(x), *ratios[:0:-1]], dim=-1).cumprod(-1)
    return relative / (2 * relative[:, ::2].sum(-1, keepdim=True) - 1)
