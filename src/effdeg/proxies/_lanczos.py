"""The largest eigenvalue of a symmetric map that is known only by its products with vectors."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from effdeg._utils.statistics import find_unit

# The smallest number of products, since the start may be almost orthogonal to the eigenvector; and the largest.
LEAST, MOST = 20, 1000
# Numbers in all vectors that are kept: 1 GiB in float64. Large maps keep 20 vectors, as ARPACK does.
_WORKING_SET = 2**27


def largest_eigenvalue(
    multiply: Callable[[Tensor], Tensor], start: Tensor, tolerance: float, what: str
) -> tuple[float, Tensor]:
    """Return the largest eigenvalue of a symmetric map A, and its unit eigenvector, by Lanczos' method.

    It projects A onto the span of start, A start, A² start, … and takes the largest eigenvalue there, which never
    exceeds that of A, until |A x - value x| is at most ``tolerance`` times the value. When the vectors fill their
    memory it restarts from the upper half of the eigenvectors found so far (Wu and Simon 2000).
    """
    size, epsilon = start.numel(), torch.finfo(start.dtype).eps
    vectors = min(size, max(20, min(300, _WORKING_SET // size)))
    basis = start.new_empty(vectors, size)
    projected = torch.zeros(vectors, vectors, dtype=torch.float64, device="cpu")
    basis[0], count = start / start.norm(), 1
    for products in range(1, MOST + 1):
        rest = multiply(basis[count - 1])
        if products == 1:
            unit = find_unit(rest)  # so that no square overflows
        rest = rest / unit
        for again in range(2):  # once is not enough to stay orthogonal to all others
            along = basis[:count] @ rest
            rest = rest - along @ basis[:count]
            if not again:
                projected[:count, count - 1] = projected[count - 1, :count] = along.double().cpu()
        values, rotation = torch.linalg.eigh(projected[:count, :count])
        value, length, scale = float(values[-1]), float(rest.norm()), float(values.abs().amax())
        missed = length * abs(float(rotation[-1, -1]))
        complete = count == size or length <= 10 * epsilon * scale
        converged = missed <= max(tolerance * abs(value), 10 * epsilon * scale)
        if complete or (converged and products >= LEAST):
            break
        if products == MOST:
            warnings.warn(
                f"{what} has not converged after {MOST} products: {value * unit:.6g} may be off by "
                f"{missed * unit:.1g}.",
                stacklevel=2,
            )
            break
        if count == vectors:
            count = vectors // 2
            basis[:count] = rotation[:, -count:].T.to(basis) @ basis
            projected.zero_().diagonal()[:count] = values[-count:]
        basis[count] = rest / length
        count += 1
    return value * unit, rotation[:, -1].to(basis) @ basis[: len(rotation)]
