"""A pool of models by random search: which measure follows the generalization gap, among models that can be compared?

Models are compared within strata only, such as those with mixup and those without, as in the paper's Figures 3 and 8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from effdeg.pools import Ranking, Statistic, rank
from effdeg_lab.core.recipe import StudyFigure
from effdeg_lab.core.results import Results
from effdeg_lab.experiments.pools.study import (
    EXPLAINED,
    REFERENCE,
    TARGET,
    PoolStudy,
    compare_with,
    count_models,
    format_score,
    list_measures,
    make_row,
    name_columns,
    read_models,
)
from effdeg_lab.show.tables import NOTHING, Table, to_sentence
from effdeg_lab.show.verdicts import Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEGREE = "effective degree"
# Measures of which the best of several variants counts, with patterns of the variants' names; the first pattern that
# matches several is used. Variants are radii, or raw and normalized, with several numbers of components or without.
FAMILIES: Mapping[str, Sequence[str]] = {
    "sharpness": ["sharpness@*"],
    "adaptive sharpness": ["adaptive_sharpness@*"],
    DEGREE: ["effective_degree*_test@*", "effective_degree*@*", "effective_degree*_test"],
}
PANELS = ("sharpness", "adaptive sharpness", "parameter_norm", DEGREE)
"""The panels of the paper's Figures 3 and 8."""
FITS = 0.99
"""The least training accuracy of a model that fits its training images."""
_STRATA = ("recipe",)  # columns; only models that agree in all of them are compared
_NOTES = (
    "Models are compared within strata only; the first columns combine the strata.",
    "Given training: Pearson's correlation given training accuracy.",
)
_NAMES = "Names with _test are of test images without labels (@: principal components), all others of training images."


def rank_within(
    models: Sequence[Mapping[str, Any]], measures: Sequence[str], strata: Sequence[str], axes: Sequence[str] = ()
) -> Ranking:
    """Rank measures of the gap within strata of models, and correct the best variants of the paper's for the choice.

    Args:
        models: One row per model.
        measures: The columns to rank, with a leading minus where larger is better.
        strata: Columns; only models that agree in all of them are compared. Empty to compare all models.
        axes: Settings; models that agree in all of them, such as seeds, are resampled together.
    """
    found = {
        family: next((names for each in patterns if len(names := _match(measures, each)) > 1), None)
        for family, patterns in FAMILIES.items()
    }
    variants = {family: names for family, names in found.items() if names}
    return rank(models, target=TARGET, measures=measures, strata=strata, hyperparameters=axes, variants=variants)


def _match(names: Sequence[str], pattern: str) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]


def plot_panels(ranking: Ranking, stratum: str, theme: str) -> "Figure":
    """Plot the gap against the paper's four measures in one stratum, each in its best variant."""
    known = [name for name in PANELS if name in ranking.best or name in ranking.scores]
    return ranking.plot_strata(known, theme=theme)[stratum]


@dataclass(frozen=True)
class RandomPool(PoolStudy):
    """Ranks measures by how closely they follow the gap within strata of a pool, among models that fit their data.

    The claim: within strata, the effective degree on test images correlates positively with the gap, in its best
    variant and corrected for that choice. It is not decided if training accuracy follows the gap at least as closely.
    """

    fit: float = 0.0  # the least training accuracy of a model that counts
    finer: tuple[str, ...] = ()  # columns of finer strata, which the claim does not use

    def claim(self, results: Results) -> Verdict:
        """Judge Pearson's correlation of the effective degree with the gap, combined over strata."""
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
        """Return the correlations among models that fit, the best variants, tests, and correlations among all."""
        count, ranking = len(read_models(results)), _rank(results, _STRATA, self.fit)
        if isinstance(ranking, str):
            title = f"{count_models(count)}: {results.heading}"
            return [Table(title, ("measure", "Pearson"), (), (to_sentence(ranking),))]
        fitted = len([model for model in read_models(results) if model[REFERENCE] >= self.fit])
        title = count_models(count) if fitted == count else f"The {fitted} of {count} models that fit ({self.fit:.0%})"
        found = list_tables(ranking, f"{title}: {results.heading}", _NAMES)
        found.append(self._make_comparison(results, ranking))
        every = _rank(results, _STRATA, 0.0) if fitted < count else ""
        return found if isinstance(every, str) else [*found, _list_scores(every, f"All {count} models", _NAMES)]

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

    def figures(self, results: Results) -> list[StudyFigure]:
        """Plot the gap against the paper's four measures, in a figure for each stratum."""
        ranking = _rank(results, _STRATA, self.fit)
        if isinstance(ranking, str):
            return []
        caption = (
            "The generalization gap against sharpness, adaptive sharpness, the parameter norm and the effective degree "
            "of test images, each by its best variant: {}."
        )
        names = {stratum: stratum.replace(" ", "-") for stratum in ranking.strata}
        return [
            StudyFigure(f"panels-{name}", caption.format(stratum), partial(plot_panels, ranking, stratum))
            for stratum, name in names.items()
        ]


@lru_cache(maxsize=8)  # the resamples take a while
def _rank(results: Results, strata: tuple[str, ...], fit: float) -> Ranking | str:
    """Rank the measures of the models that fit; return the reason if that is not possible."""
    models = [model for model in read_models(results) if model[REFERENCE] >= fit]
    if not models:
        return f"no model has a training accuracy of {fit:.0%} or more"
    axes = name_columns(results.recipe.axes)
    measures = list_measures(models, axes)
    if len({model[REFERENCE] for model in models}) > 1:
        measures.append(REFERENCE)
    try:
        return rank_within(models, measures, strata, axes if len(results.seeds) > 1 else ())
    except ValueError as error:
        return str(error)


def list_tables(ranking: Ranking, title: str, note: str) -> list[Table]:
    """Return the correlations, the best variants, and tests of the effective degree; the note explains the names."""
    return [_list_scores(ranking, title, note), *_list_best(ranking), *_list_tests(ranking)]


def _list_scores(ranking: Ranking, title: str, note: str) -> Table:
    columns = ("measure", "Pearson", "given training", "Kendall", *(f"Kendall {name}" for name in ranking.strata))
    rows = []
    for name, score in ranking.scores.items():
        inside = [each.scores[name].kendall for each in ranking.strata.values()]
        rows.append(make_row(ranking, name, (score.pearson, score.kendall, *inside)))
    sizes = ", ".join(f"{name} {len(inside.pool)}" for name, inside in ranking.strata.items())
    further = (to_sentence(ranking.describe_intervals()), *(f"Note: {each}." for each in ranking.notes()))
    return Table(title, columns, tuple(rows), (*_NOTES, note, f"Models: {sizes}.", *further))


def _list_best(ranking: Ranking) -> list[Table]:
    """Tabulate the best variants, before and after the correction, over all strata and in each stratum."""
    parts = {"within strata": ranking, **ranking.strata}
    rows = []
    for family, found in ranking.best.items():
        cells = []
        for inside in parts.values():
            best = inside.best.get(family, {}).get("pearson")
            if best is None:
                cells.append(NOTHING)
            elif best.corrected is None:
                cells.append(f"{format_score(Statistic(best.value, best.interval))}, not corrected, {best.variant}")
            else:
                corrected = format_score(Statistic(best.corrected, best.interval))
                cells.append(f"{best.value:z.2f} → {corrected}, {best.variant}")
        rows.append((f"{family} ({len(found['pearson'].variants)} variants)", *cells))
    title = "The best variant by Pearson's r → corrected for the choice, with its interval"
    return [Table(title, ("measure", *parts), tuple(rows))] if rows else []


def _is_alone(name: str) -> bool:
    """Return whether a measure without variants is listed along with the best of those that have some."""
    return name in ("parameter_norm", "distance") or name.endswith("_test")


def _list_tests(ranking: Ranking) -> list[Table]:
    """Compare the best effective degree with the best of every other family, and with measures without labels."""
    if DEGREE not in ranking.best:
        return []
    degree = ranking.best[DEGREE]["kendall"].variant
    families = [found["kendall"].variant for family, found in ranking.best.items() if family != DEGREE]
    names = [*families, *filter(_is_alone, ranking.scores)]
    names = [name for name in names if "effective_degree" not in name and ranking.scores[name].kendall]
    rows = compare_with(ranking, degree, names, "kendall")
    note = "Variants are the best ones, and tests are not corrected for that, nor for their number."
    columns = ("over", "by Kendall's τ", "one-sided p")
    return [Table(f"Advantage of {degree} within strata", columns, rows, (note,))] if rows else []
