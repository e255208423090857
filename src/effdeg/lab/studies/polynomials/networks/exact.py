"""What the maps themselves measure, averaged over all pairs of inputs: in closed form, or by integration.

None of this uses the fits of :mod:`effdeg`, so that the two can be compared.
"""

import math

import numpy as np
import torch
from torch import Tensor

from effdeg._utils.shapes import Float
from effdeg._utils.statistics import mean_and_stderr
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS
from effdeg.lab.studies.polynomials.networks.targets import DEGREES, HALF_SIDE, target

# The mean distance between two points of a unit cube (Robbins' constant).
_ROBBINS = (
    4 + 17 * math.sqrt(2) - 6 * math.sqrt(3) + 21 * math.log(1 + math.sqrt(2)) + 42 * math.log(2 + math.sqrt(3))
) / 105 - math.pi / 15
_HIGHEST = max(DEGREES.values())
# So many independent scramblings of the points tell how accurate their mean is.
_SCRAMBLINGS = 16


def closed_forms(task: int) -> dict[str, float]:
    """Return the columns that can be integrated by hand.

    Along a path between u and v, in t from -1 to 1, task 1 is a straight line: c₁ is (u - v)/2 in every output, and the
    length of u - v, halved, in the first principal component. For the normalized degree, |c₀| + |c₁| is the larger of
    the sizes of the two ends. The outputs of task 2, (a + bt)(c + dt), have c₁ = ad + bc, half the difference of the
    outputs at the ends, and a quadratic part bd t², which is bd T₂/2 or 2 bd P₂/3 but for a constant.

    Args:
        task: The task.

    Returns:
        Values by the name of the column; none for tasks 3 and 6.
    """
    if task > 3:
        columns = {column.name: column for column in COLUMNS}
        return {name: value * (1 if columns[name].normalized else 2) for name, value in closed_forms(task - 3).items()}
    half_difference = HALF_SIDE / 3  # the mean of |u - v|/2
    if task == 1:
        shares = (1 / 4, (4 + math.log(5)) / 32, (12 + math.log(3)) / 32)  # of x₃ + 2, x₂ + 3 and x₁ + 1
        length = _ROBBINS * HALF_SIDE
        return {
            "chebyshev": half_difference,
            "normalized": math.fsum(shares) / 3,
            "legendre": half_difference,
            "pca-1": length,
            "pca-2": length / 2,
        }
    if task == 2:
        linear, quadratic = HALF_SIDE**2 * 5 / 27, half_difference**2
        return {"chebyshev": linear + quadratic, "legendre": linear + 4 / 3 * quadratic}
    return {}


def integrated(task: int, *, pairs: int, seed: int) -> dict[str, dict[str, float]]:
    """Average every column over scrambled Sobol points of the space of pairs, far more evenly spread than random ones.

    Args:
        task: The task.
        pairs: How many pairs of inputs, in all scramblings together.
        seed: Decides the scramblings.

    Returns:
        By the name of the column, the value and its standard error over scramblings.
    """
    means = []
    for scrambling in range(_SCRAMBLINGS):
        number = _SCRAMBLINGS * seed + scrambling
        points = torch.quasirandom.SobolEngine(6, scramble=True, seed=number)  # type: ignore[no-untyped-call]
        ends = HALF_SIDE * (2 * points.draw(max(1, pairs // _SCRAMBLINGS), dtype=torch.float64) - 1)
        along = columns_along(path_coefficients(task, ends[:, :3], ends[:, 3:]))
        means.append(torch.stack([along[column.name].mean() for column in COLUMNS]))
    found = [mean_and_stderr(sample) for sample in torch.stack(means, dim=1)]
    return {
        column.name: {"value": value, "stderr": stderr} for column, (value, stderr) in zip(COLUMNS, found, strict=True)
    }


def path_coefficients(
    task: int, first: Float[Tensor, "paths 3"], second: Float[Tensor, "paths 3"]
) -> Float[Tensor, "paths degrees 3"]:
    """Return the Chebyshev coefficients of a map along paths: exact, by interpolation at enough points."""
    angles = math.pi * (torch.arange(_HIGHEST + 1, dtype=torch.float64) + 0.5) / (_HIGHEST + 1)
    t = angles.cos()[:, None]
    values = target(task, (first + second)[:, None] / 2 + t * (first - second)[:, None] / 2)
    degrees = torch.arange(_HIGHEST + 1, dtype=torch.float64)[:, None]
    weights = torch.where(degrees == 0, torch.ones_like(degrees), 2.0) / (_HIGHEST + 1)
    return weights * (degrees * angles).cos() @ values


def columns_along(coefficients: Float[Tensor, "paths degrees 3"]) -> dict[str, Float[Tensor, " paths"]]:
    """Return every column of every path."""
    sizes = coefficients.abs()
    # The scores of principal components vary by what is not constant. In the Chebyshev measure all T_k vary alike.
    _, _, directions = torch.linalg.svd(coefficients[:, 1:], full_matrices=False)
    scores = _weighted(coefficients @ directions.mT)
    return {
        "chebyshev": _weighted(coefficients).mean(-1),
        "normalized": (_weighted(coefficients) / sizes.sum(1)).mean(-1),
        "legendre": _weighted(_TO_LEGENDRE @ coefficients).mean(-1),
        "pca-1": scores[:, 0],
        "pca-2": scores[:, :2].mean(-1),
    }


def _weighted(coefficients: Tensor) -> Tensor:
    return (torch.arange(coefficients.shape[1], dtype=torch.float64)[:, None] * coefficients.abs()).sum(1)


def _to_legendre() -> Tensor:
    """Return the matrix that turns Chebyshev coefficients into Legendre coefficients."""
    columns = [np.polynomial.legendre.poly2leg(np.polynomial.chebyshev.cheb2poly(row)) for row in np.eye(_HIGHEST + 1)]
    return torch.tensor(np.stack([np.pad(column, (0, _HIGHEST + 1 - len(column))) for column in columns], axis=1))


_TO_LEGENDRE = _to_legendre()
