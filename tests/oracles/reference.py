"""The paper's estimator, line by line, one path and one output at a time."""

import numpy as np
from numpy.polynomial import chebyshev, legendre

VANDER = {"chebyshev": chebyshev.chebvander, "legendre": legendre.legvander}
FIT = {"chebyshev": chebyshev.chebfit, "legendre": legendre.legfit}
EVALUATE = {"chebyshev": chebyshev.chebval, "legendre": legendre.legval}


def damped_fit(values, alpha, degree, basis, damping):
    """Solve (TᵀT + eps I) c = Tᵀ y for one path; values are nodes × outputs."""
    design = VANDER[basis](2 * np.asarray(alpha) - 1, degree)
    if damping == 0:
        return np.linalg.lstsq(design, values, rcond=None)[0]
    return np.linalg.solve(design.T @ design + damping * np.eye(degree + 1), design.T @ values)


def principal_scores(values, components):
    """PCA of one path's values by a full SVD of the centered nodes × outputs matrix."""
    centered = values - values.mean(0)
    left, singular, _ = np.linalg.svd(centered, full_matrices=False)
    singular[singular < 1e-12 * singular[0]] = 0.0  # directions without variation
    return left[:, :components] * singular[:components]


def drop_missing(scores):
    """Leave out components in which a path does not vary, which have no normalized degree; of a constant keep one."""
    varies = scores.any(0)
    return scores[:, varies] if varies.any() else scores[:, :1]


def effective_degree(coefficients, normalized=False):
    """Definition 3.2 for one path, output by output."""
    per_output = []
    for column in coefficients.T:
        total = sum(k * abs(c) for k, c in enumerate(column))
        if normalized:
            weight = sum(abs(c) for c in column)
            total = total / weight if weight > 0 else 0.0
        per_output.append(total)
    return float(np.mean(per_output))


def softmax(values):
    shifted = np.exp(values - values.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def effective_degree_of_path(
    function, first, second, alpha, *, degree, basis="chebyshev", components=None, damping=0.0
):
    """Walk from the second example (alpha = 0) to the first (alpha = 1); returns raw and normalized."""
    values = np.stack([function(a * first + (1 - a) * second) for a in alpha])
    if components is not None:
        values = principal_scores(values, components)
    coefficients = damped_fit(values, alpha, degree, basis, damping)
    raw = effective_degree(coefficients)
    if components is not None:
        coefficients = damped_fit(drop_missing(values), alpha, degree, basis, damping)
    return raw, effective_degree(coefficients, normalized=True)
