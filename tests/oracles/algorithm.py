"""The paper's training algorithm (appendix E), line by line: one pair, one node and one output at a time."""

import numpy as np

from tests.oracles.reference import damped_fit, effective_degree, principal_scores


def penalty_of_batch(
    model, x, labels, pairs, nodes, *, degree, basis, damping, anchored=False, components=None, normalized=False
):
    """Average the effective degree over pairs of a batch; ``model`` maps one example to its outputs."""
    total = 0.0
    for (first, second), alpha in zip(pairs, nodes, strict=True):
        outputs = []
        for a in alpha:
            point = a * x[first] + (1 - a) * x[second]
            outputs.append(model(point))
        if anchored:
            outputs[0] = labels[second]
            outputs[-1] = labels[first]
        values = np.stack(outputs)
        if components is not None:
            values = principal_scores(values, components)
        coefficients = damped_fit(values, alpha, degree, basis, damping)
        total += effective_degree(coefficients, normalized=normalized)
    return total / len(pairs)
