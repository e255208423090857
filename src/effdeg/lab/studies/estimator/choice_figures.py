"""What follows from the errors: the cost of an error bar, the split of forward passes, and what a warning is worth."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.figures import colours_of
from effdeg.lab.studies.estimator.choices import (
    UNBIASED,
    WRONG,
    cheapest,
    count_warnings,
    upper_half_warns,
    warns,
)
from effdeg.lab.studies.estimator.grid import NODES, SAMPLINGS
from effdeg.lab.studies.estimator.outcomes import DEFAULT, TOLERANCE, averaged, default_of, outcomes_of
from effdeg.lab.studies.estimator.sheets import BUDGETS
from effdeg.measure._measurement import RESIDUAL_LIMIT, UPPER_HALF_LIMIT
from effdeg.plots import Theme, open_figure


def plot_cost(block: Block, *, theme: str = "light") -> Figure:
    """Draw the forward passes that the tolerance takes, by function and sampling."""
    with open_figure(theme, (8.5, 1.2 + 0.85 * len(block.done))) as (colours, figure):
        axes = figure.subplots()
        inks = dict(zip(SAMPLINGS, (colours.simple, colours.steep, colours.complex), strict=True))
        for place, line in enumerate(block.done):
            outcomes = averaged(line)
            found = [(sampling, cheapest(outcomes, sampling)) for sampling in SAMPLINGS]
            for height, (sampling, each) in zip((-0.24, 0.0, 0.24), found, strict=True):
                if each is not None:
                    axes.plot(each.passes, place + height, "o", ms=6.5, color=inks[sampling])
                    where = (each.passes, place + height)
                    text = f"{sampling} {each.name}"
                    axes.annotate(
                        text, where, (7, 0), textcoords="offset points", va="center", fontsize=8, color=inks[sampling]
                    )
            default = default_of(outcomes)
            off = f"{abs(default.whole_bias):.0%} too {'low' if default.whole_bias < 0 else 'high'}"
            biased = f", {off}" if abs(default.whole_bias) > UNBIASED else ""
            where = (default.passes, place)
            axes.plot(*where, "o", ms=7, mec=colours.ink, mfc=colours.ground, mew=1.4)
            text = f"default, {default.passes:,}{biased}"
            axes.annotate(text, where, (8, 0), textcoords="offset points", va="center", fontsize=8)
            if not any(each for _, each in found):
                text = f"no setting tried is within {UNBIASED:.0%}"
                axes.text(0.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8, alpha=0.7)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low, 2.5 * high)  # room for labels
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_yticks(range(len(block.done)), [line.row.title for line in block.done])
        axes.set_ylim(len(block.done) - 0.5, -0.5)
        axes.grid(axis="x", color=colours.faint, lw=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.set(title=f"forward passes for a standard error of {TOLERANCE:.0%}")
    return figure


def plot_split(block: Block, *, theme: str = "light") -> Figure:
    """Draw the error of a fixed number of forward passes against the nodes each path is given."""
    lines = block.done
    with open_figure(theme, (2.2 * len(lines) + 0.8, 3.4)) as (colours, figure):
        row = figure.subplots(1, len(lines), squeeze=False, sharex=True, sharey=True)[0]
        inks = dict(zip(BUDGETS, (colours.complex, colours.simple, colours.steep), strict=True))
        for axes, line in zip(row, lines, strict=True):
            outcomes = [each for each in averaged(line) if each.sampling == DEFAULT[0]]
            for passes, ink in inks.items():
                nodes = [each for each in NODES if 2 * each <= passes]
                errors = [100 * min(each.error(passes) for each in outcomes if each.nodes == some) for some in nodes]
                axes.plot(nodes, errors, color=ink, lw=1.5)
                best = int(np.argmin(errors))
                axes.plot(nodes[best], errors[best], "o", ms=6, color=ink)
                if axes is row[-1]:
                    axes.annotate(
                        f"{passes:,}\npasses",
                        (nodes[-1], errors[-1]),
                        (6, 0),
                        textcoords="offset points",
                        va="center",
                        fontsize=8,
                        color=ink,
                        annotation_clip=False,
                    )
            axes.axhline(100 * TOLERANCE, color=colours.ink, lw=0.8, ls=":")
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks([4, 8, 16, 32, 64, 200], ["4", "8", "16", "32", "64", "200"])
            axes.set_yticks([0.3, 1, 2, 5, 10, 30, 100], ["0.3", "1", "2", "5", "10", "30", "100"])
            axes.minorticks_off()
            axes.grid(color=colours.faint, lw=0.5)
            axes.set_axisbelow(True)
            axes.set_title(line.row.title)
        row[0].set_ylabel("error, %")
        figure.supxlabel("nodes on each path", fontsize=9)
    return figure


def plot_warnings(block: Block, *, theme: str = "light") -> Figure:
    """Draw the error against the residual and against the share of the upper half of the degrees."""
    rules = (
        ("residual", RESIDUAL_LIMIT, warns, "residual: the share of the variation that the fit missed"),
        ("upper_half", UPPER_HALF_LIMIT, upper_half_warns, "share of the estimate in the upper half of the degrees"),
    )
    with open_figure(theme, (11, 4.6)) as (colours, figure):
        inks = colours_of(block.recipe, theme)
        pair = figure.subplots(1, 2, sharey=True)
        for axes, (name, limit, rule, label) in zip(pair, rules, strict=True):
            for line in block.done:
                single = [each for run in line.runs for each in outcomes_of(run)]
                # Rounding is all that is left below.
                x = [max(getattr(each, name), 1e-7) for each in single]
                y = [max(abs(each.whole_bias), 1e-5) for each in single]
                faces = [colours.ground if each.interpolates else inks[line.row.name] for each in single]
                axes.scatter(x, y, s=13, c=faces, edgecolors=inks[line.row.name], linewidths=0.8, alpha=0.75)
            if name == "residual":
                axes.set_xscale("log")
            axes.set_yscale("log")
            axes.axhline(WRONG, color=colours.ink, lw=0.9, ls=":")
            axes.axvline(limit, color=colours.ink, lw=0.9, ls=":")
            axes.set_xlabel(label)
            every = (each for line in block.done for run in line.runs for each in outcomes_of(run))
            counted = count_warnings(every, rule, untold=name == "residual")
            untold = f"\ncannot tell: {counted.untold:,}" if counted.untold else ""
            _count(axes, colours, (0.98, 0.97), f"warned: {counted.caught:,}")
            _count(axes, colours, (0.02, 0.97), f"silent: {counted.missed:,}{untold}")
            _count(axes, colours, (0.98, 0.03), f"needless: {counted.needless:,}")
            _count(axes, colours, (0.02, 0.03), f"right: {counted.quiet:,}")
            axes.set_ylim(2e-6, 1e4)  # room for the counts
            axes.grid(color=colours.faint, lw=0.5)
            axes.set_axisbelow(True)
        pair[0].set_ylabel("distance from the whole value, as a share of it")
        handles = [
            Line2D([], [], ls="", marker="o", ms=5, color=inks[line.row.name], label=line.row.title)
            for line in block.done
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8)
    return figure


def _count(axes: Axes, colours: Theme, place: tuple[float, float], text: str) -> None:
    sides = ("right" if place[0] > 0.5 else "left", "top" if place[1] > 0.5 else "bottom")
    box = {"fc": colours.ground, "ec": "none", "pad": 1.5, "alpha": 0.85}
    axes.text(*place, text, transform=axes.transAxes, ha=sides[0], va=sides[1], fontsize=9, bbox=box, zorder=5)
