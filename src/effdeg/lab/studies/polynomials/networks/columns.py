"""The five columns of the paper's table: what each measures, and what the paper found."""

from dataclasses import dataclass

from effdeg.functional._bases import Basis
from effdeg.measure._tracing import Trace


@dataclass(frozen=True)
class Column:
    """One way to measure the effective degree.

    Attributes:
        name: How it is called in summaries.
        title: How it is called in tables.
        paper: What the paper reports for tasks 1 to 6.
        basis: The polynomials.
        components: Principal components of each path's outputs; by default all outputs as they are.
        normalized: Whether it is the normalized effective degree, which does not change with the scale of the outputs.
    """

    name: str
    title: str
    paper: tuple[float, float, float, float, float, float]
    basis: Basis = "chebyshev"
    components: int | None = None
    normalized: bool = False


COLUMNS = (
    Column("chebyshev", "ED (Chebyshev)", (0.72, 1.17, 2.92, 1.34, 2.33, 5.30)),
    Column("normalized", "normalized ED", (0.29, 0.78, 1.17, 0.28, 0.82, 1.17), normalized=True),
    Column("legendre", "ED (Legendre)", (0.73, 1.33, 3.64, 1.35, 2.63, 6.64), basis="legendre"),
    Column("pca-1", "ED (PCA-1)", (1.40, 2.12, 5.32, 2.67, 4.13, 9.62), components=1),
    Column("pca-2", "ED (PCA-2)", (0.70, 1.34, 3.40, 1.34, 2.62, 6.16), components=2),
)


def measured(trace: Trace, degree: int) -> dict[str, dict[str, float]]:
    """Measure every column along the same paths: by name, the value and its standard error."""
    found = {}
    for column in COLUMNS:
        fitted = trace.fit(degree=degree, basis=column.basis, output="identity", components=column.components)
        value, stderr = fitted.estimate(normalized=column.normalized)
        found[column.name] = {"value": value, "stderr": stderr}
    return found
