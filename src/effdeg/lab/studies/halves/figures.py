"""Every line's accuracies with either half randomized, and what less reliance on the simple half costs."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.figures import colours_of
from effdeg.lab.report.labels import Label, around
from effdeg.lab.studies.halves.reliance import CHANCE, COMPLEX, SIMPLE, TEST, Papers, spread
from effdeg.plots import open_figure

# How far from the middle of its line each test is drawn, downwards.
_LANES = {TEST: -0.25, COMPLEX: 0.0, SIMPLE: 0.25}


def plot_halves(block: Block, paper: Mapping[str, Papers], *, theme: str = "light") -> Figure:
    """Draw the three accuracies of each line as dots, with the paper's.

    Args:
        block: What was run at one scale.
        paper: What the paper reports, by the names of the lines.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        The figure.
    """
    with open_figure(theme, (8.5, 0.9 + 0.55 * len(block.lines))) as (colours, figure):
        axes = figure.subplots()
        inks = {TEST: colours.ink, SIMPLE: colours.complex, COMPLEX: colours.simple}
        for place, line in enumerate(block.lines):
            reported = paper[line.row.name].by_test() if line.row.name in paper else {}
            for test, lane in _LANES.items():
                height = place + lane
                if test in reported:
                    _dot(axes, reported[test], height, inks[test], colours.ground)
                if line.runs:
                    reached = spread(line, test)
                    mean, std = 100 * reached.mean, 100 * (reached.std or 0.0)
                    axes.plot((mean - std, mean + std), (height, height), color=inks[test], lw=1.6, alpha=0.6)
                    _dot(axes, mean, height, inks[test], inks[test], size=5.5)
                if line is block.done[0]:
                    _name(axes, test, 100 * spread(line, test).mean, height, inks[test])
            if not line.runs:
                axes.text(75, place, line.state, va="center", ha="center", fontsize=8, alpha=0.7)
        for place in range(1, len(block.lines)):
            axes.axhline(place - 0.5, color=colours.faint, lw=0.6)
        axes.axvline(100 * CHANCE, color=colours.ink, ls=":", lw=1)
        axes.set_yticks(range(len(block.lines)), [line.row.title for line in block.lines])
        axes.set_ylim(len(block.lines) - 0.5, -0.5)
        axes.set_xlim(min(45.0, axes.get_xlim()[0]), 101.5)
        axes.grid(axis="x", color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        hollow = "; hollow: the paper's" if paper else ""
        axes.set(title=f"test accuracy, %{hollow}; dotted: chance")
    return figure


def plot_cost(block: Block, *, theme: str = "light") -> Figure:
    """Draw accuracy with the simple half randomized against accuracy without.

    Args:
        block: What was run at one scale.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        The figure.
    """
    with open_figure(theme, (7.2, 4.6)) as (colours, figure):
        axes = figure.subplots()
        inks, labels = colours_of(block.recipe, theme), []
        for line in block.done:
            x, y = (spread(line, test) for test in (TEST, SIMPLE))
            ink = inks[line.row.name]
            axes.errorbar(
                [100 * x.mean],
                [100 * y.mean],
                [100 * (y.std or 0.0)],
                [100 * (x.std or 0.0)],
                fmt="o",
                ms=6,
                color=ink,
                elinewidth=1,
            )
            labels.append(Label(line.row.title, 100 * x.mean, 100 * y.mean, ink))
        axes.set_xlim(min(70.0, *(label.x - 5 for label in labels)), 101)
        axes.set_ylim(45, max(80.0, *(label.y + 6 for label in labels)))
        axes.axhline(100 * CHANCE, color=colours.ink, ls=":", lw=1)
        axes.axline((75, 75), slope=1, color=colours.ink, ls=":", lw=1)
        small: dict[str, Any] = {"fontsize": 8, "alpha": 0.7, "rotation_mode": "anchor", "transform_rotates_text": True}
        axes.text(axes.get_xlim()[0] + 0.5, 50.5, "chance", **small)
        axes.text(75, 75.5, "CIFAR alone", rotation=45, ha="center", **small)
        axes.grid(color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.set(title="test accuracy with MNIST randomized, %", xlabel="test accuracy, %")
        around(axes, labels)
    return figure


def _dot(axes: Axes, x: float, y: float, edge: str, face: str, *, size: float = 8.0) -> None:
    axes.plot(x, y, "o", ms=size, mec=edge, mfc=face, mew=1.2, zorder=3)


def _name(axes: Axes, test: str, x: float, y: float, ink: str) -> None:
    """Write what a dot is beside it, towards the middle of the figure, beyond the bar and the paper's."""
    left = x > 75
    axes.annotate(
        test,
        (x, y),
        (-12 if left else 12, 0),
        textcoords="offset points",
        color=ink,
        fontsize=8,
        va="center",
        ha="right" if left else "left",
        bbox={"fc": axes.get_facecolor(), "ec": "none", "pad": 0.5},
    )
