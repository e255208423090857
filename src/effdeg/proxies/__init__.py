"""What else predicts generalization: sharpness, norms, margins, Jacobians, regions and curvature, in one table."""

from effdeg.proxies.along_paths import decision_regions, effective_degree, linear_regions, total_variation
from effdeg.proxies.curvature import hessian_eigenvalue, hessian_trace
from effdeg.proxies.jacobian import jacobian_norm
from effdeg.proxies.margins import margin, mixup_margin
from effdeg.proxies.norms import (
    distance,
    frobenius_product,
    frobenius_sum,
    parameter_norm,
    spectral_product,
    spectral_sum,
)
from effdeg.proxies.path_norm import path_norm
from effdeg.proxies.registry import check_names, evaluate, names
from effdeg.proxies.result import Result, Table
from effdeg.proxies.sharpness import average_sharpness, sharpness
from effdeg.proxies.study import NotApplicable, Running

__all__ = [
    "NotApplicable",
    "Result",
    "Running",
    "Table",
    "average_sharpness",
    "check_names",
    "decision_regions",
    "distance",
    "effective_degree",
    "evaluate",
    "frobenius_product",
    "frobenius_sum",
    "hessian_eigenvalue",
    "hessian_trace",
    "jacobian_norm",
    "linear_regions",
    "margin",
    "mixup_margin",
    "names",
    "parameter_norm",
    "path_norm",
    "sharpness",
    "spectral_product",
    "spectral_sum",
    "total_variation",
]
