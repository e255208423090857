"""A pool of models as a table, and how well each measure ranks it."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import pvariance
from typing import Any

import numpy as np

from effdeg._utils.files import write_atomically
from effdeg.lab.matches import settings_of
from effdeg.lab.recipe import Recipe
from effdeg.lab.report.lines import machine_of, seed_of, value_in
from effdeg.lab.store import Record
from effdeg.ranking import Advantage, Ranking, Score, rank
from effdeg.ranking._statistics import scale_down
from effdeg.ranking._tables import Array

_TARGET = "gap"
# The effective degree, raw and normalized: on the training images that all other measures see, on test images, and
# between random pixels.
DEGREES = ("effective_degree", "effective_degree_normalized")
TEST_DEGREES = ("effective_degree_test", "effective_degree_normalized_test")
RANDOM_PIXELS = ("effective_degree_random_pixels", "effective_degree_normalized_random_pixels")
# The paper's other measures, each at the radius that does best, as the paper has them.
_RIVALS = {
    "sharpness": ("sharpness",),
    "adaptive sharpness": ("adaptive_sharpness",),
    "parameter norm": ("parameter_norm",),
}
# No measure of complexity; but a measure that follows the gap no closer than this says little.
REFERENCE = "train_accuracy"
_PANELS = 12
# Below this share of the variance an axis counts as one that does nothing.
_INERT = 0.01


@dataclass(frozen=True, eq=False)
class ModelPool:
    """The models of a pool and what ranks them.

    Attributes:
        table: One row per model: its name, hyperparameters, seed, accuracies, gap and measures.
        axes: The hyperparameters that were varied.
        measures: The measures, larger meaning a larger gap: margins with a leading minus.
        planned: How many configurations the recipe has, and how many seeds.
        machines: The machines the models were trained on.
        skipped: Why measures were not taken, by their names.
        inert: The hyperparameters that hardly move the gap: models that differ in these alone are resampled together.
        ranking: How the measures, and training accuracy next to them, rank the pool; None if nothing can be ranked.
        unranked: Why nothing can be ranked.
    """

    table: Sequence[Mapping[str, Any]]
    axes: Sequence[str]
    inert: Sequence[str]
    measures: Sequence[str]
    planned: tuple[int, int]
    machines: Sequence[str]
    skipped: Mapping[str, str]
    ranking: Ranking | None
    unranked: str | None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the models."""
        return sorted({int(row["seed"]) for row in self.table})

    @property
    def configurations(self) -> int:
        """How many configurations the models have, seeds apart."""
        return len({str(row["model"]).partition(" seed=")[0] for row in self.table})

    @property
    def reference(self) -> Score | None:
        """How training accuracy alone ranks the pool; None where it is the same for all."""
        score = self.ranking.scores.get(REFERENCE) if self.ranking else None
        return score if score and score.pearson else None

    @cached_property
    def given_training(self) -> dict[str, float | None]:
        """Each measure's partial correlation with the gap, given training accuracy; empty where that does not vary."""
        if self.ranking is None or self.reference is None:
            return {}
        known = self.ranking.pool.measures
        return {
            name: partial_correlation(known[name], self.ranking.pool.gaps, known[REFERENCE])
            for name in known
            if name != REFERENCE
        }

    @property
    def degrees(self) -> tuple[str, str]:
        """The effective degree, raw and normalized, that other measures are compared with: on their images if known."""
        return DEGREES if DEGREES[0] in self.measures else TEST_DEGREES

    @cached_property
    def best(self) -> dict[str, Score]:
        """The paper's four measures, each as the variant whose Pearson correlation is highest."""
        papers = {"effective degree": self.degrees, **_RIVALS}
        return {name: found for name, variants in papers.items() if (found := self._best_of(variants))}

    @property
    def random_pixels(self) -> Score | None:
        """The effective degree along paths between random pixels, as the better of its variants."""
        return self._best_of(RANDOM_PIXELS)

    @cached_property
    def best_rival(self) -> Score | None:
        """The measure with the highest Pearson correlation among all that are no effective degree."""
        scores = self.ranking.scores.values() if self.ranking else []
        return _highest(
            score for score in scores if score.measure != REFERENCE and not score.measure.startswith("effective_degree")
        )

    def advantages(self) -> list[Advantage]:
        """Hold the effective degree against the paper's other three measures and the best of all rivals, by Pearson."""
        if self.ranking is None or "effective degree" not in self.best:
            return []
        degree, *others = self.best.values()
        rivals = [*others, *([self.best_rival] if self.best_rival else [])]
        names = dict.fromkeys(each.measure for each in rivals)
        return [self.ranking.compare(degree.measure, name, "pearson") for name in names]

    def panels(self) -> list[str]:
        """Name the measures to draw: the paper's four first, training accuracy, then the best of the rest."""
        first = [score.measure for score in (*self.best.values(), self.random_pixels, self.reference) if score]
        rest = [name for name, score in (self.ranking.scores if self.ranking else {}).items() if score.kendall]
        # Shortened, the names of the two variants along random pixels look alike: the better one is enough.
        rest = [name for name in rest if name not in RANDOM_PIXELS]
        return list(dict.fromkeys([*first, *rest]))[:_PANELS]

    def write_csv(self, file: Path) -> None:
        """Write the table, for ``effdeg rank``."""
        names = list(dict.fromkeys(name for row in self.table for name in row))
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(self.table)
        write_atomically(file, stream.getvalue().encode())

    def _best_of(self, variants: tuple[str, ...]) -> Score | None:
        """Find the variant, and the radius where there are several, with the highest correlation."""
        scores = self.ranking.scores.values() if self.ranking else []
        return _highest(score for score in scores if score.measure.partition("@")[0] in variants)


def pool_of(recipe: Recipe[Any], runs: Sequence[tuple[str, Record]]) -> ModelPool:
    """Put the finished runs of a pool into a table and rank its measures.

    Args:
        recipe: The pool's recipe.
        runs: Its finished runs, each with the name of its line.

    Returns:
        The pool.
    """
    table = [_model(recipe, name, run) for name, run in runs]
    known = {"model", *recipe.grid, "seed", REFERENCE, "test_accuracy", _TARGET}
    columns = list(dict.fromkeys(name for row in table for name in row if name not in known))
    # Large margins are good.
    measures = [f"-{name}" if "margin" in name else name for name in columns]
    reference = [REFERENCE] if len({row[REFERENCE] for row in table}) > 1 else []
    ranking, unranked = None, None
    inert = _inert(table, list(recipe.grid))
    clusters = [axis for axis in recipe.grid if axis not in inert]
    try:
        ranking = rank(
            table,
            target=_TARGET,
            measures=[*measures, *reference],
            hyperparameters=list(recipe.grid),
            clusters=clusters or None,
        )
    except ValueError as error:
        unranked = str(error)
    return ModelPool(
        table=table,
        axes=list(recipe.grid),
        inert=inert,
        measures=measures,
        planned=(len(recipe.rows) * len(list(recipe.points())), len(recipe.seeds)),
        machines=list(dict.fromkeys(machine_of(run) for _, run in runs)),
        skipped={proxy: why for _, run in runs for proxy, why in ((run.summary or {}).get("skipped") or {}).items()},
        ranking=ranking,
        unranked=unranked,
    )


def _inert(table: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[str]:
    """Find the axes along which less than a hundredth of the gap's variance lies: models there are replicates."""
    gaps = [float(row[_TARGET]) for row in table]
    found = []
    for axis in axes:
        groups: dict[Any, list[float]] = {}
        for row, gap in zip(table, gaps, strict=True):
            groups.setdefault(tuple(row[other] for other in axes if other != axis), []).append(gap)
        within = sum(len(group) * pvariance(group) for group in groups.values())
        if any(len(group) > 1 for group in groups.values()) and within < _INERT * len(gaps) * pvariance(gaps):
            found.append(axis)
    return found


def _model(recipe: Recipe[Any], name: str, run: Record) -> dict[str, Any]:
    complete = settings_of(run, type(recipe.settings))
    settings = {axis: complete[axis] for axis in recipe.grid} | {"seed": seed_of(run)}
    outcome = {key: value_in(run, key) for key in (REFERENCE, "test_accuracy", _TARGET)}
    summary = run.summary or {}
    degrees: dict[str, float] = {}
    # A summary's own effective degree is always one on test images.
    for key, names in (("effective_degree", TEST_DEGREES), ("effective_degree_random_pixels", RANDOM_PIXELS)):
        if found := summary.get(key):
            degrees |= dict(zip(names, (found["value"], found["normalized"]), strict=True))
    proxies = {proxy: found["value"] for proxy, found in (summary.get("proxies") or {}).items()}
    named = " ".join([name, *(f"{key}={value}" for key, value in settings.items())])
    return {"model": named, **settings, **outcome, **proxies, **degrees}


def _highest(scores: Iterable[Score]) -> Score | None:
    """Return the score with the highest Pearson correlation."""
    defined = [score for score in scores if score.pearson]
    return max(defined, key=lambda score: score.pearson.value if score.pearson else -math.inf, default=None)


def partial_correlation(values: Array, targets: Array, given: Array) -> float | None:
    """Correlate what linear fits on a third quantity leave of two others.

    Args:
        values: The one.
        targets: The other.
        given: What is known.

    Returns:
        Pearson's correlation of the residuals; None if a fit leaves nothing.
    """
    one, other = _left(values, given), _left(targets, given)
    return None if one is None or other is None else float(np.clip(one @ other, -1.0, 1.0))


def _left(values: Array, given: Array) -> Array | None:
    """Return the residuals of a linear fit, of length 1; None if what is left is rounding."""
    values, given = (scale_down(each) - scale_down(each).mean() for each in (values, given))
    residuals = values - given * (given @ values) / (given @ given)
    size = float(np.linalg.norm(residuals))
    return None if size <= 1e-9 * float(np.linalg.norm(values)) else residuals / size
