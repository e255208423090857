"""The figures of the estimator's errors."""

from collections.abc import Mapping
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from effdeg import Measurement
from effdeg.plots import Theme, open_figure
from effdeg_lab.figures import Label, colors_of, label_ends
from effdeg_lab.results import Results
from effdeg_lab.studies.estimator import (
    BUDGETS,
    DEGREES,
    EXACT_AT,
    NODES,
    REFERENCE,
    SAMPLINGS,
    TOLERANCE,
    UNBIASED,
    WRONG,
    average,
    compute_errors,
    count_warnings,
    find_cheapest,
    find_default,
    read_exact,
    read_outcomes,
)

_NODE_TICKS = (4, 8, 16, 32, 64, 200)
_BIAS_TICKS = {-10: "−10", -1: "−1", 0: "0", 1: "+1", 10: "+10", 100: "+100", 1000: "+1,000", 10_000: "+10,000"}
_SHADES = {"light": ("viridis_r", 0.25, 0.9), "dark": ("viridis", 0.5, 0.97)}  # what stands out from the background


def draw_bias(results: Results, theme: str) -> Figure:
    """Draw the bias against the number of nodes: a panel for each function and sampling, a line for each degree."""
    columns = len(results.done)
    with open_figure(theme, (2.2 * columns + 1.0, 7.2)) as (colors, figure):
        ratios = [1.0, 1.0, 1.7]  # uniform nodes go far off
        grid = figure.subplots(3, columns, squeeze=False, sharex=True, sharey="row", height_ratios=ratios)
        name, low, high = _SHADES[theme]
        spaced = np.linspace(low, high, len(DEGREES))
        shades: dict[Any, Any] = dict(zip(DEGREES, mpl.colormaps[name](spaced), strict=True))
        halo = [withStroke(linewidth=2, foreground=colors.ground)]
        for column, each in zip(grid.T, results.done, strict=True):
            panels: dict[Any, Axes] = dict(zip(SAMPLINGS, column, strict=True))
            for axes in column:
                axes.axhspan(-100 * UNBIASED, 100 * UNBIASED, color=colors.faint, alpha=0.6, lw=0)
            for (sampling, degree), along in average(each.runs).groupby(["sampling", "degree"], sort=False):
                axes, shade, bias = panels[sampling], shades[degree], 100 * along["bias"]
                style = {"color": shade, "lw": 1.3, "marker": "o", "ms": 2.6, "elinewidth": 0.8}
                axes.errorbar(along["nodes"], bias, 100 * along["bias_stderr"], **style)
                start = (along["nodes"].iloc[0], bias.iloc[0])
                label = {"color": shade, "ha": "center", "va": "baseline", "fontsize": 7, "path_effects": halo}
                _annotate(axes, str(degree), start, (0, 3.5), **label)
            column[0].set_title(each.method.title)
        for axes in grid.flat:
            axes.set_yscale("symlog", linthresh=1.0, linscale=0.8)
            axes.set_xlim(NODES[0] * 0.8, NODES[-1] * 1.15)
            axes.set_yticks(list(_BIAS_TICKS), list(_BIAS_TICKS.values()))
            axes.set_ylim(-40, 100_000 if axes in grid[-1] else 1000)
            _scale_nodes(axes)
            _add_grid(axes, colors, axis="x")
        for axes, sampling in zip(grid[:, 0], SAMPLINGS, strict=True):
            axes.set_ylabel(f"{sampling} nodes\nbias, %")
        figure.align_ylabels(grid[:, 0])
        figure.supxlabel("nodes on each path", fontsize=9)
    return figure


def draw_degrees(results: Results, theme: str) -> Figure:
    """Draw the exact value against the degree up to which it is taken, and estimates on many nodes."""
    with open_figure(theme, (8.5, 4.2)) as (colors, figure):
        axes = figure.subplots()
        inks = colors_of(results.recipe, theme)
        labels = []
        for each in results.done:
            exact = pd.DataFrame([read_exact(run) for run in each.runs])
            share = exact.div(exact[REFERENCE], axis=0).mean().drop(0)
            ink = inks[each.method.name]
            axes.plot(share.index, share, color=ink, lw=1.6)
            found = average(each.runs).query(f"sampling == 'cosine' and nodes == {NODES[-1]}")
            values = (1 + found["bias"]) * found["degree"].map(share)
            axes.plot(found["degree"], values, "o", ms=4.5, color=ink, zorder=3)
            labels.append(Label(each.method.title, float(share.index[-1]), float(share.iloc[-1]), ink))
        axes.axvline(REFERENCE, color=colors.ink, lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_xlim(1, EXACT_AT[-1])
        axes.set_ylim(0, 1.05 * max(label.y for label in labels))
        ticks = [1, 2, 5, 10, 20, 40, 100, 200, 640]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        _add_grid(axes, colors)
        axes.set(title=f"effective degree up to K, relative to K = {REFERENCE}", xlabel="degree K")
        label_ends(axes, labels)
    return figure


def draw_cost(results: Results, theme: str) -> Figure:
    """Draw the forward passes that the tolerance takes, by function and sampling."""
    with open_figure(theme, (8.5, 1.2 + 0.85 * len(results.done))) as (colors, figure):
        axes = figure.subplots()
        inks = dict(zip(SAMPLINGS, (colors.simple, colors.steep, colors.complex), strict=True))
        for place, each in enumerate(results.done):
            outcomes = average(each.runs)
            found = {sampling: find_cheapest(outcomes, sampling) for sampling in SAMPLINGS}
            for (sampling, one), offset in zip(found.items(), (-0.24, 0.0, 0.24), strict=True):
                if one is not None:
                    where = (one["passes"], place + offset)
                    axes.plot(*where, "o", ms=6.5, color=inks[sampling])
                    text = f"{sampling} {one['nodes']}/{one['degree']}"
                    _annotate(axes, text, where, color=inks[sampling])
            default = find_default(outcomes)
            bias, where = default["whole_bias"], (default["passes"], place)
            off = f", {abs(bias):.0%} too {'low' if bias < 0 else 'high'}" if abs(bias) > UNBIASED else ""
            axes.plot(*where, "o", ms=7, mec=colors.ink, mfc=colors.ground, mew=1.4)
            _annotate(axes, f"default, {default['passes']:,}{off}", where, (8, 0))
            if all(one is None for one in found.values()):
                text = f"no setting tried is within {UNBIASED:.0%}"
                axes.text(0.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8, alpha=0.7)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(low, 3 * high)  # room for labels
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_yticks(range(len(results.done)), [each.method.title for each in results.done])
        axes.set_ylim(len(results.done) - 0.5, -0.5)
        _add_grid(axes, colors, axis="x")
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.set(title=f"forward passes for a standard error of {TOLERANCE:.0%}")
    return figure


def draw_split(results: Results, theme: str) -> Figure:
    """Draw the error that a fixed number of forward passes leaves against the nodes on each path."""
    columns = len(results.done)
    with open_figure(theme, (2.2 * columns + 0.8, 3.4)) as (colors, figure):
        panels = figure.subplots(1, columns, squeeze=False, sharex=True, sharey=True)[0]
        inks = dict(zip(BUDGETS, (colors.complex, colors.simple, colors.steep), strict=True))
        for axes, each in zip(panels, results.done, strict=True):
            outcomes = average(each.runs).query("sampling == 'cosine'")
            for passes, ink in inks.items():
                errors = 100 * compute_errors(outcomes, passes).groupby(outcomes["nodes"]).min().dropna()
                axes.plot(errors.index, errors, color=ink, lw=1.5)
                axes.plot(errors.idxmin(), errors.min(), "o", ms=6, color=ink)
                if axes is panels[-1]:
                    end = (errors.index[-1], errors.iloc[-1])
                    _annotate(axes, f"{passes:,}\npasses", end, (6, 0), color=ink, annotation_clip=False)
            axes.axhline(100 * TOLERANCE, color=colors.ink, lw=0.8, ls=":")
            axes.set_yscale("log")
            axes.set_yticks([0.3, 1, 2, 5, 10, 30, 100], ["0.3", "1", "2", "5", "10", "30", "100"])
            _scale_nodes(axes)
            _add_grid(axes, colors)
            axes.set_title(each.method.title)
        panels[0].set_ylabel("error, %")
        figure.supxlabel("nodes on each path", fontsize=9)
    return figure


def draw_warnings(results: Results, theme: str) -> Figure:
    """Draw the error against the residual and against the share of the upper half of the degrees."""
    by_name = {each.method.name: read_outcomes(each.runs) for each in results.done}
    every = pd.concat(by_name.values(), ignore_index=True)
    with open_figure(theme, (11, 4.6)) as (colors, figure):
        inks = colors_of(results.recipe, theme)
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, column in ((left, "residual"), (right, "upper_half")):
            for name, outcomes in by_name.items():
                hollow = outcomes["nodes"] == outcomes["degree"] + 1
                x, y = outcomes[column].clip(1e-7), outcomes["whole_bias"].abs().clip(1e-5)  # below is only rounding
                faces = [colors.ground if each else inks[name] for each in hollow]
                axes.scatter(x, y, s=13, c=faces, edgecolors=inks[name], linewidths=0.8, alpha=0.75)
            axes.set_yscale("log")
            axes.set_ylim(2e-6, 1e4)  # room for the counts
            axes.axhline(WRONG, color=colors.ink, lw=0.9, ls=":")
            _add_grid(axes, colors)
        left.set_xscale("log")
        left.axvline(Measurement.RESIDUAL_LIMIT, color=colors.ink, lw=0.9, ls=":")
        right.axvline(Measurement.UPPER_HALF_LIMIT, color=colors.ink, lw=0.9, ls=":")
        _write_counts(left, colors, count_warnings(every, "residual"))
        _write_counts(right, colors, count_warnings(every, "upper half"))
        left.set_xlabel("residual: the share of the variation that the fit missed")
        right.set_xlabel("share of the estimate in the upper half of the degrees")
        left.set_ylabel("distance from the whole value, as a share of it")
        titles = {each.method.name: each.method.title for each in results.done}
        handles = [
            Line2D([], [], ls="", marker="o", ms=5, color=inks[name], label=title) for name, title in titles.items()
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8)
    return figure


def _write_counts(axes: Axes, colors: Theme, counts: Mapping[str, int]) -> None:
    """Write how many measurements each quarter of the axes holds."""
    blind = f"\ncannot tell: {counts['cannot tell']:,}" if counts["cannot tell"] else ""
    box = {"fc": colors.ground, "ec": "none", "pad": 1.5, "alpha": 0.85}
    for x, y, text in (
        (0.98, 0.97, f"warned: {counts['caught']:,}"),
        (0.02, 0.97, f"silent: {counts['silent']:,}{blind}"),
        (0.98, 0.03, f"needless: {counts['needless']:,}"),
        (0.02, 0.03, f"right: {counts['right']:,}"),
    ):
        ha, va = "right" if x > 0.5 else "left", "top" if y > 0.5 else "bottom"
        axes.text(x, y, text, transform=axes.transAxes, ha=ha, va=va, fontsize=9, bbox=box, zorder=5)


def _annotate(axes: Axes, text: str, point: Any, offset: tuple[float, float] = (7, 0), **style: Any) -> None:
    options: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
    axes.annotate(text, point, offset, **(options | style))


def _scale_nodes(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xticks(_NODE_TICKS, [str(tick) for tick in _NODE_TICKS])
    axes.minorticks_off()


def _add_grid(axes: Axes, colors: Theme, axis: Literal["both", "x", "y"] = "both") -> None:
    axes.grid(axis=axis, color=colors.faint, lw=0.5)
    axes.set_axisbelow(True)


DRAW = {"bias": draw_bias, "degrees": draw_degrees, "cost": draw_cost, "split": draw_split, "warnings": draw_warnings}
