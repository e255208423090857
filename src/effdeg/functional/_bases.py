"""Chebyshev and Legendre polynomials on [0, 1], by their three-term recurrences in t = 2 alpha - 1."""

from typing import Literal, get_args

import torch
from torch import Tensor

from effdeg._utils.checks import check_choice, check_count
from effdeg._utils.shapes import Float

Basis = Literal["chebyshev", "legendre"]
BASES = get_args(Basis)


def basis_matrix(
    alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str = "chebyshev"
) -> Float[Tensor, "*paths nodes degrees"]:
    """Evaluate every basis polynomial up to ``degree`` at every node: entry (i, k) is phi_k(2 alpha_i - 1).

    Chebyshev: T_k = 2 t T_{k-1} - T_{k-2}. Legendre: k P_k = (2k - 1) t P_{k-1} - (k - 1) P_{k-2}. Both recurrences are
    numerically stable on [-1, 1], at any degree.

    Args:
        alpha: Positions in [0, 1].
        degree: The highest degree (the paper's K).
        basis: ``"chebyshev"`` or ``"legendre"``.

    Returns:
        The design matrix (the paper's T), differentiable in ``alpha``.
    """
    return torch.stack(_polynomials(alpha, degree, basis), dim=-1)


def basis_rows(alpha: Float[Tensor, "*paths nodes"], degree: int, basis: str) -> Float[Tensor, "*paths degrees nodes"]:
    """Evaluate as :func:`basis_matrix` does, transposed: the layout in which the products of a fit run fastest."""
    return torch.stack(_polynomials(alpha, degree, basis), dim=-2)


def evaluate(
    coefficients: Float[Tensor, "*paths degrees outputs"],
    alpha: Float[Tensor, "*#paths nodes"],
    basis: str = "chebyshev",
) -> Float[Tensor, "*paths nodes outputs"]:
    """Evaluate fitted polynomials: the values at ``alpha`` of the polynomial with these coefficients.

    Args:
        coefficients: One column per output.
        alpha: Positions in [0, 1], shared by all paths or one row per path.
        basis: The basis the coefficients belong to.

    Returns:
        The polynomials' values.
    """
    design = basis_matrix(alpha.to(coefficients.dtype), coefficients.shape[-2] - 1, basis)
    return design @ coefficients


def _polynomials(alpha: Tensor, degree: int, basis: str) -> list[Tensor]:
    check_choice("basis", basis, BASES)
    check_count("degree", degree, least=0)
    t = 2 * alpha - 1
    polynomials = [torch.ones_like(t), t]
    for k in range(2, degree + 1):
        forward, back = (2.0, 1.0) if basis == "chebyshev" else ((2 * k - 1) / k, (k - 1) / k)
        polynomials.append(torch.addcmul(-back * polynomials[-2], t, polynomials[-1], value=forward))
    return polynomials[: degree + 1]
