"""How well do coarse settings of the estimator track the precise one, over a pool of trained models?"""

import math
from itertools import cycle
from typing import Any, ClassVar

import pandas as pd

from effdeg.pools import Score, rank
from effdeg_lab.core.recipe import Study, StudyFigure
from effdeg_lab.core.results import Results
from effdeg_lab.core.runs import Run
from effdeg_lab.core.settings import format_setting
from effdeg_lab.experiments.estimator import TOLERANCE
from effdeg_lab.experiments.pools.study import format_score
from effdeg_lab.show.figures import MARKERS, add_grid, open_figure
from effdeg_lab.show.tables import NOTHING, Table
from effdeg_lab.show.verdicts import Verdict, judge

# Nodes/degree: a cheap penalty, the efficient one, one in between, the precise one, and two that measure well.
ALSO = ("3/2", "4/3", "8/5", "15/7", "32/20", "64/40")
EFFICIENT = "4/3"  # the paper's efficient penalty, which the claim is about
TRACKS = 0.9  # a setting tracks the precise value if the interval of the rank correlation lies above this
FEWEST = 5  # the rank correlation of fewer models means nothing
VARIANTS = {"value": "raw, on probabilities", "normalized": "normalized, on logits"}


def read_models(results: Results) -> pd.DataFrame:
    """Return a row for each model, setting and variant, the precise setting last.

    A ``configuration`` may have several seeds. ``ratio_at_degree`` is relative to the fit of the same degree on the
    nodes of the precise measurement; ``paths`` is the number needed for a standard error at the tolerance.
    """
    points = [tuple(point.values()) for point in results.recipe.points()]
    precise_name = f"{results.scale['measure_nodes']}/{results.scale['measure_degree']}"
    rows: list[dict[str, Any]] = []
    for each in results.done:
        by_point = [(tuple(run.settings[key] for key in results.recipe.axes), run) for run in each.runs]
        # The user may have run points that are not in the recipe.
        for point, run in sorted(by_point, key=lambda found: [*points, found[0]].index(found[0])):
            summary: dict[str, Any] = run.summary or {}
            precise = summary["effective_degree"]
            group = each.method.title if len(results.done) > 1 else f"lr = {format_setting(run.settings['lr'])}"
            model = {"group": group, "configuration": f"{each.method.name} {point}", "model": run.name}
            for setting, found in {**summary["measured_also"], precise_name: precise}.items():
                for key, variant in VARIANTS.items():
                    prefix = "" if key == "value" else f"{key}_"
                    value, stderr, reference = found[key], found[f"{prefix}stderr"], precise[key]
                    needed = (stderr * math.sqrt(run.settings["measure_paths"]) / value / TOLERANCE) ** 2
                    rows.append({
                        **model,
                        "setting": setting,
                        "variant": variant,
                        "value": value,
                        "precise": reference,
                        "ratio": value / reference,
                        "ratio_at_degree": value / found.get(f"{key}_at_degree", reference),
                        "path_correlation": found.get(f"{prefix}per_path_correlation"),
                        "paths": math.ceil(needed),
                    })
    return pd.DataFrame(rows)


def _split(models: pd.DataFrame, column: str) -> dict[str, pd.DataFrame]:
    return {str(name): found for name, found in models.groupby(column, sort=False)}


def score_settings(models: pd.DataFrame) -> dict[str, Score]:
    """Score how closely each coarse setting ranks the models as the precise one does; empty for too few models."""
    table = models.pivot_table("value", ["model", "configuration"], "setting", sort=False).reset_index()
    if len(table) < FEWEST:
        return {}
    _, _, *names, precise = table.columns
    # Seeds of one configuration are not independent models.
    clusters = ["configuration"] if table["configuration"].duplicated().any() else []
    records = table[[*clusters, precise, *names]].to_dict("records")
    try:
        ranking = rank(records, target=precise, measures=names, hyperparameters=clusters, resamples=2000)
    except ValueError:  # all models have the same value
        return {}
    return dict(ranking.scores)


class TrackingStudy(Study):
    """Compares coarse settings with the precise one. It claims that 4 nodes and degree 3 rank models as it does."""

    needs: ClassVar[str | None] = f"measured_also.{EFFICIENT}.value"
    needs_all: ClassVar[bool] = False

    def claim(self, results: Results) -> Verdict:
        models = _split(read_models(results), "variant")[VARIANTS["value"]]
        score = score_settings(models).get(EFFICIENT)
        if score is None or score.spearman is None:
            return Verdict("not decided")
        quantity = f"rank correlation of {EFFICIENT} with {models['setting'].iloc[-1]}"
        return judge(quantity, score.spearman.value, score.spearman.interval, above=TRACKS)

    def tables(self, results: Results) -> list[Table]:
        variants = _split(read_models(results), "variant")
        correlations = [_make_correlations(results, *variant) for variant in variants.items()]
        return [*correlations, *_make_groups(variants), _make_costs(variants)]

    def figures(self, results: Results) -> list[StudyFigure]:
        caption = "Coarse against precise values (nodes/degree); dotted: equal. ρ is Spearman's rank correlation."
        figure = StudyFigure("tracking", caption, lambda theme: _draw_tracking(read_models(results), theme))
        return [figure] if results.size >= FEWEST else []

    def headline(self, run: Run) -> str:
        precise, efficient = (run.value(f"{key}.value") for key in ("effective_degree", f"measured_also.{EFFICIENT}"))
        return f"ED {precise:.3f}, with {EFFICIENT} {efficient:.3f}"


def _make_correlations(results: Results, variant: str, models: pd.DataFrame) -> Table:
    scores, rows = score_settings(models), []
    for name, found in list(_split(models, "setting").items())[:-1]:
        score, ratio, at_degree = scores.get(name), found["ratio"], found["ratio_at_degree"]
        correlations = [score.pearson, score.spearman, score.kendall] if score else [None] * 3
        rows.append((
            name,
            *map(format_score, correlations),
            f"{ratio.mean():.2f} ± {ratio.std():.2f}",
            f"{at_degree.mean():.3f} ± {at_degree.std():.3f}",
            f"{found['path_correlation'].mean():.2f}",
        ))
    notes = (
        "Correlations with the precise value over models (95% intervals) and over the paths of one; ± over models.",
        "At its degree: relative to the fit of the same degree on the nodes of the precise measurement.",
    )
    columns = ("nodes/degree", "Pearson", "Spearman", "Kendall", "ratio to precise", "at its degree", "between paths")
    over = f"the precise one ({models['setting'].iloc[-1]}) over {results.size} models"
    return Table(f"How coarse settings track {over}, {variant}: {results.heading}", columns, tuple(rows), notes)


def _make_groups(variants: dict[str, pd.DataFrame]) -> list[Table]:
    """Return the rank correlations among models trained alike; no table unless there are several groups."""
    rows = []
    for variant, models in variants.items():
        names = models["setting"].unique()[:-1]
        for group, found in _split(models, "group").items():
            if scores := score_settings(found):
                cells = [f"{one.value:z.2f}" if (one := scores[name].spearman) else NOTHING for name in names]
                rows.append((variant, group, str(found["model"].nunique()), *cells))
    notes = ("Spearman's rank correlation with the precise value.",)
    table = Table("Among models that were trained alike", ("", "group", "models", *names), tuple(rows), notes)
    return [table] if len({group for _, group, *_ in rows}) > 1 else []


def _make_costs(variants: dict[str, pd.DataFrame]) -> Table:
    rows = []
    for variant, models in variants.items():
        for name, found in _split(models, "setting").items():
            nodes = int(name.partition("/")[0])
            typical, most = found["paths"].quantile(0.5, interpolation="higher"), found["paths"].max()
            biases = [100 * (found[column] - 1) for column in ("ratio", "ratio_at_degree")]
            cells = [f"{bias.mean():+z.1f} ({max(bias, key=abs):+z.1f})" for bias in biases]
            cells += [f"{typical:,} ({most:,})", f"{nodes * typical:,} ({nodes * most:,})"]
            rows.append((variant, name, *cells))
    notes = (
        "Bias: relative to the precise value, and to the same degree on its nodes; the mean over models (the largest).",
        f"Paths for a standard error of {TOLERANCE:.0%}: the median over models (the most).",
    )
    columns = ("", "nodes/degree", "bias, %", "at its degree, %", "paths", "forward passes")
    return Table(f"Cost of a standard error of {TOLERANCE:.0%} on trained models", columns, tuple(rows), notes)


def _draw_tracking(models: pd.DataFrame, theme: str) -> Any:
    *names, precise = models["setting"].unique()
    with open_figure(theme, (2.15 * len(names) + 0.5, 5.4)) as (colors, figure):
        panels = figure.subplots(len(VARIANTS), len(names), squeeze=False, sharey="row")
        inks = (colors.ink, colors.simple, colors.steep, colors.complex)
        for row, (variant, measured) in zip(panels, _split(models, "variant").items(), strict=True):
            scores, lowest = score_settings(measured), measured["precise"].min()
            row[0].set_ylabel(f"effective degree, coarse\n({variant})")
            for axes, name in zip(row, names, strict=True):
                groups = _split(measured.query("setting == @name"), "group").items()
                for (group, found), ink, marker in zip(groups, cycle(inks), cycle(MARKERS)):
                    axes.plot(found["precise"], found["value"], marker, ms=4, color=ink, label=group)
                axes.axline((lowest, lowest), slope=1, ls=":", color=colors.ink, lw=1, zorder=1)
                add_grid(axes, colors)
                score = scores.get(name)
                axes.set_title(f"{name}   ρ = {score.spearman.value:.3f}" if score and score.spearman else name)
        figure.supxlabel(f"the precise value ({precise})", fontsize=9)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    return figure
