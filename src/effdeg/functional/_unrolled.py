"""Small linear algebra without a library call: many tiny problems at once, in a fixed number of tensor operations.

The solvers of torch.linalg may read a status from the GPU, which waits for it and cannot be captured in a CUDA graph.
These never read a value, so they can be captured, and compiled they fuse into a few kernels.
"""

import math

import torch
from torch import Tensor

from effdeg._utils.shapes import Float


def least_squares_operator(
    design: Float[Tensor, "*batch rows columns"], damping: float
) -> Float[Tensor, "*batch columns rows"]:
    """Compute (AᵀA + damping I)⁻¹ Aᵀ by modified Gram-Schmidt on A stacked on √damping I, as accurate as Householder's.

    For that the right-hand sides, here the identity, are orthogonalized along with the columns (Björck 1967).
    """
    rows, columns = design.shape[-2:]
    unit, small = (torch.eye(size, dtype=design.dtype, device=design.device) for size in (rows, columns))
    batch = design.shape[:-2]
    upper = torch.cat([design, unit.expand(*batch, rows, rows)], dim=-1)
    lower = torch.nn.functional.pad(damping**0.5 * small, (0, rows)).expand(*batch, columns, columns + rows)
    rest = torch.cat([upper, lower], dim=-2)
    triangle = []
    for _ in range(columns):
        column = rest[..., :1]
        unit_column = column / column.square().sum(-2, keepdim=True).sqrt()
        row = (unit_column * rest).sum(-2, keepdim=True)
        rest = (rest - unit_column * row)[..., 1:]
        triangle.append(row)
    solution = triangle[-1][..., 1:] / triangle[-1][..., :1]
    for row in reversed(triangle[:-1]):
        pivot, above, right = row.split([1, solution.shape[-2], rows], dim=-1)  # type: ignore[no-untyped-call]
        known = (above.mT * solution).sum(-2, keepdim=True)
        solution = torch.cat([(right - known) / pivot, solution], dim=-2)
    return solution


def eigenvectors(
    symmetric: Float[Tensor, "*batch size size"],
) -> tuple[Float[Tensor, "*batch count"], Float[Tensor, "*batch size count"]]:
    """Compute eigenvalues, ascending, and eigenvectors by Jacobi rotations, half as many at once as there are columns.

    Between rounds the columns rotate as in a round-robin tournament, so that every two meet once in a sweep (Brent and
    Luk 1985). An odd size is padded by a zero column, which stays: an eigenvalue 0 with a zero vector.
    """
    size = symmetric.shape[-1]
    even = size + size % 2
    matrix = torch.nn.functional.pad(symmetric, (0, even - size, 0, even - size))
    vectors = torch.eye(even, dtype=matrix.dtype, device=matrix.device).expand_as(matrix)
    # This number of sweeps leaves 2e-15 of 4 × 4 matrices off the diagonal, 3e-10 of 8 × 8 and 1e-8 of 16 × 16, in the
    # worst case: spectra with many small eigenvalues. Random matrices are diagonal to the last digit.
    sweeps = 1 + 2 * math.ceil(math.log2(even))
    for _ in range(sweeps * (even - 1)):
        cosine, sine = _rotation(matrix)
        both = torch.cat([matrix, vectors], dim=-2)
        both = _rotate(both, cosine, sine)
        matrix, vectors = both[..., :even, :], both[..., even:, :]
        matrix = _rotate(matrix.mT, cosine, sine).mT
    eigenvalues, order = matrix.diagonal(dim1=-2, dim2=-1).sort(dim=-1)
    vectors = vectors.gather(-1, order[..., None, :].expand_as(vectors))
    return eigenvalues, vectors[..., :size, :]


def _rotation(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the smaller angle that zeroes the entry of a left column and its right partner."""
    half = matrix.shape[-1] // 2
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    entry = 2 * matrix[..., :half, half:].diagonal(dim1=-2, dim2=-1)
    gap = diagonal[..., half:] - diagonal[..., :half]
    reach = gap.abs() + torch.hypot(gap, entry)
    tangent = torch.where(gap < 0, -entry, entry) / torch.where(reach == 0, 1, reach)
    cosine = torch.rsqrt(1 + tangent.square())
    return cosine[..., None, :], (cosine * tangent)[..., None, :]


def _rotate(matrix: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each column of the left half with its partner of the right half, then advance all but the first."""
    half = matrix.shape[-1] // 2
    left, right = matrix[..., :half], matrix[..., half:]
    left, right = cosine * left - sine * right, sine * left + cosine * right
    if half == 1:
        return torch.cat([left, right], dim=-1)
    return torch.cat([left[..., :1], right[..., :1], left[..., 1:-1], right[..., 1:], left[..., -1:]], dim=-1)
