"""Coefficients become one number: the effective degree."""

import torch
from torch import Tensor

from effdeg._utils.shapes import Float


def effective_degree(
    coefficients: Float[Tensor, "*paths degrees outputs"], *, normalized: bool = False
) -> Float[Tensor, "*paths"]:
    """Weigh each coefficient by its degree: sum over k of k |c_k|, averaged over outputs (Definition 3.2).

    Normalized, the sum is divided by sum over k of |c_k|, output by output: a mean degree in [0, K] that does not
    change when the output is scaled. An output that is zero everywhere has degree 0 and a zero gradient.

    Args:
        coefficients: Coefficients in an orthogonal polynomial basis, degree 0 first.
        normalized: Divide by the total weight of the coefficients.

    Returns:
        The effective degree of each path.
    """
    magnitudes = coefficients.abs()
    if normalized:
        # So that no sum overflows. A common factor changes nothing, nor does it have a gradient.
        largest = magnitudes.detach().amax(-2, keepdim=True)
        magnitudes = magnitudes / torch.where(largest == 0, torch.ones_like(largest), largest)
    degrees = torch.arange(coefficients.shape[-2], device=coefficients.device, dtype=coefficients.dtype)
    weighted = (degrees[:, None] * magnitudes).sum(-2)
    if normalized:
        total = magnitudes.sum(-2)
        weighted = weighted / torch.where(total == 0, torch.ones_like(total), total)
    return weighted.mean(-1)
