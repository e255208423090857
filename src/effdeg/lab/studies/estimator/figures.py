"""The estimator beside the exact values: its bias, and the value against the degree."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.figures import colours_of
from effdeg.lab.report.labels import Label, beside
from effdeg.lab.studies.estimator.choices import UNBIASED
from effdeg.lab.studies.estimator.grid import DEGREES, EXACT_AT, NODES, SAMPLINGS
from effdeg.lab.studies.estimator.outcomes import REFERENCE, EstimatorOutcome, averaged, exact_of
from effdeg.plots import Theme, open_figure

# The parts of a perceptually uniform map that stand out from the ground.
_SHADES = {"light": (0.25, 0.9), "dark": (0.5, 0.97)}
_TICKS = {-10: "−10", -1: "−1", 0: "0", 1: "+1", 10: "+10", 100: "+100", 1000: "+1,000", 10_000: "+10,000"}


def plot_bias(block: Block, *, theme: str = "light") -> Figure:
    """Draw the bias against the number of nodes: a panel for each function and sampling, a line for each degree."""
    lines = block.done
    with open_figure(theme, (2.2 * len(lines) + 1.0, 7.2)) as (colours, figure):
        heights = [1.0, 1.0, 1.7]  # uniform nodes go far off
        grid = figure.subplots(
            len(SAMPLINGS), len(lines), squeeze=False, sharex=True, sharey="row", height_ratios=heights
        )
        shades = mpl.colormaps["viridis_r" if theme == "light" else "viridis"](
            np.linspace(*_SHADES[theme], len(DEGREES))
        )
        for column, line in enumerate(lines):
            outcomes = averaged(line)
            for axes, sampling in zip(grid[:, column], SAMPLINGS, strict=True):
                axes.axhspan(-100 * UNBIASED, 100 * UNBIASED, color=colours.faint, alpha=0.6, lw=0)
                for degree, shade in zip(DEGREES, shades, strict=True):
                    along = [each for each in outcomes if (each.sampling, each.degree) == (sampling, degree)]
                    _draw_bias(axes, along, shade, colours)
            grid[0, column].set_title(line.row.title)
        for axes in grid.flat:
            axes.set_xscale("log")
            axes.set_yscale("symlog", linthresh=1.0, linscale=0.8)
            axes.set_xlim(NODES[0] * 0.8, NODES[-1] * 1.15)
            axes.set_yticks(list(_TICKS), list(_TICKS.values()))
            axes.set_ylim(-40, 100_000 if axes in grid[-1] else 1000)
            axes.set_xticks([4, 8, 16, 32, 64, 200], ["4", "8", "16", "32", "64", "200"])
            axes.minorticks_off()
            axes.grid(axis="x", color=colours.faint, lw=0.5)
            axes.set_axisbelow(True)
        for axes, sampling in zip(grid[:, 0], SAMPLINGS, strict=True):
            axes.set_ylabel(f"{sampling} nodes\nbias, %")
        figure.align_ylabels(grid[:, 0])
        figure.supxlabel("nodes on each path", fontsize=9)
    return figure


def plot_degrees(block: Block, *, theme: str = "light") -> Figure:
    """Draw the exact value against the degree it is taken to, and estimates on many nodes."""
    with open_figure(theme, (8.5, 4.2)) as (colours, figure):
        axes = figure.subplots()
        inks = colours_of(block.recipe, theme)
        labels = []
        for line in block.done:
            degrees = np.array([degree for degree in EXACT_AT if degree])
            known = [exact_of(run) for run in line.runs]
            mean = np.mean([[each[degree] / each[REFERENCE] for degree in degrees] for each in known], axis=0)
            ink = inks[line.row.name]
            axes.plot(degrees, mean, color=ink, lw=1.6)
            found = [each for each in averaged(line) if (each.sampling, each.nodes) == ("cosine", NODES[-1])]
            share = dict(zip(degrees.tolist(), mean, strict=True))
            values = [(1 + each.bias) * share[each.degree] for each in found]
            axes.plot([each.degree for each in found], values, "o", ms=4.5, color=ink, zorder=3)
            labels.append(Label(line.row.title, float(degrees[-1]), float(mean[-1]), ink))
        axes.axvline(REFERENCE, color=colours.ink, lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_xlim(1, max(label.x for label in labels))
        axes.set_ylim(0, 1.05 * max(label.y for label in labels))
        ticks = [1, 2, 5, 10, 20, 40, 100, 200, 640]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.set(title=f"effective degree up to K, relative to K = {REFERENCE}", xlabel="degree K")
        beside(axes, labels)
    return figure


def _draw_bias(axes: Axes, along: list[EstimatorOutcome], shade: np.ndarray, colours: Theme) -> None:
    along = sorted(along, key=lambda each: each.nodes)
    x, y = [each.nodes for each in along], [100 * each.bias for each in along]
    errors = [100 * each.bias_stderr for each in along]
    axes.errorbar(x, y, errors, color=shade, lw=1.3, marker="o", ms=2.6, elinewidth=0.8)
    halo = [withStroke(linewidth=2, foreground=colours.ground)]
    axes.annotate(
        str(along[0].degree),
        (x[0], y[0]),
        (0, 3.5),
        textcoords="offset points",
        ha="center",
        fontsize=7,
        color=shade,
        path_effects=halo,
    )
