"""Statistics that hold hyperparameters fixed: granulated Kendall's Ψ, sign errors, conditional mutual information.

All results end in resamples × measures, nan where a resample leaves the statistic undefined. Models enter as the signs
of the differences in their measures (measures × models × models) and in their gaps (models × models).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.optional import require
from effdeg.ranking._pool import Indices, Pool, format_cell
from effdeg.ranking._tables import Array, is_number


@dataclass(frozen=True)
class Environment:
    """A step of one hyperparameter from one value to another, all others held fixed (Dziugaite et al., 2020).

    A number steps to the next larger one among all values in the table. Texts have no order: each pair of them is a
    step, from the one that comes first by name.

    Example:
        >>> from effdeg.ranking import Environment
        >>> print(Environment("lr", before=0.1, after=0.3, pairs=4))
        lr 0.1 → 0.3

    Attributes:
        hyperparameter: Its name.
        before: The value before the step.
        after: The value after it.
        pairs: The number of pairs of models that differ by this step alone.
    """

    hyperparameter: str
    before: Any
    after: Any
    pairs: int

    def __str__(self) -> str:
        return f"{self.hyperparameter} {format_cell(self.before)} → {format_cell(self.after)}"


class Neighbours:
    """All pairs of models that differ in one hyperparameter alone.

    Models of the same configuration, such as several seeds, are compared with those of every other configuration, and
    never with one another.

    Attributes:
        axes: The hyperparameters in which alone some models differ.
        environments: The steps, between adjacent numbers or any two texts, that some models take.
    """

    def __init__(self, pool: Pool) -> None:
        codes = np.stack(list(pool.hyperparameters.values()), axis=1)
        first, second = np.triu_indices(len(pool), k=1)
        differs = codes[first] != codes[second]
        alone = differs.sum(1) == 1
        self._first, self._second = first[alone], second[alone]
        axis = differs[alone].argmax(1)
        self.axes: list[str] = []
        self.environments: list[Environment] = []
        self._by_axis: list[tuple[Indices, Indices]] = []
        self._by_environment: list[Indices] = []
        for number, (name, code) in enumerate(pool.hyperparameters.items()):
            chosen = np.flatnonzero(axis == number)
            if not len(chosen):
                continue
            others = np.delete(codes[self._first[chosen]], number, axis=1)
            setting = np.unique(others, axis=0, return_inverse=True)[1].reshape(-1)
            order = np.argsort(setting, kind="stable")
            self.axes.append(name)
            self._by_axis.append((chosen[order], np.flatnonzero(np.diff(setting[order], prepend=-1))))
            self._add_environments(name, code, pool.levels[name], chosen)

    def psi(self, counts: Array, measure_signs: Array, gap_signs: Array) -> Array:
        """Return Ψ of each axis, axes × resamples × measures.

        It is the mean of s_ij t_ij over the pairs of each setting of the other hyperparameters, averaged over the
        settings (Jiang et al., 2020). A tie counts as 0.
        """
        found = []
        for pairs, starts in self._by_axis:
            weights, agreement = self._weights(counts, pairs), self._agreement(pairs, measure_signs, gap_signs)
            totals = np.add.reduceat(weights, starts, axis=1)
            settings = (totals > 0).sum(1, keepdims=True)
            sizes = np.diff(starts, append=len(pairs))
            # A setting without a pair has weights of zero: it adds nothing, and is not counted.
            share = weights / np.repeat(np.maximum(totals, 1), sizes, axis=1)
            found.append(_divide(share @ agreement, settings))
        return np.stack(found)

    def sign_errors(self, counts: Array, measure_signs: Array, gap_signs: Array) -> Array:
        """Return the mean of (1 - s_ij t_ij) / 2 in each environment, environments × resamples × measures."""
        found = []
        for pairs in self._by_environment:
            weights, agreement = self._weights(counts, pairs), self._agreement(pairs, measure_signs, gap_signs)
            found.append(_divide(weights @ (1 - agreement) / 2, weights.sum(1, keepdims=True)))
        return np.stack(found)

    def _add_environments(self, name: str, code: Indices, levels: Sequence[Any], chosen: Indices) -> None:
        one, other = code[self._first[chosen]], code[self._second[chosen]]
        ordered = all(is_number(level) for level in levels)
        for before, after in pairwise(range(len(levels))) if ordered else combinations(range(len(levels)), 2):
            step = chosen[(np.minimum(one, other) == before) & (np.maximum(one, other) == after)]
            if len(step):
                self.environments.append(Environment(name, levels[before], levels[after], len(step)))
                self._by_environment.append(step)

    def _weights(self, counts: Array, pairs: Indices) -> Array:
        return counts[:, self._first[pairs]] * counts[:, self._second[pairs]]

    def _agreement(self, pairs: Indices, measure_signs: Array, gap_signs: Array) -> Array:
        """Multiply the signs of measure and gap: pairs × measures."""
        first, second = self._first[pairs], self._second[pairs]
        agreement: Array = (measure_signs[:, first, second] * gap_signs[first, second]).T
        return agreement


class ConditionalInformation:
    """The normalized conditional mutual information I(V; G | U) / H(G | U) of Jiang et al. (2020).

    Over all ordered pairs of models whose gaps differ, V and G are the signs of the differences in the measure and in
    the gap, and U the values of a set of at most two hyperparameters for both models. It is blind to the direction: a
    measure that always ranks wrongly scores as high as one that always ranks rightly.

    Attributes:
        sets: The sets of hyperparameters given which G is not determined, the empty one first.
    """

    def __init__(self, pool: Pool, measure_signs: Array, gap_signs: Array) -> None:
        self._first, self._second = np.nonzero(gap_signs)
        rises = gap_signs[self._first, self._second] > 0
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
        symbols = ((sign[self._first, self._second] + 1) * 2 + rises for sign in measure_signs)
        self._tallies = [
            sparse.csr_array((ones, (rows * 6 + symbol[pairs].astype(np.int64), pairs)), shape=shape)
            for symbol in symbols
        ]

    def __call__(self, counts: Array) -> Array:
        """Return it for each set, sets × resamples × measures; nan where the set determines G."""
        drawn = counts.T.astype(np.int32)
        weights = drawn[self._first] * drawn[self._second]
        # Counts are whole numbers up to the number of ordered pairs: their x log x is looked up.
        whole = np.arange(int(drawn.sum(0).max()) ** 2 + 1, dtype=np.float64)
        x_log_x = whole * np.log(np.maximum(whole, 1))
        # For n pairs, n H(G | U): at least 2 log 2 as soon as both signs occur somewhere, whatever the rounding.
        by_gap = self._count(self._tallies[0], weights).sum(1)
        entropy = self._sum(by_gap.sum(1), x_log_x) - self._sum(by_gap, x_log_x)
        found = []
        for tally in self._tallies:
            joint = self._count(tally, weights)
            remaining = self._sum(joint.sum(2), x_log_x) - self._sum(joint, x_log_x)  # n H(G | U, V)
            found.append(np.divide(entropy - remaining, entropy, where=entropy > 1, out=np.full_like(entropy, np.nan)))
        shares: Array = np.clip(np.stack(found, axis=-1), 0.0, 1.0)
        shares[shares < 1e-12] = 0.0  # a rounding error is no information
        return shares

    def _cells(self, codes: list[Indices], rises: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """Return the cell of each pair by the values of both models (-1: no need to tally it), and each cell's weight.

        A cell in which the gap has one sign only adds nothing in any resample. A cell and the one with its two values
        exchanged add the same: one of them is tallied, and counts twice.
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

    def _count(self, tally: Any, weights: Indices) -> Indices:
        """Count the pairs of each cell: cells × signs of the measure × signs of the gap × resamples."""
        counted: Indices = (tally @ weights).reshape(*self._shape, -1)
        return counted

    def _sum(self, counted: Indices, x_log_x: Array) -> Array:
        """Sum x log x over all cells of each set: sets × resamples."""
        terms = x_log_x.take(counted)
        by_cell = terms.sum(tuple(range(1, terms.ndim - 1))) * self._times[:, None]
        total: Array = np.add.reduceat(by_cell, self._starts, axis=0)
        return total


def _divide(total: Array, weight: Array) -> Array:
    return np.divide(total, weight, where=weight > 0, out=np.full_like(total, np.nan))
