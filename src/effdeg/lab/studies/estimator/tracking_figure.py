"""Coarse measurements against the precise one, a panel for each setting."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from effdeg.lab.studies.estimator.models import VARIANTS, Measured, groups_of, settings_in, tracked
from effdeg.plots import open_figure

_TITLES = {"value": "effective degree", "normalized": "normalized effective degree"}
# As in the figures of methods: told apart also by colour-blind readers.
_COLOURS = {
    "light": ("#1f2328", "#0072b2", "#c25400", "#007a59", "#b8438a"),
    "dark": ("#e6edf3", "#56b4e9", "#f0894e", "#35c795", "#ec9ccb"),
}


def plot_tracking(models: Sequence[Measured], proper: str, *, theme: str = "light") -> Figure:
    """Draw what every setting found against the precise value, raw above and normalized below.

    Args:
        models: The models.
        proper: What the precise value is called.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        The figure.
    """
    names = settings_in(models)
    groups = groups_of(models)
    inks = {group: _COLOURS[theme][index % len(_COLOURS[theme])] for index, group in enumerate(groups)}
    with open_figure(theme, (2.15 * len(names) + 0.5, 5.4)) as (colours, figure):
        grid = figure.subplots(len(VARIANTS), len(names), squeeze=False, sharey="row")
        for row, variant in zip(grid, VARIANTS, strict=True):
            scores = tracked(models, variant)
            for axes, name in zip(row, names, strict=True):
                for group, ink in inks.items():
                    _draw(axes, groups[group], name, variant, ink)
                low, high = axes.get_xlim()
                axes.plot((low, high), (low, high), ":", color=colours.ink, lw=1, zorder=1)
                axes.set_xlim(low, high)
                axes.set_ylim(bottom=min(axes.get_ylim()[0], low))
                axes.grid(color=colours.faint, lw=0.5)
                axes.set_axisbelow(True)
                score = scores.get(name)
                said = f"ρ = {score.spearman.value:.3f}" if score and score.spearman else ""
                axes.set_title(f"{name}   {said}")
                axes.locator_params(nbins=4)
            row[0].set_ylabel(f"{_TITLES[variant]},\ncoarse")
        figure.supxlabel(proper, fontsize=9)
        if len(groups) > 1:
            handles = [Line2D([], [], ls="", marker="o", ms=5, color=ink, label=name) for name, ink in inks.items()]
            figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8)
    return figure


def _draw(axes: Axes, models: Sequence[Measured], name: str, variant: str, ink: str) -> None:
    error = VARIANTS[variant]
    axes.errorbar(
        [model.proper[variant] for model in models],
        [model.also[name][variant] for model in models],
        [model.also[name][error] for model in models],
        [model.proper[error] for model in models],
        fmt="o",
        ms=3.6,
        color=ink,
        elinewidth=0.7,
        alpha=0.8,
    )
