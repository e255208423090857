"""The best of several variants of a measure, such as sharpness at several radii, corrected for the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from effdeg._utils.checks import suggest
from effdeg.pools._reading import Array

CORRELATIONS = ("pearson", "spearman", "kendall")
# Beyond, z = atanh r is infinite: all models in a row.
_LARGEST = 1 - 1e-12


@dataclass(frozen=True)
class BestVariant:
    """The best of several variants of a measure by one correlation with the gap: an element of ``Ranking.best``.

    With r_k the correlation of variant k on the pool, r*_k on a resample, z = atanh r, and q the quantile of the level:

    - ``value`` = max_k r_k is too high: the highest of many estimates is a lucky one.
    - ``corrected`` is nearly unbiased for the variant that is chosen. On each resample the best variant k is chosen and
      its correlation h_k is taken on the models that the resample does not draw, which had no part in the choice (the
      leave-one-out bootstrap of Efron and Tibshirani, 1997, "Improvements on cross-validation"). These models are few,
      which alone changes a correlation, so ``corrected`` is the mean of r_k + h_k - h̄_k, where h̄_k is the mean of h_k
      over all resamples. The choice sees only the 63% of the models that a resample draws: where one variant is far
      better, the value is somewhat low.
    - ``interval`` holds for the variant that is chosen, whichever it is, and for the best one. On the scale of z it
      reaches from the simultaneous lower bound of all variants (as in White, 2000, "A reality check for data
      snooping") to the upper percentile of the chosen one alone, since the highest estimate is hardly ever too low.
      The lower bound is max_k z_k less q(max_k (z_k - z*_k)) or q(max_k (z*_k - z_k)), whichever is larger: resamples
      of a correlation are skewed. If no variant correlates, a 95% interval covers 0 in 95% of simulated pools or more.

    Example:
        >>> from effdeg.pools import rank
        >>> table = {"a@1": [1, 3, 2, 5, 4, 8, 6, 7], "a@2": [2, 1, 4, 3, 6, 5, 7, 8], "gap": [1, 2, 3, 4, 5, 6, 8, 7]}
        >>> best = rank(table, variants={"a": "a@*"}, resamples=100).best["a"]["pearson"]
        >>> best.variant, round(best.value, 2), best.interval[0] < best.corrected < best.interval[1]
        ('a@2', 0.9, True)

    Attributes:
        family: The name of the measure that the variants belong to.
        statistic: ``"pearson"``, ``"spearman"`` or ``"kendall"``.
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
    level: float,
) -> dict[str, dict[str, BestVariant]]:
    """Choose the best variant of each family by each correlation.

    Args:
        families: The variants of each family.
        measures: The measures that are defined, in the order of the last axis of all arrays.
        observed: The correlations on the pool, 1 × measures.
        resampled: Those on resamples, resamples × measures.
        outside: Those on the models that each resample does not draw; None if these are too few.
        level: The confidence level of the interval.

    Returns:
        The best variants by family and statistic; families without a defined variant are left out.
    """
    best: dict[str, dict[str, BestVariant]] = {}
    for family, names in families.items():
        defined = [name for name in names if name in measures]
        columns = [measures.index(name) for name in defined]
        for statistic in CORRELATIONS if defined else ():
            on_pool, drawn = (each[statistic][:, columns] for each in (observed, resampled))
            held_out = None if outside is None else outside[statistic][:, columns]
            chosen = _choose(family, statistic, defined, on_pool[0], drawn, held_out, level)
            best.setdefault(family, {})[statistic] = chosen
    return best


def _choose(
    family: str,
    statistic: str,
    names: Sequence[str],
    observed: Array,
    resampled: Array,
    outside: Array | None,
    level: float,
) -> BestVariant:
    best = int(observed.argmax())
    value = float(observed[best])
    complete = np.isfinite(resampled).all(1)
    if complete.sum() * 2 < len(resampled):
        return BestVariant(family, statistic, names, names[best], value, None, None)
    corrected = None
    if outside is not None:
        deviations = observed + outside - np.nanmean(outside, axis=0)
        chosen = np.take_along_axis(deviations, resampled.argmax(1)[:, None], 1)[complete]
        corrected = min(value, float(np.nanmean(chosen)))
    z, drawn = (np.arctanh(np.clip(each, -_LARGEST, _LARGEST)) for each in (observed, resampled[complete]))
    low = z[best] - max(np.quantile(shifts.max(1), (1 + level) / 2) for shifts in (z - drawn, drawn - z))
    high = np.quantile(drawn[:, best], (1 + level) / 2)
    interval = float(np.tanh(low)), float(np.tanh(high))
    return BestVariant(family, statistic, names, names[best], value, corrected, interval)
