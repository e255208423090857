"""Polynomials whose degree is known: the six maps of appendix I with their exact values, and random ones.

Nothing here uses the fits of effdeg, so that the two can be compared.
"""

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from torch import Tensor

EXAMPLES_PER_PATH = 10
"""Error bars take paths to be independent: with this many examples for each path, few examples lie on two paths."""
DEGREES = {1: 1, 2: 2, 3: 5, 4: 1, 5: 2, 6: 5}
"""The total degree of each map, by task."""

# Inputs are uniform on [-2, 2]³. The paper does not say so, but its numbers follow from it.
HALF_SIDE = 2.0
# The mean distance between two points of a unit cube (Robbins' constant).
_ROBBINS = (
    4 + 17 * math.sqrt(2) - 6 * math.sqrt(3) + 21 * math.log(1 + math.sqrt(2)) + 42 * math.log(2 + math.sqrt(3))
) / 105 - math.pi / 15
# Independent scramblings of Sobol points, whose spread shows how accurate their mean is.
_SCRAMBLINGS = 16
# Sums of this many times their terms' sizes, or less, are rounding errors of zero.
_ROUNDING = 1e-14


def estimate_mean(sample: Tensor) -> dict[str, float]:
    """Return the mean of independent draws and its standard error."""
    return {"value": float(sample.mean()), "stderr": float(sample.std()) / math.sqrt(len(sample))}


@dataclass(frozen=True)
class Column:
    """A column of the paper's table: one way to measure the effective degree.

    Attributes:
        name: Its name in summaries.
        title: Its name in tables.
        paper: What the paper reports for tasks 1 to 6.
        basis: The polynomials.
        components: Principal components of each path's outputs; by default all outputs as they are.
        normalized: Whether it is the normalized effective degree, which does not change with the scale of the outputs.
    """

    name: str
    title: str
    paper: tuple[float, ...]
    basis: Literal["chebyshev", "legendre"] = "chebyshev"
    components: int | None = None
    normalized: bool = False

    @property
    def factor(self) -> int:
        """What doubling the outputs multiplies it by."""
        return 1 if self.normalized else 2


COLUMNS = (
    Column("chebyshev", "ED (Chebyshev)", (0.72, 1.17, 2.92, 1.34, 2.33, 5.30)),
    Column("normalized", "normalized ED", (0.29, 0.78, 1.17, 0.28, 0.82, 1.17), normalized=True),
    Column("legendre", "ED (Legendre)", (0.73, 1.33, 3.64, 1.35, 2.63, 6.64), basis="legendre"),
    Column("pca-1", "ED (PCA-1)", (1.40, 2.12, 5.32, 2.67, 4.13, 9.62), components=1),
    Column("pca-2", "ED (PCA-2)", (0.70, 1.34, 3.40, 1.34, 2.62, 6.16), components=2),
)


def compute_map(task: int, inputs: Tensor) -> Tensor:
    """Compute a map from R³ to R³; tasks 4 to 6 are tasks 1 to 3 times two."""
    x1, x2, x3 = inputs.unbind(-1)
    if task > 3:
        return 2 * compute_map(task - 3, inputs)
    if task == 1:
        return torch.stack([x3 + 2, x2 + 3, x1 + 1], dim=-1)
    if task == 2:
        return torch.stack([x1 * x2, x2 * x3, x1 * x3], dim=-1)
    return torch.stack([x1 * x2 * x3, x1**2 * x2 * x3**2, x1**2 * x2 * x3 + x2**2 * x3], dim=-1)


def draw_inputs(count: int, generator: torch.Generator) -> Tensor:
    """Draw inputs, in float64."""
    return HALF_SIDE * (2 * torch.rand(count, 3, dtype=torch.float64, generator=generator) - 1)


def compute_closed_forms(task: int) -> dict[str, float]:
    """Return the columns that can be integrated by hand, by name; none for tasks 3 and 6.

    Along a path between u and v, in t from -1 to 1, task 1 is a straight line: c₁ is (u - v)/2 in every output, and the
    length of u - v, halved, in the first principal component. For the normalized degree, |c₀| + |c₁| is the larger of
    the sizes of the two ends. The outputs of task 2, (a + bt)(c + dt), have c₁ = ad + bc, half the difference of the
    outputs at the ends, and a quadratic part bd t², which is bd T₂/2 or 2 bd P₂/3 but for a constant.
    """
    if task > 3:
        factors = {column.name: column.factor for column in COLUMNS}
        return {name: factors[name] * value for name, value in compute_closed_forms(task - 3).items()}
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


def integrate_columns(task: int, *, pairs: int, seed: int) -> dict[str, dict[str, float]]:
    """Average every column over scrambled Sobol points in the space of pairs; errors are those over scramblings."""
    means = []
    for scrambling in range(_SCRAMBLINGS):
        number = _SCRAMBLINGS * seed + scrambling
        points = torch.quasirandom.SobolEngine(6, scramble=True, seed=number)  # type: ignore[no-untyped-call]
        ends = HALF_SIDE * (2 * points.draw(max(1, pairs // _SCRAMBLINGS), dtype=torch.float64) - 1)
        columns = compute_columns(compute_path_coefficients(task, ends[:, :3], ends[:, 3:]))
        means.append(torch.stack([columns[column.name].mean() for column in COLUMNS]))
    samples = torch.stack(means, dim=1)
    return {column.name: estimate_mean(sample) for column, sample in zip(COLUMNS, samples, strict=True)}


def compute_path_coefficients(task: int, first: Tensor, second: Tensor) -> Tensor:
    """Return the Chebyshev coefficients (paths, degrees, 3) of a map along paths: exact, by interpolation."""
    count = max(DEGREES.values()) + 1
    angles = math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count
    t = angles.cos()[:, None]
    values = compute_map(task, (first + second)[:, None] / 2 + t * (first - second)[:, None] / 2)
    degrees = torch.arange(count, dtype=torch.float64)[:, None]
    weights = torch.where(degrees == 0, torch.ones_like(degrees), 2.0) / count
    return weights * (degrees * angles).cos() @ values


def compute_columns(coefficients: Tensor) -> dict[str, Tensor]:
    """Return every column for every path, from Chebyshev coefficients (paths, degrees, 3)."""
    sizes = coefficients.abs()
    # The scores of principal components vary by what is not constant. In the Chebyshev measure all T_k vary alike.
    _, _, directions = torch.linalg.svd(coefficients[:, 1:], full_matrices=False)
    scores = _weigh_by_degree(coefficients @ directions.mT)
    chebyshev = np.eye(coefficients.shape[1])
    legendre = [np.polynomial.legendre.poly2leg(np.polynomial.chebyshev.cheb2poly(row)) for row in chebyshev]
    to_legendre = np.stack([np.pad(row, (0, len(chebyshev) - len(row))) for row in legendre], axis=1)
    return {
        "chebyshev": _weigh_by_degree(coefficients).mean(-1),
        "normalized": (_weigh_by_degree(coefficients) / sizes.sum(1)).mean(-1),
        "legendre": _weigh_by_degree(torch.tensor(to_legendre) @ coefficients).mean(-1),
        "pca-1": scores[:, 0],
        "pca-2": scores[:, :2].mean(-1),
    }


def _weigh_by_degree(coefficients: Tensor) -> Tensor:
    return (torch.arange(coefficients.shape[1], dtype=torch.float64)[:, None] * coefficients.abs()).sum(1)


@dataclass(frozen=True, eq=False)
class RandomPolynomials:
    """Several polynomials with the same variables and total degree, as one map with an output for each.

    Attributes:
        exponents: For every term, the power of every variable (polynomials or 1, terms, variables).
        coefficients: The factor of every term (polynomials, terms).
        degree: The total degree.
    """

    exponents: Tensor
    coefficients: Tensor
    degree: int

    @classmethod
    def draw(
        cls, count: int, *, variables: int, degree: int, terms: int | None, generator: torch.Generator
    ) -> "RandomPolynomials":
        """Draw polynomials with normal coefficients.

        With ``terms``, each has as many monomials, drawn from all up to the degree, the first from those of the degree
        itself; else all monomials up to the degree.
        """
        if terms is None:
            places = combinations(range(variables + degree), variables)
            exponents = torch.tensor([[_read_exponents(bars) for bars in places]])
        else:
            leading = [_draw_exponents(variables - 1, degree, generator) for _ in range(count)]
            others = [_draw_exponents(variables, degree, generator) for _ in range(count * (terms - 1))]
            first = torch.tensor([[*powers, degree - sum(powers)] for powers in leading])
            rest = torch.tensor(others, dtype=torch.long).view(count, terms - 1, variables)
            exponents = torch.cat([first[:, None], rest], dim=1)
        coefficients = torch.randn(count, exponents.shape[1], dtype=torch.float64, generator=generator)
        return cls(exponents, coefficients, degree)

    def to(self, device: torch.device) -> "RandomPolynomials":
        """Move to a device."""
        return replace(self, exponents=self.exponents.to(device), coefficients=self.coefficients.to(device))

    def scale(self, inputs: Tensor) -> "RandomPolynomials":
        """Return multiples of the polynomials that have a standard deviation of one over these inputs."""
        return replace(self, coefficients=self.coefficients / self(inputs).std(0)[:, None])

    def __call__(self, inputs: Tensor) -> Tensor:
        """Compute all polynomials at every point."""
        powers = torch.ones_like(inputs)
        table = [powers]
        for _ in range(self.degree):
            powers = powers * inputs
            table.append(powers)
        by_power = torch.stack(table, dim=-1)
        monomials = by_power[:, 0, self.exponents[..., 0]]
        for variable in range(1, inputs.shape[1]):
            monomials = monomials * by_power[:, variable, self.exponents[..., variable]]
        return torch.einsum("npt,pt->np", monomials, self.coefficients)

    def compute_leading_coefficients(self, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the Chebyshev coefficient of the total degree D along paths from the leading part P_D alone.

        Along x + t v/2, t from -1 to 1, the power t^D has the factor P_D(v/2) (the paper's Lemma), and t^D is
        T_D/2^(D-1) but for lower degrees. The directions v are the differences of the ends (paths, variables).

        Returns:
            The coefficients (paths, polynomials), and whether each vanishes: the degree along the path is then lower.
        """
        leads = self.exponents.sum(-1) == self.degree
        leading = torch.where(leads, self.coefficients, 0.0)
        values, sizes = (replace(self, coefficients=each)(directions / 2) for each in (leading, leading.abs()))
        return values / 2 ** (self.degree - 1), values.abs() <= _ROUNDING * sizes.abs()


def _draw_exponents(variables: int, degree: int, generator: torch.Generator) -> list[int]:
    """Draw a monomial from all up to a degree, each as likely as any other."""
    places = torch.randperm(variables + degree, generator=generator)[:variables]
    return _read_exponents(sorted(places.tolist()))


def _read_exponents(places: "tuple[int, ...] | list[int]") -> list[int]:
    """Read exponents off bars among stars: the stars between a bar and the one before it."""
    return [place - before - 1 for before, place in zip([-1, *places], places, strict=False)]


def draw_examples(kind: str, count: int, variables: int, generator: torch.Generator) -> Tensor:
    """Draw examples, in float64."""
    if kind == "normal":
        return torch.randn(count, variables, dtype=torch.float64, generator=generator)
    if kind == "lattice":
        return torch.randint(-1, 2, (count, variables), generator=generator).double()
    return 2 * torch.rand(count, variables, dtype=torch.float64, generator=generator) - 1
