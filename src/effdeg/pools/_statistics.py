"""The statistics of a ranking, on many resamples at once.

A resample is a row of counts, how often it draws each model; a model drawn twice is two models with equal values.
Models enter as the signs of the differences in their measures (measures × models × models) and in their gaps
(models × models). All results end in resamples × measures, nan where a resample leaves the statistic undefined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.checks import suggest
from effdeg._utils.imports import require
from effdeg.pools._ranked import Array, Indices, Pool

Interval = tuple[float, float]

CORRELATIONS = ("pearson", "kendall")
"""By these a variant may be the best one."""
LEVEL = 0.95
"""Of all intervals."""
# Beyond, z = atanh r is infinite: all models in a row.
_LARGEST = 1 - 1e-12

STATISTICS = {
    "pearson": "Pearson's r",
    "spearman": "Spearman's rho",
    "kendall": "Kendall's tau",
    "psi": "granulated Kendall's Psi",
    "sign_error": "the mean sign error",
    "worst_sign_error": "the worst sign error",
    "conditional_information": "conditional information",
}


@dataclass(frozen=True)
class Statistic:
    """A number and its interval.

    The interval is None if there are too few models to resample, or more than half of the resamples leave the number
    undefined.

    Example:
        >>> from effdeg.pools import Statistic
        >>> print(Statistic(0.5, (0.25, 0.75)))
        0.50 (0.25 to 0.75)
    """

    value: float
    interval: Interval | None

    def __str__(self) -> str:
        return f"{self.value:z.2f} ({'interval ' if self.interval is None else ''}{format_range(self.interval)})"


@dataclass(frozen=True)
class Score:
    """How well one measure ranks the pool.

    For models i and j, let s_ij and t_ij be the signs of the differences in the measure and in the gap.

    - Kendall's τ_b = Σ s_ij t_ij / √(Σ s_ij² Σ t_ij²) over all pairs; Spearman's ρ is Pearson's r of the ranks.
    - Granulated Kendall's Ψ (Jiang et al., 2020, "Fantastic generalization measures and where to find them"): among
      models that differ in one hyperparameter alone, the mean of s_ij t_ij for each setting of the others, then the
      mean over settings, then over hyperparameters. A tie counts as 0.
    - Sign error (Dziugaite et al., 2020, "In search of robust measures of generalization"): the mean of
      (1 - s_ij t_ij) / 2 over the pairs of an environment: a step of one hyperparameter with all others held fixed. A
      number steps to the next larger one in the table; of texts, which have no order, each pair is a step. 0 is
      perfect, 0.5 is chance. ``sign_error`` is the mean over environments, ``worst_sign_error`` the largest.
    - Conditional mutual information (Jiang et al., 2020): the least I(s; t | U) / H(t | U) over all sets U of at most
      two hyperparameters. It lies between 0 and 1 and ignores the direction.

    Statistics are None if the measure is ``undefined``; those from ``psi`` on also without hyperparameters, and ``psi``
    and sign errors if no two models differ in one hyperparameter alone. Except for Pearson's, intervals are percentiles
    over the resamples of :func:`rank`; those of the worst sign error and conditional information are biased upwards.

    Example:
        >>> from effdeg.pools import rank
        >>> table = {"lr": [1, 1, 2, 2], "width": [8, 9, 8, 9], "degree": [1, 3, 2, 4], "gap": [1, 2, 3, 4]}
        >>> score = rank(table, hyperparameters=["lr", "width"], resamples=100).scores["degree"]
        >>> round(score.kendall.value, 3), score.psi.value, score.sign_error.value
        (0.667, 1.0, 0.0)

    Attributes:
        measure: Its name; a leading minus means that its values were negated.
        undefined: Why this measure cannot be scored, or None.
        pearson: Pearson's r, with Fisher's interval, or with the resampled one if models share a configuration and are
            not independent.
    """

    measure: str
    undefined: str | None = None
    pearson: Statistic | None = None
    spearman: Statistic | None = None
    kendall: Statistic | None = None
    psi: Statistic | None = None
    sign_error: Statistic | None = None
    worst_sign_error: Statistic | None = None
    conditional_information: Statistic | None = None


@dataclass(frozen=True)
class Advantage:
    """By how much one measure ranks a pool better than another, on the same resamples: see :meth:`Ranking.compare`.

    Example:
        >>> from effdeg.pools import rank
        >>> table = {"good": [1, 2, 3, 4, 5, 6], "bad": [6, 4, 5, 3, 1, 2], "gap": [1, 2, 3, 4, 5, 6]}
        >>> advantage = rank(table, resamples=100).compare("good", "bad")
        >>> round(advantage.value, 2), advantage.significant
        (1.73, True)

    Attributes:
        values: The statistic of the measure and of the other.
        value: The advantage: positive where the measure ranks better, even for sign errors, where lower is better.
        interval: Its interval from the resamples; None in the same cases as for a :class:`Statistic`.
        p_value: (k + 1) / (B + 1) for k of B resamples without an advantage; 1 for a measure against itself; None
            without an interval.
    """

    measure: str
    other: str
    statistic: str
    values: tuple[float, float]
    value: float
    interval: Interval | None
    p_value: float | None

    @property
    def significant(self) -> bool:
        """Whether the measure ranks significantly better, with its whole interval above zero."""
        return self.interval is not None and self.interval[0] > 0

    def __str__(self) -> str:
        one, other = self.values
        verdict = "ranks better than" if self.significant else "is not distinguishable from"
        if self.interval is not None and self.interval[1] < 0:
            verdict = "ranks worse than"
        uncertainty = f"{LEVEL:.0%} interval {format_range(self.interval)}"
        p_value = "" if self.p_value is None else f", one-sided p = {self.p_value:.2g}"
        return (
            f"{self.measure} {verdict} {self.other} by {STATISTICS[self.statistic]}: {one:z.2f} against {other:z.2f}, "
            f"an advantage of {self.value:z.2f} ({uncertainty}{p_value})"
        )


def percentiles(sample: Array) -> Interval | None:
    """Return the 95% interval between percentiles of the defined values, or None if more than half are undefined."""
    defined = sample[np.isfinite(sample)]
    if len(defined) * 2 < len(sample):
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def format_range(interval: Interval | None) -> str:
    return "undefined" if interval is None else f"{interval[0]:z.2f} to {interval[1]:z.2f}"


@dataclass(frozen=True)
class BestVariant:
    """The best of several variants of a measure by one correlation with the gap: an element of ``Ranking.best``.

    With r_k the correlation of variant k on the pool, r*_k on a resample, z = atanh r, and q the quantile of the level:

    - ``value`` = max_k r_k is too high: the highest of many estimates is a lucky one.
    - ``corrected`` is nearly unbiased for the variant that is chosen. On each resample the best variant k is chosen and
      its correlation h_k is taken on the models that the resample does not draw (the leave-one-out bootstrap of Efron
      and Tibshirani, 1997, "Improvements on cross-validation"). These models are few, which alone changes a
      correlation, so ``corrected`` is the mean of r_k + h_k - h̄_k, where h̄_k is the mean of h_k over all resamples.
      The choice sees only the 63% of the models that are drawn: where one variant is far better, it is somewhat low.
    - ``interval`` holds for the variant that is chosen, whichever it is, and for the best one. On the scale of z it
      reaches from the simultaneous lower bound of all variants (as in White, 2000, "A reality check for data
      snooping") to the upper percentile of the chosen one alone. The lower bound is max_k z_k less
      q(max_k (z_k - z*_k)) or q(max_k (z*_k - z_k)), whichever is larger: resamples of a correlation are skewed.

    Example:
        >>> from effdeg.pools import rank
        >>> table = {"a@1": [1, 3, 2, 5, 4, 8, 6, 7], "a@2": [2, 1, 4, 3, 6, 5, 7, 8], "gap": [1, 2, 3, 4, 5, 6, 8, 7]}
        >>> best = rank(table, variants={"a": "a@*"}, resamples=100).best["a"]["pearson"]
        >>> best.variant, round(best.value, 2), best.interval[0] < best.corrected < best.interval[1]
        ('a@2', 0.9, True)

    Attributes:
        family: The name of the measure that the variants belong to.
        statistic: ``"pearson"`` or ``"kendall"``.
        variants: The variants that were chosen from; those that are undefined are left out.
        variant: The best one.
        value: Its correlation with the gap.
        corrected: The correlation, corrected for the choice. None if the whole pool or a stratum has fewer than 8
            configurations to draw from: too few would be left that are not drawn.
        interval: The interval that accounts for the choice; None where more than half of the resamples are undefined.
    """

    family: str
    statistic: str
    variants: Sequence[str]
    variant: str
    value: float
    corrected: float | None
    interval: tuple[float, float] | None


def find_variants(variants: Mapping[str, str | Sequence[str]], measures: Sequence[str]) -> dict[str, list[str]]:
    """Return the measures of each family, which are given by their names or by patterns."""
    if not isinstance(variants, Mapping):
        raise TypeError(f"variants={variants!r} must be a dict, such as {{'sharpness': 'sharpness@*'}}.")
    families = {}
    for family, given in variants.items():
        if family in measures:
            raise ValueError(f"the family of variants {family!r} is the name of a measure; give it another name.")
        names: list[str] = []
        for pattern in [given] if isinstance(given, str) else given:
            matched = [pattern] if pattern in measures else [name for name in measures if fnmatchcase(name, pattern)]
            matched = matched or [name for name in measures if fnmatchcase(name.removeprefix("-"), pattern)]
            if not matched:
                raise ValueError(
                    f"no measure is called {pattern!r}, a variant of {family!r}. {suggest(pattern, measures)}"
                )
            names += [name for name in matched if name not in names]
        if len(names) < 2:
            number = f"a single variant, {names[0]}" if names else "no variant"
            raise ValueError(f"the family {family!r} has {number}: nothing to choose from.")
        families[family] = names
    return families


def choose_best(
    families: Mapping[str, Sequence[str]],
    measures: Sequence[str],
    observed: Mapping[str, Array],
    resampled: Mapping[str, Array],
    outside: Mapping[str, Array] | None,
) -> dict[str, dict[str, BestVariant]]:
    """Choose the best variant of each family by each correlation: on the pool, 1 × measures, and on resamples.

    ``outside`` are those on the models that each resample does not draw; None if these are too few.
    """
    best: dict[str, dict[str, BestVariant]] = {}
    for family, names in families.items():
        defined = [name for name in names if name in measures]
        columns = [measures.index(name) for name in defined]
        for statistic in CORRELATIONS if defined else ():
            on_pool, drawn = observed[statistic][0, columns], resampled[statistic][:, columns]
            held_out = None if outside is None else outside[statistic][:, columns]
            chosen = int(on_pool.argmax())
            corrected = _correct(on_pool, drawn, held_out)
            variant = BestVariant(family, statistic, defined, defined[chosen], float(on_pool[chosen]), *corrected)
            best.setdefault(family, {})[statistic] = variant
    return best


def _correct(observed: Array, resampled: Array, outside: Array | None) -> tuple[float | None, Interval | None]:
    """Return the corrected value of the best variant, and its interval."""
    best = int(observed.argmax())
    complete = np.isfinite(resampled).all(1)
    if complete.sum() * 2 < len(resampled):
        return None, None
    corrected = None
    if outside is not None:
        deviations = observed + outside - np.nanmean(outside, axis=0)
        chosen = np.take_along_axis(deviations, resampled.argmax(1)[:, None], 1)[complete]
        corrected = min(float(observed[best]), float(np.nanmean(chosen)))
    z, drawn = (np.arctanh(np.clip(each, -_LARGEST, _LARGEST)) for each in (observed, resampled[complete]))
    low = z[best] - max(np.quantile(shifts.max(1), (1 + LEVEL) / 2) for shifts in (z - drawn, drawn - z))
    high = np.quantile(drawn[:, best], (1 + LEVEL) / 2)
    return corrected, (float(np.tanh(low)), float(np.tanh(high)))


# Resamples × pairs of models evaluated at once: keeps memory moderate, and the tallies of a chunk in the cache.
_CHUNK = 2_000_000


def tally(drawn: Indices) -> Array:
    """Count how often each of 0, …, n - 1 occurs in each row of n."""
    resamples, number = drawn.shape
    flat = (drawn + number * np.arange(resamples)[:, None]).ravel()
    return np.bincount(flat, minlength=resamples * number).reshape(resamples, number).astype(np.float64)


def signs(values: Array) -> Array:
    """Return the sign of each difference, row minus column; the differences themselves might overflow."""
    rows, columns = values[..., :, None], values[..., None, :]
    return (rows > columns).astype(np.float64) - (rows < columns)


def scale_down(values: Array) -> Array:
    """Divide by a power of two, which is exact, so that no sum overflows."""
    largest = np.abs(values).max(-1, keepdims=True)
    scaled: Array = np.ldexp(values, -np.frexp(largest)[1])
    return scaled


def divide(total: Array, weight: Array, *, above: float = 0) -> Array:
    """Divide where the weight is above a limit; nan elsewhere."""
    quotient: Array = np.divide(total, weight, where=weight > above, out=np.full(total.shape, np.nan))
    return quotient


def kendall(counts: Array, measure_signs: Array, gap_signs: Array) -> Array:
    """Return Kendall's τ_b = Σ s_ij t_ij / √(Σ s_ij² Σ t_ij²), with signs s, t of differences; copies are ties."""
    products = measure_signs * gap_signs, measure_signs**2, gap_signs[None] ** 2
    together, one, other = (np.einsum("mbi,bi->mb", counts @ product, counts) for product in products)
    return divide(together, np.sqrt(one * other)).T


def _correlate(counts: Array, x: Array, y: Array) -> Array:
    """Return Pearson's r of centered values: measures × resamples × models in, resamples × measures out."""
    together, one, other = ((counts[None] * product).sum(-1) for product in (x * y, x**2, y**2))
    return divide(together, np.sqrt(one * other)).T


def _deviations(counts: Array, values: Array) -> Array:
    """Return deviations from each resample's mean, the largest one scaled to 1: squares neither overflow nor vanish."""
    values = scale_down(values)
    means = values @ counts.T / np.maximum(counts.sum(-1), 1)  # an empty sample has no mean, and counts nothing
    drawn = counts > 0
    deviations: Array = np.where(drawn, values[:, None, :] - means[..., None], 0.0)
    largest = np.abs(deviations).max(-1, keepdims=True)
    low, high = (np.where(drawn, values[:, None, :], beyond) for beyond in (np.inf, -np.inf))
    # The mean of equal values need not be exactly their value; the rounding error must not count as variation.
    largest[low.min(-1) >= high.max(-1)] = np.inf
    deviations /= largest
    return deviations


def number_strata(pool: Pool) -> Indices:
    """Return the number of each model's stratum; 0 for all models without strata."""
    numbers = np.zeros(len(pool), dtype=np.int64)
    for number, rows in enumerate(pool.strata.values()):
        numbers[rows] = number
    return numbers


def _average(values: Array, weights: Array | float = 1.0) -> Array:
    """Average the defined values over the first axis; nan where there are none."""
    weights = np.where(np.isfinite(values), weights, 0.0)
    return divide((weights * np.nan_to_num(values)).sum(0), weights.sum(0))


class Neighbors:
    """All pairs of models that differ in one hyperparameter alone, an axis, and the steps that some of them take."""

    def __init__(self, pool: Pool) -> None:
        # Models of different strata are no neighbors, and settings of different strata are not one setting.
        codes = np.stack([*pool.codes.values(), number_strata(pool)], axis=1)
        first, second = np.triu_indices(len(pool), k=1)
        differs = codes[first] != codes[second]
        alone = (differs.sum(1) == 1) & ~differs[:, -1]
        self._first, self._second = first[alone], second[alone]
        axis = differs[alone].argmax(1)
        self._by_axis: dict[str, tuple[Indices, Indices]] = {}
        self._by_environment: list[Indices] = []
        for number, name in enumerate(pool.hyperparameters):
            chosen = np.flatnonzero(axis == number)
            if not len(chosen):
                continue
            others = np.delete(codes[self._first[chosen]], number, axis=1)
            setting = np.unique(others, axis=0, return_inverse=True)[1].reshape(-1)
            order = np.argsort(setting, kind="stable")
            self._by_axis[name] = chosen[order], np.flatnonzero(np.diff(setting[order], prepend=-1))
            one, other = (pool.codes[name][ends[chosen]] for ends in (self._first, self._second))
            levels = range(len(pool.levels[name]))
            for before, after in pairwise(levels) if pool.table[name].cat.ordered else combinations(levels, 2):
                step = chosen[(np.minimum(one, other) == before) & (np.maximum(one, other) == after)]
                if len(step):
                    self._by_environment.append(step)
        self.axes, self.has_steps = list(self._by_axis), bool(self._by_environment)

    def psi(self, counts: Array, measure_signs: Array, gap_signs: Array) -> Array:
        """Return Ψ of each axis, axes × resamples × measures, as :class:`Score` defines it."""
        by_axis = []
        for pairs, starts in self._by_axis.values():
            weights, agreement = self._weigh(pairs, counts, measure_signs, gap_signs)
            totals = np.add.reduceat(weights, starts, axis=1)
            sizes = np.diff(starts, append=len(pairs))
            # A setting without a pair has weights of zero: it adds nothing, and is not counted.
            share = weights / np.repeat(np.maximum(totals, 1), sizes, axis=1)
            by_axis.append(divide(share @ agreement, (totals > 0).sum(1, keepdims=True)))
        return np.stack(by_axis)

    def sign_errors(self, counts: Array, measure_signs: Array, gap_signs: Array) -> Array:
        """Return the mean of (1 - s_ij t_ij) / 2 in each environment, environments × resamples × measures."""
        errors = []
        for pairs in self._by_environment:
            weights, agreement = self._weigh(pairs, counts, measure_signs, gap_signs)
            errors.append(divide(weights @ (1 - agreement) / 2, weights.sum(1, keepdims=True)))
        return np.stack(errors)

    def _weigh(self, pairs: Indices, counts: Array, measure_signs: Array, gap_signs: Array) -> tuple[Array, Array]:
        """Return how often each resample draws a pair, resamples × pairs, and s_ij t_ij, pairs × measures."""
        first, second = self._first[pairs], self._second[pairs]
        return counts[:, first] * counts[:, second], (measure_signs[:, first, second] * gap_signs[first, second]).T


class ConditionalInformation:
    """The normalized conditional mutual information I(V; G | U) / H(G | U) of Jiang et al. (2020).

    Over all ordered pairs of models whose gaps differ, V and G are the signs of the differences in the measure and in
    the gap, and U the values of a set of at most two hyperparameters for both models; ``sets`` are those given which G
    is not determined, the empty one first.
    """

    def __init__(self, pool: Pool, measure_signs: Array, gap_signs: Array) -> None:
        self._first, self._second = np.nonzero(gap_signs)
        rises = gap_signs[self._first, self._second] > 0
        every = [chosen for size in range(3) for chosen in combinations(pool.hyperparameters, size)]
        tallied = {chosen: self._cells([pool.codes[name] for name in chosen], rises) for chosen in every}
        self.sets = [chosen for chosen, (_, times) in tallied.items() if len(times)]
        cells, times = zip(*(tallied[chosen] for chosen in self.sets), strict=True)
        self._starts, self._times = np.cumsum([0, *map(len, times[:-1])]), np.concatenate(times)
        # Pairs by set: where they are tallied, and which they are.
        pairs = np.concatenate([np.flatnonzero(cell >= 0) for cell in cells])
        rows = np.concatenate([cell[cell >= 0] + start for cell, start in zip(cells, self._starts, strict=True)])
        sparse = require("scipy.sparse", extra="pools", purpose="a ranking")
        ones, shape = np.ones(len(pairs), dtype=np.int32), (len(self._times) * 6, len(rises))
        self._tallies = []
        for sign in measure_signs:
            symbol = ((sign[self._first, self._second] + 1) * 2 + rises)[pairs].astype(np.int64)
            self._tallies.append(sparse.csr_array((ones, (rows * 6 + symbol, pairs)), shape=shape))

    def __call__(self, counts: Array) -> Array:
        """Return the information for each set, sets × resamples × measures; nan where the set determines G."""
        drawn = counts.T.astype(np.int32)
        weights = drawn[self._first] * drawn[self._second]
        # Counts are whole numbers up to the number of ordered pairs: look up their x log x.
        whole = np.arange(int(drawn.sum(0).max()) ** 2 + 1, dtype=np.float64)
        x_log_x = whole * np.log(np.maximum(whole, 1))

        def count(tally: Any) -> Indices:
            """Count the pairs of each cell: cells × signs of the measure × signs of the gap × resamples."""
            counted: Indices = (tally @ weights).reshape(len(self._times), 3, 2, -1)
            return counted

        # For n pairs, n H(G | U): at least 2 log 2 as soon as both signs occur somewhere, whatever the rounding.
        by_gap = count(self._tallies[0]).sum(1)
        entropy = self._sum(by_gap.sum(1), x_log_x) - self._sum(by_gap, x_log_x)
        by_measure = []
        for joint in map(count, self._tallies):
            remaining = self._sum(joint.sum(2), x_log_x) - self._sum(joint, x_log_x)  # n H(G | U, V)
            by_measure.append(divide(entropy - remaining, entropy, above=1))
        shares: Array = np.clip(np.stack(by_measure, axis=-1), 0.0, 1.0)
        shares[shares < 1e-12] = 0.0  # a rounding error is no information
        return shares

    def _cells(self, codes: list[Indices], rises: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """Return the cell of each pair by the values of both models (-1 if it is not tallied), and each cell's weight.

        A cell in which the gap has one sign only adds nothing in any resample. A cell and the one with its two values
        exchanged add the same: one of them is tallied, and counts twice.
        """
        if not codes:
            return np.zeros(len(rises), dtype=np.int64), np.ones(1, dtype=np.int64)
        value = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        keys, cell = np.unique(value[self._first] * len(value) + value[self._second], return_inverse=True)
        low, high = np.divmod(keys, len(value))
        rising = np.bincount(cell, rises)
        kept = (low <= high) & (rising > 0) & (rising < np.bincount(cell))
        numbers = np.where(kept, np.cumsum(kept) - 1, -1)
        return numbers[cell], np.where(low == high, 1, 2)[kept]

    def _sum(self, counted: Indices, x_log_x: Array) -> Array:
        """Sum x log x over all cells of each set: sets × resamples."""
        terms = x_log_x.take(counted)
        by_cell = terms.sum(tuple(range(1, terms.ndim - 1))) * self._times[:, None]
        total: Array = np.add.reduceat(by_cell, self._starts, axis=0)
        return total


class Evaluation:
    """All statistics of a pool's measures, as functions of how often each model is counted.

    With strata, a pair of models counts only within a stratum, for Kendall's τ as for the statistics of neighbors.
    Pearson's r and Spearman's ρ, which are not means over pairs, are averaged over strata.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool, self._values = pool, np.stack(list(pool.measures.values()))
        self._strata: list[Any] = list(pool.strata.values()) or [slice(None)]
        self._signs = signs(self._values), signs(pool.gaps)
        if pool.strata:
            strata = number_strata(pool)
            together = strata[:, None] == strata
            self._signs = self._signs[0] * together, self._signs[1] * together
        neighbors = Neighbors(pool) if pool.hyperparameters else None
        self.neighbors = neighbors if neighbors and neighbors.axes else None
        self.information = ConditionalInformation(pool, *self._signs) if pool.hyperparameters else None

    def __call__(self, counts: Array, *, correlations_alone: bool = False) -> dict[str, Array]:
        """Return every statistic by name, resamples × measures."""
        size = max(1, min(_CHUNK // counts.shape[1] ** 2, 128))
        chunks = [counts[start : start + size] for start in range(0, len(counts), size)]
        found = [self._correlate(each) | ({} if correlations_alone else self._compare(each)) for each in chunks]
        return {name: np.concatenate([each[name] for each in found], axis=-2) for name in found[0]}

    def _correlate(self, counts: Array) -> dict[str, Array]:
        inside: dict[str, list[Array]] = {"spearman": [], "pearson": []}
        for rows in self._strata:
            drawn, (measure_signs, gap_signs) = counts[:, rows], self._signs
            # Twice a model's centered rank is the sum of its signs to all models drawn.
            ranks = drawn @ measure_signs[:, rows][:, :, rows], drawn @ gap_signs[rows][:, rows][None]
            inside["spearman"].append(_correlate(drawn, *ranks))
            values = self._values[:, rows], self.pool.gaps[None, rows]
            inside["pearson"].append(_correlate(drawn, *(_deviations(drawn, each) for each in values)))
        freedom = np.array([len(rows) - 1.0 for rows in self.pool.strata.values()]).reshape(-1, 1, 1)
        correlations = {
            name: _average(np.stack(parts), freedom) if len(freedom) else parts[0] for name, parts in inside.items()
        }
        return correlations | {"kendall": kendall(counts, *self._signs)}

    def _compare(self, counts: Array) -> dict[str, Array]:
        statistics = {}
        if self.neighbors:
            statistics["psi"] = _average(self.neighbors.psi(counts, *self._signs))
        if self.neighbors and self.neighbors.has_steps:
            errors = self.neighbors.sign_errors(counts, *self._signs)
            statistics["sign_error"] = _average(errors)
            statistics["worst_sign_error"] = np.fmax.reduce(errors)
        if self.information:
            statistics["conditional_information"] = np.fmin.reduce(self.information(counts))
        return statistics
