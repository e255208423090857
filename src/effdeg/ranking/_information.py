"""What the order of a measure tells about the order of the gaps, hyperparameters being known."""

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.imports import require
from effdeg.ranking._pool import Pool
from effdeg.ranking._tables import Array

Indices = NDArray[np.integer[Any]]


class ConditionalInformation:
    """The normalized conditional mutual information of Jiang et al. (2020).

    Over all ordered pairs of models whose gaps differ, I(V; G | U) / H(G | U): V and G are the signs of the differences
    in the measure and in the gap, U the values of a set of at most two hyperparameters for both models. It does not see
    whether a measure ranks rightly or wrongly, only whether its order tells the order of the gaps.

    Attributes:
        sets: The sets of hyperparameters that leave the gaps a choice, the empty one first.
    """

    def __init__(self, pool: Pool, measures: Array, gaps: Array) -> None:
        self._first, self._second = np.nonzero(gaps)
        rises = gaps[self._first, self._second] > 0
        self.sets: list[tuple[str, ...]] = []
        found = []
        for chosen in (chosen for size in range(3) for chosen in combinations(pool.hyperparameters, size)):
            cells, times = self._cells([pool.hyperparameters[name] for name in chosen], rises)
            if len(times):
                self.sets.append(chosen)
                found.append((cells, times))
        sizes = [len(times) for _, times in found]
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._times = np.concatenate([times for _, times in found])
        self._shape = (len(self._times), 3, 2)
        # Pairs by set: where they are tallied, and which they are.
        pairs = np.concatenate([np.flatnonzero(cells >= 0) for cells, _ in found])
        rows = np.concatenate([
            cells[cells >= 0] + start for (cells, _), start in zip(found, self._starts, strict=True)
        ])
        sparse = require("scipy.sparse", extra="ranking", purpose="effdeg.ranking")
        ones, shape = np.ones(len(pairs), dtype=np.int32), (len(self._times) * 6, len(rises))
        symbols = ((measure[self._first, self._second] + 1) * 2 + rises for measure in measures)
        self._tallies = [
            sparse.csr_array((ones, (rows * 6 + symbol[pairs].astype(np.int64), pairs)), shape=shape)
            for symbol in symbols
        ]

    def __call__(self, counts: Array) -> Array:
        """Return it for each set: sets × resamples × measures, nan where knowing the set leaves the gaps no choice."""
        drawn = counts.T.astype(np.int32)
        weights = drawn[self._first] * drawn[self._second]
        # Counts are whole numbers up to the number of ordered pairs: their x log x is looked up.
        whole = np.arange(int(drawn.sum(0).max()) ** 2 + 1, dtype=np.float64)
        x_log_x = whole * np.log(np.maximum(whole, 1))
        # For n pairs, n H(G | U): at least 2 log 2 as soon as both signs occur somewhere, whatever the rounding.
        by_gap = self._tallied(self._tallies[0], weights).sum(1)
        free = self._total(by_gap.sum(1), x_log_x) - self._total(by_gap, x_log_x)
        found = []
        for tally in self._tallies:
            joint = self._tallied(tally, weights)
            left = self._total(joint.sum(2), x_log_x) - self._total(joint, x_log_x)  # n H(G | U, V)
            found.append(np.divide(free - left, free, where=free > 1, out=np.full_like(free, np.nan)))
        shares: Array = np.clip(np.stack(found, axis=-1), 0.0, 1.0)
        shares[shares < 1e-12] = 0.0  # rounding tells nothing
        return shares

    def _cells(self, codes: list[Indices], rises: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """Sort the pairs into cells by the values of both models.

        A cell in which the gap has one sign only adds nothing, in no resample. A cell and the one with its two values
        exchanged add the same: one of them is tallied, and counts twice.

        Args:
            codes: The hyperparameters.
            rises: The sign of each pair's gap.

        Returns:
            The cell of each pair, -1 for those that need no tally; and how many times each cell counts.
        """
        if not codes:
            return np.zeros(len(rises), dtype=np.int64), np.ones(1, dtype=np.int64)
        value = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        one, other = value[self._first], value[self._second]
        keys, cell = np.unique(one * len(value) + other, return_inverse=True)
        low, high = np.divmod(keys, len(value))
        rising = np.bincount(cell, rises)
        kept = (low <= high) & (rising > 0) & (rising < np.bincount(cell))
        numbers = np.where(kept, np.cumsum(kept) - 1, -1)
        return numbers[cell], np.where(low == high, 1, 2)[kept]

    def _tallied(self, tally: Any, weights: Indices) -> Indices:
        """Count each cell's pairs: cells × signs of the measure × signs of the gap × resamples."""
        counted: Indices = (tally @ weights).reshape(*self._shape, -1)
        return counted

    def _total(self, tallied: Indices, x_log_x: Array) -> Array:
        """Sum x log x over all cells of each set: sets × resamples."""
        terms = x_log_x.take(tallied)
        by_cell = terms.sum(tuple(range(1, terms.ndim - 1))) * self._times[:, None]
        summed: Array = np.add.reduceat(by_cell, self._starts, axis=0)
        return summed
