"""Optimal transport from many examples, of equal mass, to few classes."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-9  # of masses, where an example has mass 1


def transport(costs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the mean cost of the cheapest assignment of examples to classes in which all classes get the same share.

    Also return the prices of examples (of the dual solution): a price is how fast the mean cost rises with the mass of
    an example, up to a constant that all have in common.

    Successive shortest paths (Ahuja, Magnanti and Orlin 1993, section 9.7): every example starts in the class that is
    cheapest with a fee; then mass moves from a class with too much to one with too little, along the chain of classes
    where this adds least to the cost. An example may be divided among classes. The fees only save moves.

    Args:
        costs: Of each example in each class, examples × classes.
    """
    costs, (count, classes) = np.ascontiguousarray(costs.T), costs.shape
    mass, fees = np.zeros_like(costs), _guess_fees(costs)
    mass[(costs + fees[:, None]).argmin(0), np.arange(count)] = 1.0
    excess = mass.sum(1) - count / classes
    # What it costs to move one example from a class to another, and which example that is.
    prices, movers = np.full((classes, classes), np.inf), np.zeros((classes, classes), np.int64)
    potential, changed = -fees, set(range(classes))
    while True:
        for one in changed:
            rows = np.flatnonzero(mass[one] > _ROUNDING)
            if len(rows):
                cheapest = (costs[:, rows] - costs[one, rows]).argmin(1)
                movers[one] = rows[cheapest]
            prices[one] = costs[range(classes), movers[one]] - costs[one, movers[one]] if len(rows) else np.inf
        if excess.max() <= _ROUNDING or excess.min() >= -_ROUNDING:
            return float((mass * costs).sum() / count), (costs - potential[:, None]).min(0)
        # Dijkstra's algorithm, from all classes with too much to the nearest with too little.
        distance, before = np.where(excess > _ROUNDING, 0.0, np.inf), np.full(classes, -1)
        done = np.zeros(classes, bool)
        while excess[end := int(np.where(done, np.inf, distance).argmin())] >= -_ROUNDING:
            through = distance[end] + np.maximum(prices[end] + potential[end] - potential, 0.0)
            done[end] = True
            nearer = ~done & (through < distance)
            distance[nearer], before[nearer] = through[nearer], end
        potential += np.minimum(distance, distance[end])
        chain = [end]
        while before[chain[-1]] >= 0:
            chain.append(int(before[chain[-1]]))
        moves = [(one, other, movers[one, other]) for other, one in pairwise(chain)]
        amount = min(excess[chain[-1]], -excess[end], *(mass[one, row] for one, _, row in moves))
        for one, other, row in moves:
            mass[[one, other], row] += -amount, amount
        excess[[chain[-1], end]] += -amount, amount
        changed = set(chain)


def _guess_fees(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a fee for each class with which the classes that are cheapest have nearly equal shares.

    Sinkhorn's iterations: each example is divided by a softmax, of which the temperature falls.
    """
    classes, divided = len(costs), costs.astype(np.float32)
    fees = np.zeros(classes)
    for temperature in float(divided.std()) * np.geomspace(1, 1e-3, 12).repeat(4):
        if temperature == 0:
            break
        logits = (divided + fees[:, None].astype(np.float32)) / np.float32(-temperature)
        weights = np.exp(logits - logits.max(0))
        found = (weights / weights.sum(0)).mean(1)
        fees += temperature * np.log(np.maximum(found, np.finfo(float).tiny) * classes)
    fees -= fees.min()
    return fees
