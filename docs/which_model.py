"""Which of several models generalizes? Tables from the pools in ``results/``: one architecture, several, a choice."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from effdeg.ranking import Ranking, Score
from effdeg_lab.studies.pool import REFERENCE, correlate_given_training
from effdeg_lab.studies.random_pool import rank_within

Models = Sequence[Mapping[str, Any]]
# Models with equal values of these are replicates: weight decay hardly moves the gap of the two pools of the paper.
AXES = ("batch", "lr")
# From this training accuracy on a network is said to fit its training images.
FIT = 0.99
# What a measure is computed from, the cheapest first; the effective degree of test images needs no labels.
MEASURES = {
    "effective_degree_test": "test images",
    "effective_degree_normalized_test": "test images",
    "effective_degree": "training images",
    "effective_degree_normalized": "training images",
    "total_variation": "training images",
    "jacobian_norm": "training images",
    "decision_regions": "training images",
    "parameter_norm": "weights",
    "-margin@50": "training images, labels",
    "average_sharpness@0.01": "training images, labels",
    REFERENCE: "training images, labels",
}


PLOTTED = ("effective_degree_test", "effective_degree_normalized_test", "total_variation", "average_sharpness@0.01")


def rank_models(models: Models, axes: Sequence[str] = AXES, *, mixed: bool = False) -> Ranking:
    """Rank the measures within architectures, or as if all models had one; models with equal axes are replicates."""
    return rank_within(models, list(MEASURES), [] if mixed else ["architecture"], axes)


def make_pools_table(pools: Mapping[str, Models]) -> str:
    """Tabulate Kendall's τ with the gap in each pool: among all models, and among those that fit."""
    heads, columns = [], []
    for title, models in pools.items():
        fitted = keep_fitted(models)
        for head, kept in ((f"{title}: all {len(models)}", models), (f"the {len(fitted)} that fit", fitted)):
            heads.append(head)
            columns.append(rank_models(kept, mixed=True).scores)
    lines = [f"| Kendall's τ with the gap | needs | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for name, needs in MEASURES.items():
        lines.append(f"| {_name(name)} | {needs} | {' | '.join(_format(each[name]) for each in columns)} |")
    return "\n".join(lines) + "\n"


def make_mixed_table(pools: Mapping[str, Models]) -> str:
    """Tabulate what is left of a correlation over several architectures within each of them, among models that fit."""
    models = [model for each in pools.values() for model in keep_fitted(each)]
    within = rank_models(models)
    mixed = rank_models(models, [*AXES, "architecture"], mixed=True)
    heads = ["within architectures", "given training accuracy", "all as one"]
    lines = [
        f"| {len(models)} models that fit | τ {heads[0]} | r {heads[0]} | r {heads[1]} | τ {heads[2]} | r {heads[2]} |",
        "|---|---|---|---|---|---|",
    ]
    for name in MEASURES:
        given = correlate_given_training(within, name)
        inside, outside = within.scores[name], mixed.scores[name]
        cells = [inside.kendall, inside.pearson, "–" if given is None else f"{given:z.2f}"]
        lines.append(f"| {_name(name)} | {' | '.join(map(str, (*cells, outside.kendall, outside.pearson)))} |")
    return "\n".join(lines) + "\n"


def make_choice_table(pools: Mapping[str, Models]) -> str:
    """Tabulate the test accuracy of the model that each measure would choose among those that fit: its least value."""
    fitted = {title: keep_fitted(models) for title, models in pools.items()}
    lines = [f"| test accuracy of the choice | {' | '.join(fitted)} |", "|---|" + "---|" * len(fitted)]
    for name in (each for each in MEASURES if each != REFERENCE):
        sign, column = (-1, name[1:]) if name.startswith("-") else (1, name)
        cells = []
        for models in fitted.values():
            chosen = min(models, key=lambda model: sign * model[column])["test_accuracy"]
            place = 1 + sum(model["test_accuracy"] > chosen for model in models)
            cells.append(f"{100 * chosen:.1f}%, place {place} of {len(models)}")
        lines.append(f"| {_name(name)} | {' | '.join(cells)} |")
    tests = [[100 * model["test_accuracy"] for model in models] for models in fitted.values()]
    means = (f"{sum(each) / len(each):.1f}% ({min(each):.1f}% to {max(each):.1f}%)" for each in tests)
    return "\n".join([*lines, f"| at random: the mean (worst to best) | {' | '.join(means)} |"]) + "\n"


def plot(pools: Mapping[str, Models], theme: str) -> dict[str, Figure]:
    """Plot the gap of the models that fit against four measures, a figure for each architecture."""
    models = [model for each in pools.values() for model in keep_fitted(each)]
    return rank_models(models).plot_strata(PLOTTED, theme=theme)


def keep_fitted(models: Models) -> list[Mapping[str, Any]]:
    """Return the models of a pool that fit their training images."""
    return [model for model in models if model[REFERENCE] >= FIT]


def _name(measure: str) -> str:
    return "training accuracy (for reference)" if measure == REFERENCE else f"`{measure}`"


def _format(score: Score) -> str:
    return str(score.kendall or "–")
