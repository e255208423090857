"""Bessel functions of the first kind at all orders, which torch has for the orders 0 and 1 alone."""

import torch
from torch import Tensor

from effdeg._shapes import Float


def bessel(x: Float[Tensor, " points"], order: int) -> Float[Tensor, "points orders"]:
    """Give J_0(x) … J_order(x).

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
