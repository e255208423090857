"""Which of several models generalizes? Tables from the pools in ``results/``: one architecture, several, a choice."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from effdeg.pools import Ranking, Score
from effdeg_lab.experiments.pools.random_search import FITS, rank_within
from effdeg_lab.experiments.pools.study import REFERENCE, correlate_given_training

Models = Sequence[Mapping[str, Any]]
# Models with equal values of these are replicates: weight decay hardly moves the gap of the two pools of the paper.
AXES = ("batch", "lr")
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
# Measures that a model is chosen by; the last ones are of test images and need no labels, like the first.
CHOOSERS = (*MEASURES, "-confidence_test", "entropy_test", "decision_regions_test", "total_variation_test")
CHOICE = 5
"""How many models there are to choose from."""
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
    """Tabulate the mean test accuracy of the models that each measure chooses, by its least value, of those that fit.

    A choice is among a few random models of one recipe, and the mean is that over all such choices. In parentheses is
    how far that is from choosing at random, 0%, to always choosing the best, 100%.
    """
    fitted = {title: keep_fitted(models) for title, models in pools.items()}
    lines = [f"| chosen by | {' | '.join(fitted)} |", "|---|" + "---|" * len(fitted)]
    random = {title: sum(model["test_accuracy"] for model in each) / len(each) for title, each in fitted.items()}
    best = {title: _average_choice(models, "-test_accuracy") for title, models in fitted.items()}
    for name in (each for each in CHOOSERS if each != REFERENCE):
        cells = []
        for title, models in fitted.items():
            if any(name.removeprefix("-") not in model for model in models):
                cells.append("–")
                continue
            mean = _average_choice(models, name)
            share = (mean - random[title]) / (best[title] - random[title])
            cells.append(f"{mean:.1%} ({share:z.0%})")
        lines.append(f"| {_name(name)} | {' | '.join(cells)} |")
    for label, means in (("test accuracy itself", best), ("chance", random)):
        lines.append(f"| {label} | {' | '.join(f'{means[title]:.1%}' for title in fitted)} |")
    return "\n".join(lines) + "\n"


def _average_choice(models: Models, measure: str) -> float:
    """Return the mean accuracy of the least value among a model and ``CHOICE`` − 1 others of its recipe, over all."""
    sign, column = (-1, measure[1:]) if measure.startswith("-") else (1, measure)
    total = 0.0
    for recipe in sorted({model["recipe"] for model in models}):
        inside = [(sign * model[column], model["test_accuracy"]) for model in models if model["recipe"] == recipe]
        # A model is chosen with any of those that come after it.
        ways = [math.comb(len(inside) - 1 - place, CHOICE - 1) for place in range(len(inside))]
        chosen = sum(way * accuracy for way, (_, accuracy) in zip(ways, sorted(inside), strict=True))
        total += len(inside) * chosen / sum(ways)
    return total / len(models)


def plot(pools: Mapping[str, Models], theme: str) -> dict[str, Figure]:
    """Plot the gap of the models that fit against four measures, a figure for each architecture."""
    models = [model for each in pools.values() for model in keep_fitted(each)]
    return rank_models(models).plot_strata(PLOTTED, theme=theme)


def keep_fitted(models: Models) -> list[Mapping[str, Any]]:
    """Return the models of a pool that fit their training images."""
    return [model for model in models if model[REFERENCE] >= FITS]


def _name(measure: str) -> str:
    return "training accuracy (for reference)" if measure == REFERENCE else f"`{measure}`"


def _format(score: Score) -> str:
    return str(score.kendall or "–")
