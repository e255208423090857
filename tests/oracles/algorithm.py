"""The paper's training algorithm (appendix E), line by line: one pair, one node and one output at a time."""

import math

import numpy as np

from tests.oracles.reference import damped_fit, drop_missing, effective_degree, principal_scores


def nodes_of_path(sampling, shares, *, anchored):
    """Place the nodes of one path by the paper's formulas.

    ``shares``, one number in [0, 1) per node, say where in its stratum each random angle lies.
    """
    r = len(shares)
    alpha = []
    for i in range(1, r + 1):
        if sampling == "chebyshev":
            alpha.append((1 - math.cos((2 * i - 1) * math.pi / (2 * r))) / 2)
        elif sampling == "uniform":
            alpha.append((i - 1) / (r - 1))
        elif anchored and i in (1, r):
            alpha.append(0.0 if i == 1 else 1.0)
        else:
            theta = (i - 1) * math.pi / r + shares[i - 1] * math.pi / r
            alpha.append((1 - math.cos(theta)) / 2)
    return alpha


def penalty_of_batch(
    model, x, labels, pairs, nodes, *, degree, basis, damping, anchored=False, components=None, normalized=False
):
    """Average the effective degree over pairs of a batch; ``model`` maps one example to its outputs.

    ``nodes`` are those of each pair. With anchoring, labels replace the outputs at the outer two, wherever these are.
    """
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
            values = drop_missing(values) if normalized else values
        coefficients = damped_fit(values, alpha, degree, basis, damping)
        total += effective_degree(coefficients, normalized=normalized)
    return total / len(pairs)
