"""A pool of models: which measure follows the generalization gap?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from statistics import pvariance
from typing import Any

import numpy as np

from effdeg.ranking import Advantage, Ranking, Score, Statistic, rank
from effdeg_lab.recipe import Recipe
from effdeg_lab.results import Results
from effdeg_lab.runs import Run
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge

# The effective degree, raw and normalized: on the training images that all other measures see, on test images, and
# between random pixels.
DEGREES = ("effective_degree", "effective_degree_normalized")
TEST_DEGREES = ("effective_degree_test", "effective_degree_normalized_test")
RANDOM_PIXELS = ("effective_degree_random_pixels", "effective_degree_normalized_random_pixels")
# The paper's other measures, each at the radius that does best, as the paper has them.
RIVALS = ("sharpness", "adaptive_sharpness", "parameter_norm")
# Not a measure of complexity, but a measure that follows the gap no closer than this says little.
REFERENCE = "train_accuracy"
TARGET = "gap"
_PANELS = 12
# An axis of the grid with less than this share of the gap's variance counts as one that does nothing.
_INERT = 0.01
_LENIENT = "By Pearson's r, as in the paper, the test between two measures is lenient: 8% at a nominal 5%."
_NOTES = (
    "Every model is a point by itself; the paper averages over three seeds.",
    "Bold: the paper's four measures, each in the variant and at the radius with the highest Pearson correlation.",
    "Ψ: granulated Kendall. Given training: Pearson's correlation given training accuracy.",
    "Names that end with _test are of test images, all others of training images.",
)


@dataclass(frozen=True, eq=False)
class ModelPool:
    """The models of a pool and what ranks them.

    Attributes:
        models: One row per model: its name, hyperparameters, seed, accuracies, gap and measures.
        measures: The measures, larger meaning a larger gap: margins with a leading minus.
        inert: The axes that hardly move the gap: models that differ only there are resampled together.
        ranking: How the measures and training accuracy rank the pool; None if nothing can be ranked.
        unranked: Why nothing can be ranked.
        skipped: Why measures were not taken, by their names.
    """

    models: Sequence[Mapping[str, Any]]
    measures: Sequence[str]
    inert: Sequence[str]
    ranking: Ranking | None
    unranked: str | None
    skipped: Mapping[str, str]

    @property
    def scores(self) -> Mapping[str, Score]:
        """The scores of the measures, best first."""
        return self.ranking.scores if self.ranking else {}

    @property
    def degrees(self) -> tuple[str, str]:
        """The effective degree, raw and normalized: of training images, as all other measures, if it was taken."""
        return DEGREES if DEGREES[0] in self.measures else TEST_DEGREES

    @cached_property
    def papers(self) -> list[Score]:
        """The paper's four measures, the effective degree first, each as the variant with the highest correlation."""
        variants = (self.degrees, *((name,) for name in RIVALS))
        found = [self.find_highest(partial(_is_variant, variants=own)) for own in variants]
        return [score for score in found if score] if found[0] else []

    @property
    def best_rival(self) -> Score | None:
        """The measure with the highest correlation among all that are no effective degree."""
        return self.find_highest(lambda name: name != REFERENCE and not name.startswith("effective_degree"))

    @property
    def reference(self) -> Score | None:
        """How training accuracy alone ranks the pool; None where it is the same for all."""
        return self.find_highest(lambda name: name == REFERENCE)

    @cached_property
    def given_training(self) -> dict[str, float | None]:
        """Each measure's partial correlation with the gap, given training accuracy; empty where that does not vary."""
        if self.ranking is None or self.reference is None:
            return {}
        known, gaps = self.ranking.pool.measures, self.ranking.pool.gaps
        return {name: correlate_given(known[name], gaps, known[REFERENCE]) for name in known if name != REFERENCE}

    def compare(self) -> list[Advantage]:
        """Compare the effective degree with the paper's other measures, the best of the rest, and random pixels."""
        if self.ranking is None or not self.papers:
            return []
        degree, *others = self.papers
        names = dict.fromkeys(score.measure for score in (*others, self.best_rival) if score)
        found = [self.ranking.compare(degree.measure, name, "pearson") for name in names]
        for between, along in zip(RANDOM_PIXELS, self.degrees, strict=True):
            if _has_pearson(self.scores.get(between)) and _has_pearson(self.scores.get(along)):
                found.append(self.ranking.compare(along, between, "pearson"))
        return found

    def find_highest(self, wanted: Callable[[str], bool]) -> Score | None:
        """Find the measure with the highest Pearson correlation among those with certain names."""
        known = [score for name, score in self.scores.items() if wanted(name) and score.pearson]
        return max(known, key=_pearson, default=None)


@dataclass(frozen=True)
class Pool(Study):
    """Ranks measures by how closely they follow the generalization gap over a pool of models.

    The claim: the effective degree has the highest Pearson correlation of the paper's four measures. It is not decided
    where training accuracy, which is no measure of complexity, follows the gap at least as closely.
    """

    def claim(self, results: Results) -> Verdict:
        """Judge the lead of the effective degree over the closest of the paper's other measures."""
        pool = read_pool(results)
        if pool.ranking is None or len(pool.papers) < 2:
            return Verdict("not decided")
        degree, *others = pool.papers
        rival = max(others, key=_pearson)
        verdict = _judge(pool.ranking.compare(degree.measure, rival.measure, "pearson"))
        if pool.reference and _pearson(pool.reference) >= _pearson(degree):
            behind = _judge(pool.ranking.compare(degree.measure, REFERENCE, "pearson"))
            return replace(behind, word="not decided")
        return verdict

    def tables(self, results: Results) -> list[Table]:
        """Return the correlations, the tests between measures, the range of the models, and what was not measured."""
        pool = read_pool(results)
        return [
            _list_scores(pool, results),
            *_list_comparisons(pool),
            _list_ranges(pool, results),
            *_list_skipped(pool),
        ]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return the gap against the measures: the paper's four first, then those for reference, then the best."""
        pool = read_pool(results)
        ranking = pool.ranking
        noise = pool.find_highest(lambda name: name in RANDOM_PIXELS)
        names = [score.measure for score in (*pool.papers, noise, pool.reference) if score]
        # Shortened, the names of the two variants along random pixels look alike: the better one is enough.
        names += [name for name, score in pool.scores.items() if score.kendall and name not in RANDOM_PIXELS]
        shown = list(dict.fromkeys(names))[:_PANELS]
        if ranking is None or not shown:
            return []
        caption = (
            "The generalization gap against measures: the paper's four, ED along random pixels and training accuracy "
            "for reference, then those that rank best."
        )
        return [StudyFigure("panels", caption, lambda theme: ranking.plot(shown, theme=theme))]

    def numbers(self, results: Results) -> dict[str, Any]:
        """Return the models, their ranking, and the tests between measures."""
        pool = read_pool(results)
        return {
            "models": [dict(model) for model in pool.models],
            "ranking": pool.ranking and pool.ranking.to_dict(),
            "given_training_accuracy": pool.given_training,
            "comparisons": [asdict(each) for each in pool.compare()],
        }

    def headline(self, run: Run) -> str:
        """Return the accuracy and the gap."""
        return f"{100 * run.value('test_accuracy'):.2f}%, gap {100 * run.value(TARGET):.2f}%"


@lru_cache(maxsize=16)
def read_pool(results: Results) -> ModelPool:
    """Put the runs of a pool into a table, one row per model, and rank its measures."""
    runs = [(each.method.name, run) for each in results.methods for run in each.runs]
    # Resampling numbers configurations in order of appearance: runs that were moved keep the order of their old names.
    runs.sort(key=lambda pair: str(pair[1].environment.get("moved_from", pair[1].name)))
    axes = list(results.recipe.grid)
    models = [_describe_model(results.recipe, name, run) for name, run in runs]
    known = {"model", *axes, "seed", REFERENCE, "test_accuracy", TARGET}
    columns = dict.fromkeys(name for model in models for name in model if name not in known)
    measures = [f"-{name}" if "margin" in name else name for name in columns]  # large margins are good
    reference = [REFERENCE] if len({model[REFERENCE] for model in models}) > 1 else []
    inert = _find_inert(models, axes)
    ranking, unranked = None, None
    try:
        ranking = rank(
            models,
            target=TARGET,
            measures=[*measures, *reference],
            hyperparameters=axes,
            clusters=[axis for axis in axes if axis not in inert] or None,
        )
    except ValueError as error:
        unranked = str(error)
    skipped = {proxy: why for _, run in runs for proxy, why in ((run.summary or {}).get("skipped") or {}).items()}
    return ModelPool(models, measures, inert, ranking, unranked, skipped)


def _describe_model(recipe: Recipe, name: str, run: Run) -> dict[str, Any]:
    complete, summary = type(recipe.settings).complete(run.settings), run.summary or {}
    settings = {axis: complete[axis] for axis in recipe.grid} | {"seed": run.seed}
    outcome = {key: run.value(key) for key in (REFERENCE, "test_accuracy", TARGET)}
    proxies = {proxy: found["value"] for proxy, found in (summary.get("proxies") or {}).items()}
    degrees: dict[str, float] = {}
    # A summary's own effective degree is of test images.
    for key, names in (("effective_degree", TEST_DEGREES), ("effective_degree_random_pixels", RANDOM_PIXELS)):
        if found := summary.get(key):
            degrees |= dict(zip(names, (found["value"], found["normalized"]), strict=True))
    title = " ".join([name, *(f"{key}={value}" for key, value in settings.items())])
    return {"model": title, **settings, **outcome, **proxies, **degrees}


def _find_inert(models: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> list[str]:
    """Find the axes with less than a hundredth of the gap's variance: models that differ only there are replicates."""
    gaps = [float(model[TARGET]) for model in models]
    found = []
    for axis in axes:
        groups: dict[Any, list[float]] = {}
        for model, gap in zip(models, gaps, strict=True):
            groups.setdefault(tuple(model[other] for other in axes if other != axis), []).append(gap)
        within = sum(len(group) * pvariance(group) for group in groups.values())
        if any(len(group) > 1 for group in groups.values()) and within < _INERT * len(gaps) * pvariance(gaps):
            found.append(axis)
    return found


def correlate_given(values: np.ndarray, targets: np.ndarray, given: np.ndarray) -> float | None:
    """Return Pearson's correlation of what linear fits on a third quantity leave of two; None if one leaves nothing."""
    residuals = []
    for each in (values, targets):
        each, known = (part / (np.abs(part).max() or 1.0) for part in (each, given))  # so that no square overflows
        each, known = each - each.mean(), known - known.mean()
        rest = each - known * (known @ each) / (known @ known)
        size = float(np.linalg.norm(rest))
        if size <= 1e-9 * float(np.linalg.norm(each)):
            return None  # what is left is rounding
        residuals.append(rest / size)
    return float(np.clip(residuals[0] @ residuals[1], -1.0, 1.0))


def _list_scores(pool: ModelPool, results: Results) -> Table:
    papers = {score.measure for score in pool.papers}
    scores = list(pool.scores.values())
    rows = tuple(
        (
            "training accuracy (for reference)" if score.measure == REFERENCE else score.measure,
            _format(score.pearson),
            NOTHING if (given := pool.given_training.get(score.measure)) is None else f"{given:z.2f}",
            *map(_format, (score.spearman, score.kendall, score.psi)),
        )
        for score in scores
    )
    notes = [*_NOTES, *([pool.unranked] if pool.unranked else [])]
    if pool.ranking:
        notes += [f"{note}." for note in (pool.ranking.describe_intervals(), *pool.ranking.notes())]
    columns = ("measure", "Pearson", "given training", "Spearman", "Kendall", "Ψ")
    bold = frozenset((row, 0) for row, score in enumerate(scores) if score.measure in papers)
    return Table(f"{len(pool.models)} models: {results.heading}", columns, rows, tuple(notes), bold)


def _list_comparisons(pool: ModelPool) -> Iterable[Table]:
    rows = tuple(
        (
            f"{each.measure} over {each.other}",
            f"{each.values[0]:z.2f}",
            f"{each.values[1]:z.2f}",
            _format(Statistic(each.value, each.interval)),
            NOTHING if each.p_value is None else f"{each.p_value:.2g}",
        )
        for each in pool.compare()
    )
    if rows:
        columns = ("", "the one", "the other", "advantage", "one-sided p")
        yield Table("Tests between measures, by Pearson's r", columns, rows, (_LENIENT,))


def _list_ranges(pool: ModelPool, results: Results) -> Table:
    names = {TARGET: "gap", REFERENCE: "training accuracy", "test_accuracy": "test accuracy"}
    rows = [
        (title, *(f"{100 * end(model[key] for model in pool.models):.2f}%" for end in (min, max)))
        for key, title in names.items()
    ]
    planned = len(results.recipe.methods) * len(list(results.recipe.points())) * len(results.recipe.seeds)
    notes = [f"{len(pool.models)} of {planned} models were run."]
    if pool.inert:
        notes.append(f"Resampled together, with less than 1% of the gap's variance: {', '.join(pool.inert)}.")
    return Table("The models", ("", "lowest", "highest"), tuple(rows), tuple(notes))


def _list_skipped(pool: ModelPool) -> Iterable[Table]:
    if pool.skipped:
        yield Table("Not measured when these were run", ("measure", "reason"), tuple(pool.skipped.items()))


def _is_variant(name: str, variants: Sequence[str]) -> bool:
    return name.partition("@")[0] in variants  # what follows is a radius


def _judge(advantage: Advantage) -> Verdict:
    quantity = f"Pearson's r of {advantage.measure} over {advantage.other}:"
    return judge(quantity, advantage.value, advantage.interval, above=0.0)


def _pearson(score: Score) -> float:
    return score.pearson.value if score.pearson else float("-inf")


def _has_pearson(score: Score | None) -> bool:
    return score is not None and score.pearson is not None


def _format(statistic: Statistic | None) -> str:
    return NOTHING if statistic is None else str(statistic).replace(" to ", "…")
