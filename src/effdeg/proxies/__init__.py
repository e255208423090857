"""Other measures that may predict generalization: sharpness, norms, margins, Jacobians, regions, confidence, ….

Every proxy takes a model, data as :func:`evaluate` reads them, a loss if it needs one, and :class:`RunOptions`, and
returns a :class:`Result`. The model is left exactly as it was. An option that is unknown or of the wrong type raises
``TypeError`` and one out of range ``ValueError``, before any work starts; :class:`NotApplicable` is raised if a proxy
has no value for this model and these data.
"""

from effdeg.proxies._along_paths import (
    activation_changes,
    decision_regions,
    effective_degree,
    linear_regions,
    spectral_centroid,
    total_variation,
)
from effdeg.proxies._curvature import hessian_eigenvalue, hessian_trace
from effdeg.proxies._evaluator import NotApplicable, Result, RunOptions
from effdeg.proxies._jacobian import jacobian_norm
from effdeg.proxies._margins import margin, mixup_margin
from effdeg.proxies._norms import (
    distance,
    frobenius_product,
    frobenius_sum,
    parameter_norm,
    spectral_product,
    spectral_sum,
)
from effdeg.proxies._path_norm import path_norm
from effdeg.proxies._predictions import (
    confidence,
    cot,
    disagreement,
    energy,
    entropy,
    inconsistency,
    mano,
    nuclear_norm,
    thresholded_confidence,
)
from effdeg.proxies._registry import Table, check_names, evaluate, larger_is_better, names
from effdeg.proxies._sharpness import average_sharpness, sharpness

__all__ = [
    "NotApplicable",
    "Result",
    "RunOptions",
    "Table",
    "activation_changes",
    "average_sharpness",
    "check_names",
    "confidence",
    "cot",
    "decision_regions",
    "disagreement",
    "distance",
    "effective_degree",
    "energy",
    "entropy",
    "evaluate",
    "frobenius_product",
    "frobenius_sum",
    "hessian_eigenvalue",
    "hessian_trace",
    "inconsistency",
    "jacobian_norm",
    "larger_is_better",
    "linear_regions",
    "mano",
    "margin",
    "mixup_margin",
    "names",
    "nuclear_norm",
    "parameter_norm",
    "path_norm",
    "sharpness",
    "spectral_centroid",
    "spectral_product",
    "spectral_sum",
    "thresholded_confidence",
    "total_variation",
]
