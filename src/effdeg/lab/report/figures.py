"""The figures of a report: the paper beside our runs, accuracy along training, prices, and the panels of a pool."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from effdeg.lab.recipe import Recipe
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.labels import Label, around, beside
from effdeg.lab.report.lines import Line
from effdeg.lab.report.prices import AIM, LIMIT, best_buy, full_gain, price_list
from effdeg.lab.training.evaluation import describe_followed
from effdeg.plots import THEMES, open_figure
from effdeg.ranking._tables import Array

# For lines that are neither the first nor ED; told apart also by colour-blind readers, and dark enough for labels.
_COLOURS = {
    "light": ("#c25400", "#007a59", "#b8438a", "#866400", "#5f6b76", "#8a5a44", "#6f3fa8"),
    "dark": ("#f0894e", "#35c795", "#ec9ccb", "#e3c34a", "#a5d8ff", "#cfa58f", "#b79bff"),
}


def drawings(block: Block) -> list[Drawing]:
    """Return the figures that a block has something to show in, the most telling first."""
    if block.pool is not None:
        names = block.pool.panels()
        caption = (
            f"The generalization gap of {len(block.pool.table)} models against measures of them: the paper's four "
            "first, each in its best variant and at its best radius; then, for reference, ED along random pixels and "
            "training accuracy, which is no measure of complexity; then those that rank best. All see training images, "
            "but for those whose names end with _test."
        )
        ranking = block.pool.ranking
        return [Drawing("panels", caption, lambda theme: ranking.plot(names, theme=theme))] if ranking and names else []
    if block.recipe.study is not None:
        return block.recipe.study.drawings(block) if block.done else []
    if len(block.done) < 2:
        return []
    if block.recipe.shows == "prices":
        caption = (
            f"{block.tested_on.capitalize()} accuracy against the price of a step, relative to a plain one. Dotted the "
            f"limit of {LIMIT} times and, where seeds tell the full gain, {AIM:.0%} of it; filled the best within it."
        )
        priced = any(priced.price for priced in price_list(block))
        return [Drawing("prices", caption, lambda theme: plot_prices(block, theme=theme))] if priced else []
    found = []
    if any(_curve(line, "epoch", "test_accuracy") for line in block.done):
        caption = (
            f"{block.tested_on.capitalize()} accuracy along training, by epochs and by the time that training took."
        )
        if any(len(line.runs) > 1 for line in block.done):
            caption += " Strong lines are means, thin ones single seeds."
        found.append(Drawing("curves", caption, lambda theme: plot_curves(block, theme=theme)))
    beside_papers = " beside the paper's" if any(line.row.paper for line in block.lines) else ""
    caption = f"Each line's {block.tested_on} accuracy here{beside_papers}; bars are standard deviations over seeds."
    found.append(Drawing("accuracies", caption, lambda theme: plot_accuracies(block, theme=theme)))
    curves = [_curve(line, "epoch", "effective_degree") for line in block.done]
    if any(curve is not None and curve[0].shape[1] > 2 for curve in curves):
        caption = f"The effective degree along training: {describe_followed()}, coarser than that of the table."
        found.append(Drawing("degrees", caption, lambda theme: plot_degrees(block, theme=theme)))
    return found


def colours_of(recipe: Recipe[Any], theme: str) -> dict[str, str]:
    """Assign each line of a recipe a colour, the same in all figures."""
    names = [row.name for row in recipe.rows]
    fixed = {names[0]: THEMES[theme].ink, "ed": THEMES[theme].simple}
    others = [name for name in names if name not in fixed]
    cycle = _COLOURS[theme]
    return fixed | {name: cycle[index % len(cycle)] for index, name in enumerate(others)}


def plot_curves(block: Block, *, theme: str = "light") -> Figure:
    """Draw accuracy against epochs and against time."""
    with open_figure(theme, (11, 3.9)) as (colours, figure):
        by_epoch, by_time = figure.subplots(1, 2)
        inks = colours_of(block.recipe, theme)
        longest = max(line.seconds or 0.0 for line in block.done)
        unit, name = (60.0, "minutes") if longest > 120 else (1.0, "seconds")
        for axes, along, scale in ((by_epoch, "epoch", 1.0), (by_time, "seconds", unit)):
            labels = []
            for line in block.done:
                curve = _curve(line, along, "test_accuracy")
                if curve is not None:
                    x, y = curve[0] / scale, 100 * curve[1]
                    _draw_curve(axes, x, y, inks[line.row.name])
                    end = (float(x.mean(0)[-1]), float(y.mean(0)[-1]))
                    text = line.row.title + (f" {end[1]:.2f}" if along == "epoch" else "")
                    labels.append(Label(text, *end, inks[line.row.name]))
            _limit(axes, [label.y for label in labels])
            axes.set_xlim(0, max(label.x for label in labels) * 1.02)
            axes.grid(color=colours.faint, lw=0.6)
            axes.set_axisbelow(True)
            beside(axes, labels)
        by_epoch.set(title=f"{block.tested_on} accuracy, %", xlabel="epoch")
        by_time.set(title="the same by time", xlabel=f"{name} of training on {block.machines[0]}")
    return figure


def plot_degrees(block: Block, *, theme: str = "light") -> Figure:
    """Draw the effective degree against epochs."""
    with open_figure(theme, (7.2, 3.6)) as (colours, figure):
        axes = figure.subplots()
        inks = colours_of(block.recipe, theme)
        labels = []
        for line in block.done:
            curve = _curve(line, "epoch", "effective_degree")
            if curve is not None:
                _draw_curve(axes, *curve, inks[line.row.name])
                end = (float(curve[0].mean(0)[-1]), float(curve[1].mean(0)[-1]))
                labels.append(Label(line.row.title, *end, inks[line.row.name]))
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
        axes.set_xlim(0, max(label.x for label in labels) * 1.02)
        axes.grid(color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.set(title=describe_followed(), xlabel="epoch")
        beside(axes, labels)
    return figure


def plot_accuracies(block: Block, *, theme: str = "light") -> Figure:
    """Draw each line's accuracy beside the paper's, and at equal time where that is another run."""
    with open_figure(theme, (8.5, 1.1 + 0.42 * len(block.lines))) as (colours, figure):
        axes = figure.subplots()
        inks = colours_of(block.recipe, theme)
        kinds: dict[str, dict[str, Any]] = {
            block.paper: {"marker": "o", "mfc": colours.ground},
            "here": {"marker": "o"},
            "at equal time": {"marker": "D", "mfc": colours.ground},
        }
        drawn = set()
        apart = 0.17 if any(line.row.paper for line in block.lines) else 0.0
        for place, line in enumerate(block.lines):
            for kind, (mean, std) in _marks(block, line).items():
                drawn.add(kind)
                height = place + (apart if kind == block.paper else -apart)
                ink = colours.ink if kind == block.paper else inks[line.row.name]
                axes.plot((mean - std, mean + std), (height, height), color=ink, lw=1.6, alpha=0.6)
                axes.plot(mean, height, ms=6.5, mew=1.4, **{"mfc": ink, **kinds[kind]}, mec=ink)
            if not line.runs:
                where = axes.get_yaxis_transform()
                axes.text(0.005, place - apart, line.state, transform=where, va="center", fontsize=8, alpha=0.7)
        axes.set_yticks(range(len(block.lines)), [line.row.title for line in block.lines])
        axes.set_ylim(len(block.lines) - 0.5, -0.5)
        axes.margins(x=0.08)
        axes.grid(axis="x", color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.set(title=f"{block.tested_on} accuracy, %, {block.epochs} epochs")
        handles = [
            Line2D([], [], ls="", ms=6, mec=colours.ink, label=kind, **{"mfc": colours.ink, **look})
            for kind, look in kinds.items()
            if kind in drawn
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
    return figure


def plot_prices(block: Block, *, theme: str = "light") -> Figure:
    """Draw accuracy against the price of a step."""
    with open_figure(theme, (11, 5.6)) as (colours, figure):
        axes = figure.subplots()
        best, plain, whole = best_buy(block), block.lines[0], full_gain(block)
        labels = []
        for priced in price_list(block):
            line = priced.line
            if priced.price is None or line.accuracy is None:
                continue
            x, y = priced.price, 100 * line.accuracy.mean
            first = line is plain
            winner = best is not None and line is best.line
            ink = colours.ink if first else _COLOURS[theme][0] if winner else colours.simple
            std = None if line.accuracy.std is None else [100 * line.accuracy.std]
            axes.errorbar([x], [y], std, fmt="none", ecolor=ink, elinewidth=1, alpha=0.5)
            axes.plot(x, y, "o", ms=7, mec=ink, mfc=ink if winner else colours.ground, mew=1.6, zorder=3)
            labels.append(Label(line.row.title, x, y, ink))
        axes.axvline(LIMIT, color=colours.ink, ls=":", lw=1)
        if plain.accuracy and whole:
            axes.axhline(100 * (plain.accuracy.mean + AIM * whole), color=colours.ink, ls=":", lw=1)
        axes.margins(0.12)
        axes.grid(color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        title = f"{block.tested_on} accuracy, %, {block.epochs} epochs"
        axes.set(title=title, xlabel="time of a step, in plain steps")
        around(axes, labels)
    return figure


def _curve(line: Line, along: str, what: str) -> tuple[Array, Array] | None:
    """Return what was logged along training, seeds × evaluations; None if it was not."""
    found = []
    for run in line.runs:
        entries = [(entry.get(along), entry.get(what)) for entry in run.metrics]
        values = [(x, y["value"] if isinstance(y, dict) else y) for x, y in entries if y is not None]
        found.append([(x, y) for x, y in values if x is not None and y is not None])
    shared = min(map(len, found), default=0)
    if shared == 0:
        return None
    both = np.array([points[-shared:] for points in found], dtype=float)
    return both[..., 0], both[..., 1]


def _draw_curve(axes: Axes, x: Array, y: Array, colour: str) -> None:
    """Draw a mean over seeds with its end marked, and the single seeds if there are several."""
    if len(y) > 1:
        axes.plot(x.T, y.T, color=colour, lw=0.6, alpha=0.4)
    axes.plot(x.mean(0), y.mean(0), color=colour, lw=1.6)
    axes.plot(x.mean(0)[-1], y.mean(0)[-1], "o", color=colour, ms=5, zorder=4)


def _limit(axes: Axes, ends: Sequence[float]) -> None:
    """Show the accuracies at which training ends, not the rise from nothing."""
    low, high = axes.get_ylim()
    span = max(ends) - min(ends)
    axes.set_ylim(max(low, min(ends) - max(2.5 * span, 4.0)), min(high, max(ends) + max(0.3 * span, 1.0)))


def _marks(block: Block, line: Line) -> dict[str, tuple[float, float]]:
    """Return the accuracies to draw for a line, with their spreads, 0 where there is none."""
    found = {}
    if line.row.paper is not None:
        found[block.paper] = (line.row.paper.mean, line.row.paper.std or 0.0)
    if line.accuracy is not None:
        found["here"] = (100 * line.accuracy.mean, 100 * (line.accuracy.std or 0.0))
    at = block.equal_time
    same_time = at.accuracy(line.row.name) if at else None
    if at and same_time and at.epochs(line.row.name) != block.epochs:
        found["at equal time"] = (100 * same_time.mean, 100 * (same_time.std or 0.0))
    return found
