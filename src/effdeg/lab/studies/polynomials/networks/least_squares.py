"""Levenberg and Marquardt's method for least squares, one step at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

from effdeg._utils.shapes import Float

# By what the damping rises after a step that makes things worse, and falls after one that makes them better.
_RAISE, _LOWER = 4.0, 5.0
# Less than rounding leaves of the equations would be none.
_LEAST_DAMPING = 1e-15
# How far to look along a step for its curvature, and how much of it a step may have (both Transtrum and Sethna's).
_LOOK, _MOST_CURVATURE = 0.1, 0.75
_ATTEMPTS = 20


def levenberg_marquardt(
    residuals: Callable[[Tensor], Float[Tensor, " residuals"]],
    jacobian: Float[Tensor, "residuals weights"],
    weights: Float[Tensor, " weights"],
    damping: float,
) -> tuple[Float[Tensor, " weights"], float]:
    """Take a step that lowers the sum of squares, with more and more damping until one is found.

    The step solves (JᵀJ + damping) d = -Jᵀr. Half of what r's curvature along d asks for in the same equation is added
    to it: this "geodesic acceleration" (Transtrum and Sethna 2012) lets steps follow bent valleys.

    Args:
        residuals: Computes r, what is to vanish, from weights.
        jacobian: J, its derivative at these weights.
        weights: Where to start.
        damping: How cautious to be at first.

    Returns:
        Where the step leads and the damping to begin the next one with. Where no attempt lowers the sum of squares, the
        weights come back as they were.
    """
    now = residuals(weights)
    squares = now.square().sum()
    gram = jacobian.mT @ jacobian
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    for _ in range(_ATTEMPTS):
        factor, failed = torch.linalg.cholesky_ex(gram + damping * identity)
        if not failed:
            straight = _solved(factor, -jacobian.mT @ now)
            ahead = residuals(weights + _LOOK * straight)
            curvature = 2 / _LOOK * ((ahead - now) / _LOOK - jacobian @ straight)
            bend = _solved(factor, -jacobian.mT @ curvature) / 2
            moved = weights + straight + bend
            gentle = 4 * bend.norm() <= _MOST_CURVATURE * straight.norm()
            if gentle and residuals(moved).square().sum() < squares:
                return moved, max(damping / _LOWER, _LEAST_DAMPING)
        damping *= _RAISE
    return weights, damping


def _solved(factor: Tensor, right: Tensor) -> Tensor:
    return torch.cholesky_solve(right[:, None], factor)[:, 0]
