"""Pearson's, Spearman's and Kendall's correlations on many resamples at once.

A resample is a row of counts, which say how often it draws each model; a model drawn twice is two models with equal
values. All results are resamples × measures, nan where a resample leaves the correlation undefined.
"""

import numpy as np

from effdeg.ranking._tables import Array


def signs(values: Array) -> Array:
    """Return the sign of each difference, row minus column; the differences themselves might overflow."""
    rows, columns = values[..., :, None], values[..., None, :]
    return (rows > columns).astype(np.float64) - (rows < columns)


def scale_down(values: Array) -> Array:
    """Divide by a power of two, which is exact, so that no sum overflows."""
    largest = np.abs(values).max(-1, keepdims=True)
    scaled: Array = np.ldexp(values, -np.frexp(largest)[1])
    return scaled


def kendall(counts: Array, measure_signs: Array, gap_signs: Array) -> Array:
    """Return Kendall's τ_b = Σ s_ij t_ij / √(Σ s_ij² Σ t_ij²), with signs s, t of differences; copies are ties."""
    concordant = _sum_over_pairs(counts, measure_signs * gap_signs)
    return _divide(concordant, _sum_over_pairs(counts, measure_signs**2), _sum_over_pairs(counts, gap_signs[None] ** 2))


def spearman(counts: Array, measure_signs: Array, gap_signs: Array) -> Array:
    """Return Spearman's ρ: twice a model's centred rank is the sum of its signs to all models drawn."""
    return _correlate(counts, counts @ measure_signs, counts @ gap_signs[None])


def pearson(counts: Array, measures: Array, gaps: Array) -> Array:
    """Return Pearson's r = Σ (x - x̄)(y - ȳ) / √(Σ (x - x̄)² Σ (y - ȳ)²)."""
    return _correlate(counts, _deviations(counts, measures), _deviations(counts, gaps[None]))


def _sum_over_pairs(counts: Array, matrices: Array) -> Array:
    """Sum over all pairs of models, weighted by the product of their counts: measures × resamples."""
    total: Array = np.einsum("mbi,bi->mb", counts @ matrices, counts)
    return total


def _correlate(counts: Array, one: Array, other: Array) -> Array:
    """Correlate centred values: measures × resamples × models in, resamples × measures out."""
    weights = counts[None]
    return _divide(*((weights * product).sum(-1) for product in (one * other, one**2, other**2)))


def _deviations(counts: Array, values: Array) -> Array:
    """Return deviations from each resample's mean, the largest one scaled to 1: squares neither overflow nor vanish."""
    values = scale_down(values)
    means = values @ counts.T / counts.sum(-1)
    drawn = counts > 0
    deviations: Array = np.where(drawn, values[:, None, :] - means[..., None], 0.0)
    largest = np.abs(deviations).max(-1, keepdims=True)
    low, high = (np.where(drawn, values[:, None, :], beyond) for beyond in (np.inf, -np.inf))
    # The mean of equal values need not be exactly their value; the rounding error must not pass for variation.
    largest[low.min(-1) == high.max(-1)] = np.inf
    deviations /= largest
    return deviations


def _divide(product: Array, one: Array, other: Array) -> Array:
    """Divide by the geometric mean, with nan where it is zero; measures × resamples in, the transpose out."""
    scale = np.sqrt(one * other)
    quotient = np.divide(product, scale, where=scale > 0, out=np.full_like(product, np.nan))
    clipped: Array = np.clip(quotient, -1.0, 1.0).T
    return clipped
