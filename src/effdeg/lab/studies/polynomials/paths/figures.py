"""The figures of the degrees along paths."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.figures import colours_of
from effdeg.lab.report.labels import Label, beside
from effdeg.lab.studies.polynomials.paths.values import (
    Followed,
    followed,
    has_density,
    shown_with_noise,
)
from effdeg.plots import Theme, open_figure

_LEFT: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 8.5}


def plot_degrees(block: Block, *, theme: str = "light") -> Figure:
    """Draw the degree found against the total degree, and what noise does to it and to the effective degree."""
    with open_figure(theme, (12, 3.9)) as (colours, figure):
        clean, noisy, effective = figure.subplots(1, 3, width_ratios=[1.25, 1, 1])
        _draw_found(clean, block, colours, theme)
        found = followed(shown_with_noise(block))
        shown = [found[place] for place in sorted({min(1, len(found) - 1), len(found) // 2, len(found) - 1})]
        inks = (colours.simple, colours.ink, colours.complex)
        _draw_noise(noisy, shown, inks, colours, [[each.found, *(n[0] for n in each.noise.values())] for each in shown])
        _draw_noise(
            effective, shown, inks, colours, [[each.raw.value, *(n[1] for n in each.noise.values())] for each in shown]
        )
        noisy.set_title("degree found, with noise")
        effective.set_title("effective degree, with the same noise")
    return figure


def plot_effective(block: Block, *, theme: str = "light") -> Figure:
    """Draw raw and normalized effective degrees against the total degree."""
    with open_figure(theme, (12, 3.9)) as (colours, figure):
        raw, normalized = figure.subplots(1, 2)
        inks = colours_of(block.recipe, theme)
        for axes, name in ((raw, "raw"), (normalized, "normalized")):
            labels = []
            for line in block.done:
                found, ink = followed(line), inks[line.row.name]
                x, estimates = [each.degree for each in found], [getattr(each, name) for each in found]
                y, bars = ([getattr(each, what) for each in estimates] for what in ("value", "stderr"))
                axes.errorbar(x, y, bars, color=ink, lw=1.5, marker="o", ms=3.5)
                labels.append(Label(line.row.title, x[-1], y[-1], ink))
            axes.set_ylim(bottom=0)
            _finish(axes, labels, colours)
        raw.set_title("effective degree, polynomials of equal variance")
        normalized.set_title("normalized effective degree")
    return figure


def _draw_found(axes: Axes, block: Block, colours: Theme, theme: str) -> None:
    inks, labels = colours_of(block.recipe, theme), []
    for line in block.done:
        found, ink = followed(line), inks[line.row.name]
        x, y = [each.degree for each in found], [each.found for each in found]
        axes.plot(x, y, color=ink, lw=1.5, marker="o", ms=4.5, mfc=ink if has_density(line) else colours.ground)
        labels.append(Label(line.row.title, x[-1], y[-1], ink))
    last = max(label.x for label in labels)
    axes.plot((0, last), (0, last), color=colours.faint, lw=6, solid_capstyle="round", zorder=1)
    axes.set_ylim(0, last + 0.5)
    axes.set_title("degree found along paths")
    _finish(axes, labels, colours)


def _finish(axes: Axes, labels: list[Label], colours: Theme) -> None:
    axes.set_xlim(0.7, max(label.x for label in labels) + 0.3)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.set_xlabel("total degree")
    axes.grid(color=colours.faint, lw=0.6)
    axes.set_axisbelow(True)
    beside(axes, labels)


def _draw_noise(
    axes: Axes, shown: list[Followed], inks: Sequence[str], colours: Theme, curves: list[list[float]]
) -> None:
    """Draw what becomes of some total degrees as noise grows, each with its name above its beginning."""
    sizes = list(shown[0].noise)
    for each, ink, curve in zip(shown, inks, curves, strict=False):
        axes.plot(range(len(curve)), curve, color=ink, lw=1.5, marker="o", ms=3.5)
        axes.annotate(f"D = {each.degree}", (0, curve[0]), (-7, 0), textcoords="offset points", color=ink, **_LEFT)
    axes.set_xlim(-1.4, len(sizes) + 0.2)
    axes.set_ylim(0, 1.08 * max(map(max, curves)))
    axes.set_xticks(range(len(sizes) + 1), ["0", *(f"$10^{{{round(math.log10(size))}}}$" for size in sizes)])
    axes.set_xlabel("noise, in standard deviations of the values")
    axes.grid(color=colours.faint, lw=0.6)
    axes.set_axisbelow(True)
