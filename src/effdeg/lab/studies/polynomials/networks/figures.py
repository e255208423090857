"""The figures of the polynomial networks."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.labels import Label, beside
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS, Column
from effdeg.lab.studies.polynomials.networks.findings import paper_value
from effdeg.lab.studies.polynomials.networks.values import (
    deviation_of_a_path,
    exact_value,
    network_value,
    task_of,
)
from effdeg.plots import Theme, open_figure

# Half the width of a 95% interval, in standard errors of means over thousands of paths.
_HALF_INTERVAL = 1.96
_APART = 0.18
# As many paths as the paper may have taken, by the scatter of its numbers.
_FEW_PATHS = 100


def plot_values(block: Block, *, theme: str = "light") -> Figure:
    """Draw the columns: values above, differences from the exact ones below."""
    with open_figure(theme, (11, 4.8)) as (colours, figure):
        panels = figure.subplots(2, len(COLUMNS), sharex=True, sharey="row", height_ratios=[1.3, 1])
        for column, (above, below) in zip(COLUMNS, panels.T, strict=True):
            _draw_values(above, block, column, colours)
            _draw_differences(below, block, column, colours)
            above.set_title(column.title)
        panels[0, 0].set_ylabel("effective degree")
        panels[1, 0].set_ylabel("off the exact value, %")
        handles = [
            Line2D([], [], color=colours.ink, lw=1.6, label="exact map"),
            Line2D([], [], ls="", marker="o", color=colours.simple, label="network, here"),
            Line2D([], [], ls="", marker="o", mec=colours.complex, mfc=colours.ground, mew=1.4, label="network, paper"),
            Patch(color=colours.faint, lw=0, label=f"95% of means over {_FEW_PATHS} paths"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)
    return figure


def plot_fits(block: Block, *, theme: str = "light") -> Figure:
    """Draw the error of the fits along training."""
    with open_figure(theme, (7.2, 3.6)) as (colours, figure):
        axes = figure.subplots()
        labels = []
        for line in block.done:
            colour = (colours.ink, colours.simple, colours.complex)[(task_of(line) - 1) % 3]
            ends = []
            for run in line.runs:
                steps, errors = ([entry[key] for entry in run.metrics] for key in ("step", "test_error"))
                axes.plot(steps, errors, color=colour, lw=1.1, ls="-" if task_of(line) <= 3 else "--", alpha=0.8)
                ends.append((steps[-1], errors[-1]))
            x, y = np.array(ends).T
            labels.append(Label(line.row.title, float(x[0]), float(np.log10(y).mean()), colour))
        axes.set_yscale("log")
        axes.set_xlim(0, max(label.x for label in labels))
        axes.set(title="relative error of the fit, on fresh inputs", xlabel="steps of Levenberg and Marquardt's method")
        axes.grid(color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        _label_ends(axes, labels)
    return figure


def _label_ends(axes: Axes, labels: list[Label]) -> None:
    """Label the ends of lines on a logarithmic axis, on a linear one of the same limits that lies upon it."""
    over = axes.twinx()
    over.set_ylim(*np.log10(axes.get_ylim()))
    over.set_axis_off()
    beside(over, labels)


def _draw_values(axes: Axes, block: Block, column: Column, colours: Theme) -> None:
    for place, line in enumerate(block.lines):
        if line.runs:
            exact = exact_value(line, column).value
            axes.plot((place - 0.42, place + 0.42), (exact, exact), color=colours.ink, lw=1.4, zorder=1)
            axes.plot(place - _APART, network_value(line, column).value, "o", color=colours.simple, ms=4.5)
        axes.plot(place + _APART, paper_value(line, column), "o", mec=colours.complex, mfc="none", mew=1.3, ms=5)
    axes.set_yscale("log")
    axes.set_yticks((0.3, 1, 3, 10), ("0.3", "1", "3", "10"))
    axes.set_yticks((), minor=True)
    _finish(axes, block, colours)


def _draw_differences(axes: Axes, block: Block, column: Column, colours: Theme) -> None:
    for place, line in enumerate(block.lines):
        if line.runs:
            exact, found = exact_value(line, column).value, network_value(line, column)
            off, margin = 100 * (found.value / exact - 1), 100 * _HALF_INTERVAL * found.stderr / exact
            few = 100 * _HALF_INTERVAL * deviation_of_a_path(line, column) / math.sqrt(_FEW_PATHS) / exact
            axes.bar(place, 2 * few, 0.84, -few, color=colours.faint, lw=0, zorder=0)
            axes.errorbar(place - _APART, off, margin, fmt="o", color=colours.simple, ms=4, elinewidth=1.6)
            paper = 100 * (paper_value(line, column) / exact - 1)
            axes.plot(place + _APART, paper, "o", mec=colours.complex, mfc="none", mew=1.3, ms=5)
    axes.axhline(0, color=colours.ink, lw=1.2, zorder=1)
    axes.set_xlabel("task")
    _finish(axes, block, colours)


def _finish(axes: Axes, block: Block, colours: Theme) -> None:
    axes.set_xticks(range(len(block.lines)), [str(task_of(line)) for line in block.lines])
    axes.axvline(2.5, color=colours.faint, lw=1)
    axes.grid(axis="y", color=colours.faint, lw=0.6)
    axes.set_axisbelow(True)
