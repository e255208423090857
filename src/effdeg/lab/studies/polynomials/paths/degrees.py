"""The degree of a polynomial along paths: as found from fitted coefficients, and as its leading part foretells."""

import torch
from torch import Tensor

from effdeg._utils.shapes import Bool, Float, Int
from effdeg.lab.studies.polynomials.paths.random_polynomials import RandomPolynomials

# Sums of this many times their terms' sizes, or less, are rounding errors of zero.
_ROUNDING = 1e-14


def degree_found(
    coefficients: Float[Tensor, "*paths degrees outputs"], threshold: float
) -> Int[Tensor, "*paths outputs"]:
    """Find the highest degree whose coefficient exceeds a share of the largest one; 0 where there is none."""
    sizes = coefficients.abs()
    degrees = torch.arange(sizes.shape[-2], device=sizes.device)
    return (degrees[:, None] * (sizes > threshold * sizes.amax(-2, keepdim=True))).amax(-2)


def leading_coefficients(
    polynomials: RandomPolynomials, directions: Float[Tensor, "paths variables"]
) -> tuple[Float[Tensor, "paths polynomials"], Bool[Tensor, "paths polynomials"]]:
    """Compute the Chebyshev coefficient of the total degree D along paths from the leading part P_D alone.

    Along x + t v/2, t from -1 to 1, the power t^D has the factor P_D(v/2) (the paper's Lemma), and t^D is T_D/2^(D-1)
    but for lower degrees.

    Args:
        polynomials: The polynomials.
        directions: The differences v of the ends of the paths.

    Returns:
        The coefficients, and whether each vanishes: the degree along the path is then lower.
    """
    leading = polynomials.leading_part()
    values, sizes = (each(directions / 2) for each in (leading, leading.sizes()))
    vanishing = values.abs() <= _ROUNDING * sizes.abs()
    return values / 2 ** (polynomials.degree - 1), vanishing
