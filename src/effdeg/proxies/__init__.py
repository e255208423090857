"""Other measures that may predict generalization: sharpness, norms, margins, Jacobians, regions, confidence, ….

Every proxy takes a model, data as :func:`evaluate` reads them, a loss if it needs one, and :class:`RunOptions`, and
returns a :class:`Result`. The model is left exactly as it was. An option that is unknown or of the wrong type raises
``TypeError`` and one out of range ``ValueError``, before any work starts; :class:`NotApplicable` is raised if a proxy
has no value for this model and these data.
"""

from functools import partial

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
from effdeg.proxies._margins import check_percentile, margin, mixup_margin
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
from effdeg.proxies._registry import PROXIES, Need, Proxy, Table, check_names, evaluate, larger_is_better, names
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

_LOSS: tuple[Need, ...] = ("weights", "labels", "loss")
# The radii of sharpness are the paper's; the tenth percentile of margins is that of Jiang et al. (2020).
PROXIES |= {
    "effective_degree": Proxy(effective_degree),
    "effective_degree_normalized": Proxy(partial(effective_degree, normalized=True)),
    "sharpness": Proxy(sharpness, _LOSS, "rho", (0.01, 0.05, 0.1)),
    "adaptive_sharpness": Proxy(partial(sharpness, adaptive=True), _LOSS, "rho", (0.01, 0.05, 0.1, 0.5, 1.0)),
    "average_sharpness": Proxy(average_sharpness, _LOSS, "sigma", (0.01,)),
    "parameter_norm": Proxy(parameter_norm, ("weights",)),
    "distance": Proxy(distance, ("weights", "reference")),
    "frobenius_product": Proxy(frobenius_product, ("weights",)),
    "frobenius_sum": Proxy(frobenius_sum, ("weights",)),
    "spectral_product": Proxy(spectral_product, ("weights",)),
    "spectral_sum": Proxy(spectral_sum, ("weights",)),
    "path_norm": Proxy(path_norm, ("weights",)),
    "margin": Proxy(margin, ("labels",), "percentile", (10, 50), check_percentile, larger_is_better=True),
    "spectral_margin": Proxy(
        partial(margin, spectral=True),
        ("labels", "weights"),
        "percentile",
        (10, 50),
        check_percentile,
        larger_is_better=True,
    ),
    "mixup_margin": Proxy(mixup_margin, ("labels",), larger_is_better=True),
    "jacobian_norm": Proxy(jacobian_norm),
    "decision_regions": Proxy(decision_regions),
    "linear_regions": Proxy(linear_regions),
    "activation_changes": Proxy(activation_changes),
    "spectral_centroid": Proxy(spectral_centroid),
    "total_variation": Proxy(total_variation),
    "hessian_eigenvalue": Proxy(hessian_eigenvalue, _LOSS),
    "hessian_trace": Proxy(hessian_trace, _LOSS),
    "confidence": Proxy(confidence, larger_is_better=True),
    "entropy": Proxy(entropy),
    "nuclear_norm": Proxy(nuclear_norm, larger_is_better=True),
    "mano": Proxy(mano, larger_is_better=True),
    "energy": Proxy(energy, larger_is_better=True),
    "cot": Proxy(cot),
    "inconsistency": Proxy(inconsistency, ("change",)),
    "inconsistency_soft": Proxy(partial(inconsistency, soft=True), ("change",)),
    "disagreement": Proxy(disagreement, ("others",)),
    "thresholded_confidence": Proxy(thresholded_confidence, ("labeled",), larger_is_better=True),
}
