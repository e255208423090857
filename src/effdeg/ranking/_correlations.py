"""Pearson's, Spearman's and Kendall's correlations on resamples, each given as how often it draws every model.

A resample is a row of counts; models drawn twice are two models with equal values. All arrays that come out are
resamples × measures, nan where a resample leaves the correlation undefined.
"""

import numpy as np

from effdeg.ranking._tables import Array


def signs(values: Array) -> Array:
    """Return the sign of every difference, value of the row minus value of the column; differences may overflow."""
    rows, columns = values[..., :, None], values[..., None, :]
    return (rows > columns).astype(np.float64) - (rows < columns)


def scaled(values: Array) -> Array:
    """Divide by a power of two, which is exact, so that no sum overflows."""
    largest = np.abs(values).max(-1, keepdims=True)
    shrunk: Array = np.ldexp(values, -np.frexp(largest)[1])
    return shrunk


def kendall(counts: Array, measures: Array, gaps: Array) -> Array:
    """Return Kendall's tau-b: a pair of models weighs the product of their counts, copies of one model are ties."""
    concordant = _paired(counts, measures * gaps)
    return _ratio(concordant, _paired(counts, measures**2), _paired(counts, gaps[None] ** 2))


def spearman(counts: Array, measures: Array, gaps: Array) -> Array:
    """Return Spearman's correlation: twice a model's rank, centred, is the sum of its signs to all models drawn."""
    one, other = counts @ measures, counts @ gaps[None]
    weights = counts[None]
    return _ratio(*((weights * product).sum(-1) for product in (one * other, one**2, other**2)))


def pearson(counts: Array, measures: Array, gaps: Array) -> Array:
    """Return Pearson's correlation, of the values themselves."""
    one, other = (_deviations(counts, values) for values in (measures, gaps[None]))
    weights = counts[None]
    return _ratio(*((weights * product).sum(-1) for product in (one * other, one**2, other**2)))


def _paired(counts: Array, matrices: Array) -> Array:
    """Sum over all pairs of models, weighed by the product of their counts: measures × resamples."""
    summed: Array = np.einsum("mbi,bi->mb", counts @ matrices, counts)
    return summed


def _deviations(counts: Array, values: Array) -> Array:
    """Return deviations from each resample's mean, the largest one scaled to 1: squares neither overflow nor vanish."""
    values = scaled(values)
    means = values @ counts.T / counts.sum(-1)
    drawn = counts > 0
    deviations: Array = np.where(drawn, values[:, None, :] - means[..., None], 0.0)
    largest = np.abs(deviations).max(-1, keepdims=True)
    low, high = (np.where(drawn, values[:, None, :], beyond) for beyond in (np.inf, -np.inf))
    # Equal values need not average to exactly themselves; what is left over must not pass for variation.
    largest[low.min(-1) == high.max(-1)] = np.inf
    deviations /= largest
    return deviations


def _ratio(product: Array, one: Array, other: Array) -> Array:
    """Divide by the geometric mean, with nan where it is zero; measures × resamples in, the transpose out."""
    scale = np.sqrt(one * other)
    defined = scale > 0
    quotient = np.divide(product, scale, where=defined, out=np.full_like(product, np.nan))
    clipped: Array = np.clip(quotient, -1.0, 1.0).T
    return clipped
