"""A pool of models: which measure follows the generalization gap?"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, ClassVar

import pandas as pd

from effdeg.pools import Ranking, Score, Statistic, rank
from effdeg.proxies import larger_is_better
from effdeg_lab.core.recipe import Recipe, Study
from effdeg_lab.core.results import Results
from effdeg_lab.core.runs import Run
from effdeg_lab.show.tables import NOTHING, Table, to_sentence
from effdeg_lab.show.verdicts import Verdict, judge

# The effective degree, raw and normalized: on the training images that all other measures use, on test images, and
# between random pixels.
DEGREES = ("effective_degree", "effective_degree_normalized")
TEST_DEGREES = ("effective_degree_test", "effective_degree_normalized_test")
RANDOM_PIXELS = ("effective_degree_random_pixels", "effective_degree_normalized_random_pixels")
# The paper's other measures, each at its best radius, as in the paper.
_OTHER_MEASURES = ("sharpness", "adaptive_sharpness", "parameter_norm")
# Not a measure of complexity; but a measure that follows the gap no more closely than this says little.
REFERENCE = "train_accuracy"
EXPLAINED = "no evidence for the effective degree, as training accuracy alone follows the gap at least as closely"
TARGET = "gap"
STRATA = ("recipe", "architecture")
"""The columns with a model's kind of training and architecture: models that differ in them are not compared."""
# A setting that explains less than this share of the gap's variance counts as having no effect.
_INERT = 0.01
_NOTES = (
    "Bold: the paper's four measures, each in the variant and at the radius with the highest Pearson correlation.",
    "Ψ: granulated Kendall.",
    "Names that end with _test are of test images, all others of training images.",
)


def find_papers(ranking: Ranking) -> list[Score]:
    """Find the paper's four measures, the effective degree first, each in the variant with the highest correlation."""
    degrees = DEGREES if DEGREES[0] in ranking.scores else TEST_DEGREES
    found = [find_highest(ranking, own) for own in (degrees, *((name,) for name in _OTHER_MEASURES))]
    return [score for score in found if score] if found[0] else []


def find_highest(ranking: Ranking, names: Iterable[str]) -> Score | None:
    """Find the measure with the highest Pearson correlation among those with the given names, at any radius."""
    wanted = {name.partition("@")[0] for name in names}
    known = [score for name, score in ranking.scores.items() if name.partition("@")[0] in wanted and score.pearson]
    return max(known, key=_pearson, default=None)


class PoolStudy(Study):
    """Ranks measures by how closely they follow the generalization gap over a pool of models.

    The claim: the effective degree has the highest Pearson correlation of the paper's four measures. It is not decided
    if training accuracy, which is not a measure of complexity, follows the gap at least as closely.
    """

    needs_all: ClassVar[bool] = False

    def claim(self, results: Results) -> Verdict:
        ranking = rank_grid(results)
        papers = [] if isinstance(ranking, str) else find_papers(ranking)
        if isinstance(ranking, str) or len(papers) < 2:
            return Verdict("not decided")
        degree, *others = papers
        reference = find_highest(ranking, [REFERENCE])
        explained = reference is not None and _pearson(reference) >= _pearson(degree)
        other = REFERENCE if explained else max(others, key=_pearson).measure
        found = ranking.compare(degree.measure, other, "pearson")
        quantity = f"Pearson's r of {degree.measure} minus that of {other}"
        verdict = judge(quantity, found.value, found.interval, above=0.0)
        return replace(verdict, word="not decided", reason=EXPLAINED) if explained else verdict

    def tables(self, results: Results) -> list[Table]:
        ranking = rank_grid(results)
        title = f"{count_models(len(read_models(results)))}: {results.heading}"
        columns = ("measure", "Pearson", "Spearman", "Kendall", "Ψ")
        if isinstance(ranking, str):
            return [Table(title, columns, (), (to_sentence(ranking),))]
        rows = tuple(
            (_label(name), *map(format_score, (score.pearson, score.spearman, score.kendall, score.psi)))
            for name, score in ranking.scores.items()
        )
        papers = find_papers(ranking)
        bold = frozenset((row, 0) for row, score in enumerate(ranking.scores.values()) if score in papers)
        notes = (*_NOTES, *(f"{note}." for note in (ranking.describe_intervals(), *ranking.notes())))
        return [Table(title, columns, rows, notes, bold)]

    def headline(self, run: Run) -> str:
        return f"{100 * run.value('test_accuracy'):.2f}%, gap {100 * run.value(TARGET):.2f}%"


@lru_cache(maxsize=4)  # the resamples take a while
def rank_grid(results: Results) -> Ranking | str:
    """Rank the measures of all models of a grid; return the reason if that is not possible.

    Models that differ only in axes that hardly affect the gap are resampled together.
    """
    models, axes = read_models(results), name_columns(results.recipe.axes)
    inert = find_inert(models, axes)
    clusters = [axis for axis in axes if axis not in inert] or None
    try:
        return rank(
            models, target=TARGET, measures=list_measures(models, axes), hyperparameters=axes, clusters=clusters
        )
    except ValueError as error:
        return str(error)


def count_models(number: int) -> str:
    return f"{number} model{'' if number == 1 else 's'}"


def read_models(results: Results) -> list[dict[str, Any]]:
    runs = [(each.method.name, run) for each in results.methods for run in each.runs]
    # Resampling depends on the order of configurations, so runs that were moved keep the order of their old names.
    runs.sort(key=lambda pair: str(pair[1].environment.get("moved_from", pair[1].name)))
    return [_describe_model(results.recipe, name, run) for name, run in runs]


def name_columns(axes: Iterable[str]) -> list[str]:
    """Return the names of columns for settings; ``model`` is called ``network``, as another column has that name."""
    return ["network" if axis == "model" else axis for axis in axes]


def list_measures(models: Sequence[Mapping[str, Any]], axes: Iterable[str]) -> list[str]:
    """List the measures of a pool, with a leading minus for those that are good if large, and training accuracy."""
    known = {"model", *axes, "seed", *STRATA, REFERENCE, "test_accuracy", TARGET}
    names = dict.fromkeys(name for model in models for name in model if name not in known)
    measures = [f"-{name}" if _is_good(name) else name for name in names]
    return [*measures, REFERENCE] if len({model[REFERENCE] for model in models}) > 1 else measures


def _is_good(name: str) -> bool:
    degrees = {*DEGREES, *TEST_DEGREES, *RANDOM_PIXELS}
    return name.partition("@")[0] not in degrees and larger_is_better(name.removesuffix("_test"))


def _describe_model(recipe: Recipe, name: str, run: Run) -> dict[str, Any]:
    complete, summary = type(recipe.settings).complete(run.settings), run.summary or {}
    values = [complete[axis] for axis in recipe.axes]
    settings = dict(zip(name_columns(recipe.axes), values, strict=True)) | {"seed": run.seed}
    outcome = {key: run.value(key) for key in (REFERENCE, "test_accuracy", TARGET)}
    measured = {proxy: found["value"] for proxy, found in (summary.get("proxies") or {}).items()}
    measured |= {f"{proxy}_test": found["value"] for proxy, found in (summary.get("test_proxies") or {}).items()}
    # The effective degree in a summary is measured on test images.
    degrees = [
        (TEST_DEGREES, "", summary.get("effective_degree")),
        (RANDOM_PIXELS, "", summary.get("effective_degree_random_pixels")),
        *((TEST_DEGREES, f"@{m}", found) for m, found in (summary.get("effective_degree_components") or {}).items()),
    ]
    for (raw, normalized), after, found in degrees:
        if found:
            measured |= {f"{raw}{after}": found["value"], f"{normalized}{after}": found["normalized"]}
    title = " ".join([name, *(f"{key}={value}" for key, value in settings.items())])
    mixes = "mixup" in complete.get("regularizer", "").split("+")
    # Networks of different widths count as one architecture.
    strata = ("with mixup" if mixes else "without mixup", re.sub(r"-\d+$", "", complete.get("model", "")))
    return {"model": title, **settings, **dict(zip(STRATA, strata, strict=True)), **outcome, **measured}


def find_inert(models: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[str]:
    """Find the axes that explain less than 1% of the gap's variance: models that differ only there are replicates."""
    frame, found = pd.DataFrame(models), []
    for axis in axes:
        others = [other for other in axes if other != axis]
        groups = frame.groupby(others if others else [0] * len(frame))[TARGET]
        within = (frame[TARGET] - groups.transform("mean")).pow(2).mean()
        if groups.size().max() > 1 and within < _INERT * frame[TARGET].var(ddof=0):
            found.append(axis)
    return found


def _label(measure: str) -> str:
    return "training accuracy (for reference)" if measure == REFERENCE else measure


def _pearson(score: Score) -> float:
    return score.pearson.value if score.pearson else float("-inf")


def format_score(statistic: Statistic | None) -> str:
    return NOTHING if statistic is None else str(statistic).replace(" to ", "…")


DEGREE = "effective degree"
# Measures of which the best of several variants counts, with patterns of the variants' names; the first pattern that
# matches several is used. Variants are radii, or raw and normalized, with several numbers of components or without.
FAMILIES: Mapping[str, Sequence[str]] = {
    "sharpness": ["sharpness@*"],
    "adaptive sharpness": ["adaptive_sharpness@*"],
    DEGREE: ["effective_degree*_test@*", "effective_degree*@*", "effective_degree*_test"],
}
FITS = 0.99
"""The least training accuracy of a model that fits its training images."""
_STRATA = ("recipe",)  # columns; only models that agree in all of them are compared
_STRATA_NOTE = "Models are compared within strata only; the first columns combine the strata."
_NAMES = "Names with _test are of test images without labels (@: principal components), all others of training images."


def rank_within(
    models: Sequence[Mapping[str, Any]], measures: Sequence[str], strata: Sequence[str], axes: Sequence[str] = ()
) -> Ranking:
    """Rank measures of the gap within strata of models, and correct the best variants of the paper's for the choice.

    Only models that agree in all columns of ``strata`` are compared. Those that agree in all ``axes``, such as seeds,
    are resampled together. Measures have a leading minus where larger is better.
    """
    found = {
        family: next((names for each in patterns if len(names := _match(measures, each)) > 1), None)
        for family, patterns in FAMILIES.items()
    }
    variants = {family: names for family, names in found.items() if names}
    return rank(models, target=TARGET, measures=measures, strata=strata, hyperparameters=axes, variants=variants)


def _match(names: Sequence[str], pattern: str) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]


@dataclass(frozen=True)
class RandomPool(PoolStudy):
    """Ranks measures by how closely they follow the gap within strata of a pool, among models that fit their data.

    The claim: within strata, the effective degree on test images correlates positively with the gap, in its best
    variant and corrected for that choice. It is not decided if training accuracy follows the gap at least as closely.
    """

    fit: float = 0.0  # the least training accuracy of a model that counts
    finer: tuple[str, ...] = ()  # columns of finer strata, which the claim does not use

    def claim(self, results: Results) -> Verdict:
        ranking = _rank(results, _STRATA, self.fit)
        if isinstance(ranking, str) or DEGREE not in ranking.best:
            return Verdict("not decided")
        best = ranking.best[DEGREE]["pearson"]
        value = best.value if best.corrected is None else best.corrected
        choice = "not corrected" if best.corrected is None else "corrected"
        quantity = f"Pearson's r of the best of {len(best.variants)} effective degrees, {choice} for the choice"
        verdict = judge(quantity, value, best.interval, above=0.0)
        reference = ranking.scores.get(REFERENCE)
        explained = reference is not None and reference.pearson is not None and reference.pearson.value >= value
        return replace(verdict, word="not decided", reason=EXPLAINED) if explained and value > 0 else verdict

    def tables(self, results: Results) -> list[Table]:
        count, ranking = len(read_models(results)), _rank(results, _STRATA, self.fit)
        if isinstance(ranking, str):
            title = f"{count_models(count)}: {results.heading}"
            return [Table(title, ("measure", "Pearson"), (), (to_sentence(ranking),))]
        fitted = len([model for model in read_models(results) if model[REFERENCE] >= self.fit])
        title = count_models(count) if fitted == count else f"The {fitted} of {count} models that fit ({self.fit:.0%})"
        found = [
            _list_stratified(ranking, f"{title}: {results.heading}"),
            self._make_comparison(results, ranking),
        ]
        every = _rank(results, _STRATA, 0.0) if fitted < count else ""
        return found if isinstance(every, str) else [*found, _list_stratified(every, f"All {count} models")]

    def _make_comparison(self, results: Results, ranking: Ranking) -> Table:
        """Tabulate Kendall's τ by which models are compared with each other."""
        others = {"all together": _rank(results, (), self.fit)}
        if self.finer:
            others[f"within {' and '.join(self.finer)}"] = _rank(results, self.finer, self.fit)
        if self.fit < FITS:
            others[f"within strata, those that fit ({FITS:.0%})"] = _rank(results, _STRATA, FITS)
        rankings = {"within strata": ranking}
        rankings |= {title: other for title, other in others.items() if not isinstance(other, str)}
        best = [found["kendall"].variant for found in ranking.best.values()]
        rows = []
        for name in [name for name in ranking.scores if name in best or _is_alone(name)]:
            scores = [each.scores.get(name) for each in rankings.values()]
            rows.append((name, *(format_score(None if score is None else score.kendall) for score in scores)))
        columns = [f"{title}: {count_models(len(each.pool))}" for title, each in rankings.items()]
        return Table("Kendall's τ with the gap, by which models are compared", ("measure", *columns), tuple(rows))


@lru_cache(maxsize=8)  # the resamples take a while
def _rank(results: Results, strata: tuple[str, ...], fit: float) -> Ranking | str:
    """Rank the measures of the models that fit; return the reason if that is not possible."""
    models = [model for model in read_models(results) if model[REFERENCE] >= fit]
    if not models:
        return f"no model has a training accuracy of {fit:.0%} or more"
    axes = name_columns(results.recipe.axes)
    try:
        return rank_within(models, list_measures(models, axes), strata, axes if len(results.seeds) > 1 else ())
    except ValueError as error:
        return str(error)


def _list_stratified(ranking: Ranking, title: str) -> Table:
    columns = ("measure", "Pearson", "Kendall", *(f"Kendall {name}" for name in ranking.strata))
    rows = []
    for name, score in ranking.scores.items():
        inside = [each.scores[name].kendall for each in ranking.strata.values()]
        rows.append((_label(name), *map(format_score, (score.pearson, score.kendall, *inside))))
    sizes = ", ".join(f"{name} {len(inside.pool)}" for name, inside in ranking.strata.items())
    further = (to_sentence(ranking.describe_intervals()), *(f"Note: {each}." for each in ranking.notes()))
    return Table(title, columns, tuple(rows), (_STRATA_NOTE, _NAMES, f"Models: {sizes}.", *further))


def _is_alone(name: str) -> bool:
    """Return whether a measure without variants is listed along with the best of those that have some."""
    return name in ("parameter_norm", "distance") or name.endswith("_test")
