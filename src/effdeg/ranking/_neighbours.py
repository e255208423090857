"""Models that differ in one hyperparameter alone: granulated Kendall's tau and sign errors.

All arrays that come out end in resamples × measures, nan where a resample has no such pair of models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg.ranking._pool import Pool, shown
from effdeg.ranking._tables import Array, is_number

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Environment:
    """A step of one hyperparameter from a value to another, all others held fixed.

    Numbers step to the next larger one among all values in the table. Texts have no order: each pair of them is a step,
    from the one that comes first by name.

    Attributes:
        hyperparameter: Its name.
        before: The one value.
        after: The other.
        pairs: How many pairs of models it holds.
    """

    hyperparameter: str
    before: Any
    after: Any
    pairs: int

    def __str__(self) -> str:
        return f"{self.hyperparameter} {shown(self.before)} → {shown(self.after)}"


class Neighbours:
    """All pairs of models that differ in one hyperparameter alone.

    Models with the same configuration, such as several seeds of one, are compared with the models of every other
    configuration, and never with one another.

    Attributes:
        axes: The hyperparameters in which alone some models differ.
        environments: The steps, between neighbouring numbers or any two texts, that some models take.
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

    def psi(self, counts: Array, measures: Array, gaps: Array) -> Array:
        """Return the granulated Kendall's tau of each axis.

        For each setting of the other hyperparameters, the mean over pairs of the product of signs; then the mean over
        settings (Jiang et al. 2020, "Fantastic generalization measures and where to find them"). As there, a tie
        counts as 0.

        Args:
            counts: How often each resample draws each model.
            measures: The signs of the measures' differences.
            gaps: The signs of the gaps' differences.

        Returns:
            Axes × resamples × measures.
        """
        found = []
        for pairs, starts in self._by_axis:
            weights, agreement = self._weights(counts, pairs), self._agreement(pairs, measures, gaps)
            totals = np.add.reduceat(weights, starts, axis=1)
            settings = (totals > 0).sum(1, keepdims=True)
            sizes = np.diff(starts, append=len(pairs))
            # A setting without a pair has weights of zero: it adds nothing, and is not counted.
            share = weights / np.repeat(np.maximum(totals, 1), sizes, axis=1)
            found.append(_divided(share @ agreement, settings))
        return np.stack(found)

    def sign_errors(self, counts: Array, measures: Array, gaps: Array) -> Array:
        """Return how often the measure and the gap move in opposite directions, environment by environment.

        A pair in which either stays the same counts one half (Dziugaite et al. 2020, "In search of robust measures of
        generalization").

        Args:
            counts: How often each resample draws each model.
            measures: The signs of the measures' differences.
            gaps: The signs of the gaps' differences.

        Returns:
            Environments × resamples × measures.
        """
        found = []
        for pairs in self._by_environment:
            weights, agreement = self._weights(counts, pairs), self._agreement(pairs, measures, gaps)
            found.append(_divided(weights @ (1 - agreement) / 2, weights.sum(1, keepdims=True)))
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

    def _agreement(self, pairs: Indices, measures: Array, gaps: Array) -> Array:
        """Multiply the signs of measure and gap: pairs × measures."""
        first, second = self._first[pairs], self._second[pairs]
        agreement: Array = (measures[:, first, second] * gaps[first, second]).T
        return agreement


def _divided(total: Array, weight: Array) -> Array:
    return np.divide(total, weight, where=weight > 0, out=np.full_like(total, np.nan))
