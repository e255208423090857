"""The six maps from R³ to R³ that the networks learn, and where their inputs lie."""

import torch
from torch import Tensor

from effdeg._utils.shapes import Float

TASKS = (1, 2, 3, 4, 5, 6)
# The total degree of each map.
DEGREES = {1: 1, 2: 2, 3: 5, 4: 1, 5: 2, 6: 5}
# Inputs are uniform on [-2, 2]³. The paper does not say so, but its numbers follow from it.
HALF_SIDE = 2.0


def target(task: int, inputs: Float[Tensor, "*points 3"]) -> Float[Tensor, "*points 3"]:
    """Compute a map; tasks 4 to 6 are tasks 1 to 3 times two."""
    x1, x2, x3 = inputs.unbind(-1)
    if task > 3:
        return 2 * target(task - 3, inputs)
    if task == 1:
        return torch.stack([x3 + 2, x2 + 3, x1 + 1], dim=-1)
    if task == 2:
        return torch.stack([x1 * x2, x2 * x3, x1 * x3], dim=-1)
    return torch.stack([x1 * x2 * x3, x1**2 * x2 * x3**2, x1**2 * x2 * x3 + x2**2 * x3], dim=-1)


def draw_inputs(count: int, generator: torch.Generator) -> Float[Tensor, "count 3"]:
    """Draw inputs, in float64."""
    return HALF_SIDE * (2 * torch.rand(count, 3, dtype=torch.float64, generator=generator) - 1)
