"""All statistics of all measures, on any resamples of the models."""

import numpy as np

from effdeg.ranking.correlations import kendall, pearson, signs, spearman
from effdeg.ranking.information import ConditionalInformation
from effdeg.ranking.neighbours import Neighbours
from effdeg.ranking.pool import Pool
from effdeg.ranking.tables import Array

# Numbers held at once per pair of models: keeps memory moderate, and the tallies of a chunk in the cache.
_CHUNK = 2_000_000


def draw(models: int, resamples: int, seed: int) -> Array:
    """Draw models with replacement; give how often each was drawn, resamples × models."""
    drawn = np.random.default_rng(seed).integers(0, models, (resamples, models))
    return tally(drawn)


def tally(drawn: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Array:
    """Count how often each of n models occurs in each row of n."""
    resamples, models = drawn.shape
    flat = (drawn + models * np.arange(resamples)[:, None]).ravel()
    return np.bincount(flat, minlength=resamples * models).reshape(resamples, models).astype(np.float64)


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
        """Give every statistic by name, resamples × measures, and their parts with one more axis in front."""
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
