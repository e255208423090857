"""The maths: pure functions of tensors, batched over any leading dimensions, differentiable in the values."""

from effdeg.functional._bases import basis_matrix, evaluate
from effdeg.functional._degree import effective_degree
from effdeg.functional._fitting import DAMPING, condition_number, fit, fit_operator
from effdeg.functional._nodes import chebyshev_nodes, cosine_nodes, uniform_nodes
from effdeg.functional._projection import project

__all__ = [
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
