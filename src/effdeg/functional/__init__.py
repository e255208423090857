"""The maths: pure functions of tensors, batched over any leading dimensions, differentiable in the values.

The pipeline of the library on plain tensors: sample a path, fit a polynomial, weigh its coefficients by degree. The
method, and the numbers of the definitions, are those of *Quantifying and Optimizing Simplicity via Polynomial
Representations* (Zhang et al., ICML 2026).

    >>> from effdeg.functional import chebyshev_nodes, effective_degree, fit
    >>> alpha = chebyshev_nodes(20)
    >>> parabola = (2 * alpha - 1).square()[:, None]  # t² = (T_0 + T_2) / 2
    >>> round(effective_degree(fit(parabola, alpha, degree=5)).item(), 6)
    1.0
"""

from effdeg.functional._bases import BASES, basis_matrix, effective_degree, evaluate
from effdeg.functional._fitting import DAMPING, condition_number, fit, fit_operator
from effdeg.functional._nodes import chebyshev_nodes, cosine_nodes, uniform_nodes
from effdeg.functional._projection import project

__all__ = [
    "BASES",
    "DAMPING",
    "basis_matrix",
    "chebyshev_nodes",
    "condition_number",
    "cosine_nodes",
    "effective_degree",
    "evaluate",
    "fit",
    "fit_operator",
    "project",
    "uniform_nodes",
]
