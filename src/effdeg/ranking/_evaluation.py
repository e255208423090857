"""All statistics of all measures, on any resamples of the models."""

import numpy as np
from numpy.typing import NDArray

from effdeg.ranking._correlations import kendall, pearson, signs, spearman
from effdeg.ranking._information import ConditionalInformation
from effdeg.ranking._neighbours import Neighbours
from effdeg.ranking._pool import Pool
from effdeg.ranking._tables import Array

# Numbers held at once per pair of models: keeps memory moderate, and the tallies of a chunk in the cache.
_CHUNK = 2_000_000


def draw(clusters: NDArray[np.int64], resamples: int, seed: int) -> Array:
    """Draw clusters 0, 1, … of models with replacement; give how often each model was drawn, resamples × models."""
    number = int(clusters.max()) + 1
    drawn = np.random.default_rng(seed).integers(0, number, (resamples, number))
    return tally(drawn)[:, clusters]


def tally(drawn: NDArray[np.int64]) -> Array:
    """Count how often each of n things occurs in each row of n."""
    resamples, number = drawn.shape
    flat = (drawn + number * np.arange(resamples)[:, None]).ravel()
    return np.bincount(flat, minlength=resamples * number).reshape(resamples, number).astype(np.float64)


class Evaluation:
    """The statistics of a pool's measures, as functions of how often each model is counted.

    Attributes:
        neighbours: The pairs of models that differ in one hyperparameter alone; None if there are none.
        information: The conditional information; None without hyperparameters.
    """

    def __init__(self, pool: Pool) -> None:
        self._values, self._gaps = np.stack(list(pool.measures.values())), pool.gaps
        self._measure_signs, self._gap_signs = signs(self._values), signs(self._gaps)
        neighbours = Neighbours(pool) if pool.hyperparameters else None
        self.neighbours = neighbours if neighbours and neighbours.axes else None
        self.information = (
            ConditionalInformation(pool, self._measure_signs, self._gap_signs) if pool.hyperparameters else None
        )

    def __call__(self, counts: Array) -> dict[str, Array]:
        """Return every statistic by name, resamples × measures, and their parts with one more axis in front."""
        size = max(1, min(_CHUNK // counts.shape[1] ** 2, 128))
        chunks = [self._evaluate(counts[start : start + size]) for start in range(0, len(counts), size)]
        return {name: np.concatenate([chunk[name] for chunk in chunks], axis=-2) for name in chunks[0]}

    def _evaluate(self, counts: Array) -> dict[str, Array]:
        sides = self._measure_signs, self._gap_signs
        found = {
            "pearson": pearson(counts, self._values, self._gaps),
            "spearman": spearman(counts, *sides),
            "kendall": kendall(counts, *sides),
        }
        if self.neighbours:
            found["psi_by_axis"] = by_axis = self.neighbours.psi(counts, *sides)
            found["psi"] = _mean(by_axis)
        if self.neighbours and self.neighbours.environments:
            found["sign_errors"] = errors = self.neighbours.sign_errors(counts, *sides)
            found["sign_error"] = _mean(errors)
            found["worst_sign_error"] = np.fmax.reduce(errors)
        if self.information:
            found["information_by_set"] = by_set = self.information(counts)
            found["conditional_information"] = np.fmin.reduce(by_set)
        return found


def _mean(parts: Array) -> Array:
    """Average over the first axis what is defined; nan where nothing is."""
    defined = np.isfinite(parts).sum(0)
    average: Array = np.full(defined.shape, np.nan)
    np.divide(np.nansum(parts, axis=0), defined, where=defined > 0, out=average)
    return average
