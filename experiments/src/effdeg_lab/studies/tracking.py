"""How well do coarse settings of the estimator track the precise one, over a pool of trained models?"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from effdeg.ranking import Score, rank
from effdeg_lab.results import Results
from effdeg_lab.runs import Run
from effdeg_lab.settings import format_setting
from effdeg_lab.studies import Study, StudyFigure
from effdeg_lab.studies.estimator import TOLERANCE
from effdeg_lab.tables import NOTHING, Table
from effdeg_lab.verdicts import Verdict, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALSO = ("3/2", "4/3", "8/5", "15/7", "32/20", "64/40")
"""Nodes/degree: cheap and efficient penalties, two in between, the precise penalty, two that measure nearly in full."""
EFFICIENT = "4/3"
"""The paper's efficient penalty, which the claim is about."""
TRACKS = 0.9
"""A setting tracks the precise value if the rank correlation, with its interval, lies above this."""
FEWEST = 5
"""The rank correlation of fewer models means nothing."""
VARIANTS = {"value": "raw, on probabilities", "normalized": "normalized, on logits"}
"""The two values of a measurement, and their names in tables."""

_STDERR = {"value": "stderr", "normalized": "normalized_stderr"}
_COLORS = {  # as in the figures of methods: also for color-blind readers
    "light": ("#1f2328", "#0072b2", "#c25400", "#007a59", "#b8438a"),
    "dark": ("#e6edf3", "#56b4e9", "#f0894e", "#35c795", "#ec9ccb"),
}


def read_models(results: Results) -> pd.DataFrame:
    """Return what every setting measured, one row for each model and setting, the precise setting last.

    Models have a ``configuration`` (method and point of the grid, of which there may be several seeds) and a ``group``
    (the method or, if there is only one, the learning rate). Only settings that all models were measured with are kept.
    """
    grid = results.recipe.grid

    def place(run: Run) -> tuple[int, ...]:
        # A user may have run values that the grid does not have.
        given = [(run.settings[key], values) for key, values in grid.items()]
        return (*(values.index(value) if value in values else len(values) for value, values in given), run.seed)

    rows: list[dict[str, Any]] = []
    for each in results.done:
        measured = [run for run in each.runs if run.summary and run.summary.get("measured_also")]
        for run in sorted(measured, key=place):
            summary, settings = run.summary or {}, run.settings
            point = [f"{key}={format_setting(settings[key])}" for key in grid]
            precise = summary["effective_degree"]
            model = {
                "model": run.name,
                "configuration": "-".join([each.method.name, *point]),
                "group": each.method.title if len(results.done) > 1 else f"lr = {format_setting(settings['lr'])}",
                "measured_paths": settings["measure_paths"],
                **{f"precise_{key}": value for key, value in precise.items()},
            }
            at_degree = {f"{variant}_at_degree": precise[variant] for variant in VARIANTS}
            found = {**summary["measured_also"], name_precise(results): precise | at_degree}
            rows += [model | {"setting": setting} | values for setting, values in found.items()]
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    return frame[frame.groupby("setting")["model"].transform("size") == frame["model"].nunique()]


def name_precise(results: Results) -> str:
    """Name the precise setting: nodes/degree."""
    return f"{results.scale['measure_nodes']}/{results.scale['measure_degree']}"


def list_settings(models: pd.DataFrame) -> list[str]:
    """List the coarse settings."""
    return list(models["setting"].unique()[:-1])


def score_settings(models: pd.DataFrame, variant: str) -> dict[str, Score]:
    """Return how well each coarse setting ranks the models as the precise one does; empty for too few models."""
    if models.empty or models["model"].nunique() < FEWEST:
        return {}
    names, precise = list_settings(models), models["setting"].iloc[-1]
    table = models.pivot_table(variant, "model", "setting", sort=False).reset_index()
    table["configuration"] = models.drop_duplicates("model")["configuration"].to_numpy()
    # Seeds of one configuration are not independent models.
    clusters = ["configuration"] if table["configuration"].duplicated().any() else []
    records = table[[*clusters, precise, *names]].to_dict("records")
    try:
        ranking = rank(records, target=precise, measures=names, hyperparameters=clusters, resamples=2000)
    except ValueError:  # all models have the same value
        return {}
    return {name: ranking.scores[name] for name in names if ranking.scores[name].undefined is None}


def compare_settings(models: pd.DataFrame, variant: str) -> Any:
    """Return each setting's ratio to the precise value and to that at the same degree, and the paths it needs.

    ``ratio_at_degree`` is relative to the fit of the same degree on the nodes of the precise measurement; ``paths``
    bring the standard error down to the tolerance.
    """
    value = models[variant]
    spread = models[_STDERR[variant]] * np.sqrt(models["measured_paths"]) / value
    found = models[["setting"]].assign(
        ratio=value / models[f"precise_{variant}"],
        ratio_at_degree=value / models[f"{variant}_at_degree"],
        paths=np.ceil((spread / TOLERANCE) ** 2).astype(int),
        path_correlation=models["per_path_correlation" if variant == "value" else "normalized_per_path_correlation"],
    )
    return found.groupby("setting", sort=False)


class TrackingStudy(Study):
    """Coarse settings against the precise one. It claims that 4 nodes and degree 3 rank models as the precise one."""

    def claim(self, results: Results) -> Verdict:
        """Judge the rank correlation of the raw values."""
        score = score_settings(read_models(results), "value").get(EFFICIENT)
        if score is None or score.spearman is None:
            return Verdict("not decided")
        quantity = f"rank correlation of {EFFICIENT} with {name_precise(results)}"
        return judge(quantity, score.spearman.value, score.spearman.interval, above=TRACKS)

    def tables(self, results: Results) -> list[Table]:
        """Return how the settings rank the models, overall and among models trained alike, and what they cost."""
        models = read_models(results)
        if models.empty:
            return []
        return [
            *(_make_correlations(results, models, variant) for variant in VARIANTS),
            *_make_groups(models),
            _make_costs(models),
        ]

    def figures(self, results: Results) -> list[StudyFigure]:
        """Return the figure, if there are enough models."""
        models = read_models(results)
        if models.empty or models["model"].nunique() < FEWEST:
            return []
        caption = (
            "What coarse settings (nodes/degree) measure against the precise value, for each trained model, with "
            "standard errors; dotted: equal. ρ is Spearman's rank correlation."
        )
        return [StudyFigure("tracking", caption, lambda theme: draw_tracking(models, theme))]

    def headline(self, run: Run) -> str:
        """Return what the precise and the efficient setting found."""
        efficient = run.value(f"measured_also.{EFFICIENT}.value")
        coarse = "" if math.isnan(efficient) else f", with {EFFICIENT} {efficient:.3f}"
        return f"ED {run.value('effective_degree.value'):.3f}{coarse}"


def _make_correlations(results: Results, models: pd.DataFrame, variant: str) -> Table:
    scores, compared = score_settings(models, variant), compare_settings(models, variant)
    mean, std = compared.mean(), compared.std().fillna(0.0)
    rows = []
    for name in list_settings(models):
        score = scores.get(name)
        found = [None] * 3 if score is None else [score.pearson, score.spearman, score.kendall]
        rows.append((
            name,
            *(NOTHING if each is None else str(each).replace(" to ", "…") for each in found),
            f"{mean.ratio[name]:.2f} ± {std.ratio[name]:.2f}",
            f"{mean.ratio_at_degree[name]:.3f} ± {std.ratio_at_degree[name]:.3f}",
            f"{mean.path_correlation[name]:.2f}",
        ))
    notes = (
        "Correlations with the precise value, with 95% intervals; ± standard deviation over models.",
        "At its degree: relative to the fit of the same degree on the nodes of the precise measurement, so that only "
        "the error of few nodes is left.",
        "Between paths: the correlation of single paths' values with their precise ones, averaged over models.",
    )
    columns = ("nodes/degree", "Pearson", "Spearman", "Kendall", "ratio to precise", "at its degree", "between paths")
    tracked = f"the precise one ({name_precise(results)}) over {models['model'].nunique()} models"
    title = f"How coarse settings track {tracked}, {VARIANTS[variant]}: {results.heading}"
    # The notes hold for both tables, and are given below the first.
    return Table(title, columns, tuple(rows), notes if variant == "value" else ())


def _make_groups(models: pd.DataFrame) -> list[Table]:
    """Return the rank correlations among models trained alike; nothing unless there are several groups."""
    by_group = {str(name): group for name, group in models.groupby("group", sort=False)}
    groups = {name: group for name, group in by_group.items() if group["model"].nunique() >= FEWEST}
    if len(groups) < 2:
        return []
    names, rows = list_settings(models), []
    for variant, label in VARIANTS.items():
        for name, group in groups.items():
            scores = score_settings(group, variant)
            found = [scores[each].spearman if each in scores else None for each in names]
            cells = [f"{each.value:z.2f}" if each else NOTHING for each in found]
            rows.append((label, name, str(group["model"].nunique()), *cells))
    notes = (
        "Spearman's rank correlation with the precise value. High within groups and low over all of them means that a "
        "coarse setting does not see what distinguishes the groups.",
    )
    return [Table("Among models that were trained alike", ("", "group", "models", *names), tuple(rows), notes)]


def _make_costs(models: pd.DataFrame) -> Table:
    rows = []
    for variant, label in VARIANTS.items():
        for name, found in compare_settings(models, variant):
            nodes = int(name.partition("/")[0])
            typical, most = found["paths"].quantile(0.5, interpolation="higher"), found["paths"].max()
            biases = [_format_bias(found[column] - 1) for column in ("ratio", "ratio_at_degree")]
            passes = f"{nodes * typical:,} ({nodes * most:,})"
            rows.append((label, name, *biases, f"{typical:,} ({most:,})", passes))
    notes = (
        f"Paths that bring the standard error to {TOLERANCE:.0%}, from that on the measured paths: the median over "
        "models, and the most for any.",
        "Bias: relative to the precise value, and to the same degree on its nodes; the mean over models, and the "
        "largest for any.",
    )
    columns = ("", "nodes/degree", "bias, %", "at its degree, %", "paths", "forward passes")
    title = f"Cost of a standard error of {TOLERANCE:.0%} on trained models"
    return Table(title, columns, tuple(rows), notes)


def _format_bias(values: "pd.Series[float]") -> str:
    return f"{100 * values.mean():+z.1f} ({100 * max(values, key=abs):+z.1f})"


def draw_tracking(models: pd.DataFrame, theme: str) -> "Figure":
    """Draw what every coarse setting found against the precise value, raw above and normalized below."""
    from matplotlib.lines import Line2D

    from effdeg.plots import open_figure

    names, groups = list_settings(models), list(models["group"].unique())
    inks = {group: _COLORS[theme][index % len(_COLORS[theme])] for index, group in enumerate(groups)}
    with open_figure(theme, (2.15 * len(names) + 0.5, 5.4)) as (colors, figure):
        grid = figure.subplots(len(VARIANTS), len(names), squeeze=False, sharey="row")
        for row, variant in zip(grid, VARIANTS, strict=True):
            scores = score_settings(models, variant)
            values = [variant, f"precise_{variant}", _STDERR[variant], f"precise_{_STDERR[variant]}"]
            for axes, name in zip(row, names, strict=True):
                for group, found in models[models["setting"] == name].groupby("group", sort=False):
                    y, x, y_error, x_error = (found[column] for column in values)
                    style = {"fmt": "o", "ms": 3.6, "color": inks[group], "elinewidth": 0.7, "alpha": 0.8}
                    axes.errorbar(x, y, y_error, x_error, **style)
                low, high = axes.get_xlim()
                axes.plot((low, high), (low, high), ":", color=colors.ink, lw=1, zorder=1)
                axes.set_xlim(low, high)
                axes.set_ylim(bottom=min(axes.get_ylim()[0], low))
                axes.grid(color=colors.faint, lw=0.5)
                axes.set_axisbelow(True)
                score = scores.get(name)
                axes.set_title(f"{name}   ρ = {score.spearman.value:.3f}" if score and score.spearman else name)
                axes.locator_params(nbins=4)
            kind = "effective degree" if variant == "value" else "normalized effective degree"
            row[0].set_ylabel(f"{kind},\ncoarse")
        figure.supxlabel(f"the precise value ({models['setting'].iloc[-1]})", fontsize=9)
        if len(groups) > 1:
            handles = [Line2D([], [], ls="", marker="o", ms=5, color=ink, label=name) for name, ink in inks.items()]
            figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8)
    return figure
