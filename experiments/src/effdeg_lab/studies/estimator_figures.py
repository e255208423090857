"""The figures of the estimator's errors."""

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from effdeg import Measurement
from effdeg.plots import open_figure
from effdeg_lab.figures import Label, add_grid, colors_of, label_ends
from effdeg_lab.results import Results
from effdeg_lab.studies import estimator
from effdeg_lab.studies.estimator import DEGREES, SAMPLINGS, TOLERANCE, UNBIASED, average

_SHADES = {"light": (0.75, 0.1), "dark": (0.5, 0.97)}  # of the color map: what stands out from the background


def _draw_bias(results: Results, theme: str) -> Figure:
    with open_figure(theme, (2.2 * len(results.done) + 1.0, 7.2)) as (colors, figure):
        panels = figure.subplots(3, len(results.done), squeeze=False, sharex=True, sharey="row")
        shades = mpl.colormaps["viridis"](np.linspace(*_SHADES[theme], len(DEGREES)))
        for column, each in zip(panels.T, results.done, strict=True):
            column[0].set_title(each.method.title)
            for (sampling, degree), along in average(each.runs).groupby(["sampling", "degree"], sort=False):
                style: Any = {"color": shades[DEGREES.index(degree)], "lw": 1.3, "marker": "o", "ms": 2.6}
                bias, stderr = 100 * along["bias"], 100 * along["bias_stderr"]
                column[SAMPLINGS.index(sampling)].errorbar(along["nodes"], bias, stderr, label=str(degree), **style)
        for row, sampling in zip(panels, SAMPLINGS, strict=True):
            row[0].set_ylabel(f"{sampling} nodes\nbias, %")
            for axes in row:
                axes.axhspan(-100 * UNBIASED, 100 * UNBIASED, color=colors.faint, alpha=0.6, lw=0)
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter("{x:g}")
                axes.set_yscale("symlog", linthresh=1.0)
                add_grid(axes, colors, "x")
        figure.supxlabel("nodes on each path", fontsize=9)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, title="degree", loc="outside right center", fontsize=8)
    return figure


def _draw_degrees(results: Results, theme: str) -> Figure:
    with open_figure(theme, (8.5, 4.2)) as (colors, figure):
        axes = figure.subplots()
        labels = []
        for each in results.done:
            ink = colors_of(results.recipe, theme)[each.method.name]
            exact = pd.DataFrame([estimator.read_exact(run) for run in each.runs])
            share = exact.div(exact[40], axis=0).mean().drop(0)
            axes.plot(share.index, share, color=ink, lw=1.6)
            found = average(each.runs).query("sampling == 'cosine' and nodes == 200")
            axes.plot(found["degree"], (1 + found["bias"]) * found["degree"].map(share), "o", ms=4.5, color=ink)
            labels.append(Label(each.method.title, float(share.index[-1]), float(share.iloc[-1]), ink))
        axes.axvline(40, color=colors.ink, lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(bottom=0)
        add_grid(axes, colors)
        axes.set(title="effective degree up to K, relative to K = 40", xlabel="degree K")
        label_ends(axes, labels)
    return figure


def _draw_split(results: Results, theme: str) -> Figure:
    with open_figure(theme, (2.2 * len(results.done) + 0.8, 3.4)) as (colors, figure):
        panels = figure.subplots(1, len(results.done), squeeze=False, sharex=True, sharey=True)[0]
        for axes, each in zip(panels, results.done, strict=True):
            outcomes = average(each.runs).query("sampling == 'cosine'")
            for passes, ink in zip(estimator.BUDGETS, (colors.complex, colors.simple, colors.steep), strict=True):
                errors = 100 * estimator.compute_errors(outcomes, passes).groupby(outcomes["nodes"]).min().dropna()
                axes.plot(errors.index, errors, color=ink, lw=1.5, label=f"{passes:,} passes")
                axes.plot(errors.idxmin(), errors.min(), "o", ms=6, color=ink)
            axes.axhline(100 * TOLERANCE, color=colors.ink, lw=0.8, ls=":")
            axes.loglog(base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_major_formatter("{x:g}")
            add_grid(axes, colors)
            axes.set_title(each.method.title)
        panels[0].set_ylabel("error, %")
        figure.supxlabel("nodes on each path", fontsize=9)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


def _draw_warnings(results: Results, theme: str) -> Figure:
    limits = {"residual": Measurement.RESIDUAL_LIMIT, "upper_half": Measurement.UPPER_HALF_LIMIT}
    with open_figure(theme, (11, 4.6)) as (colors, figure):
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (column, limit) in zip(panels, limits.items(), strict=True):
            for each in results.done:
                found = estimator.read_outcomes(each.runs)
                blind = found["nodes"] == found["degree"] + 1
                x, y = found[column].clip(1e-7), found["whole_bias"].abs().clip(1e-5)  # below is only rounding
                style = {"ms": 3.6, "color": colors_of(results.recipe, theme)[each.method.name], "alpha": 0.75}
                axes.plot(x[~blind], y[~blind], "o", **style, label=each.method.title)
                axes.plot(x[blind], y[blind], "o", **style, mfc="none")
            axes.axvline(limit, color=colors.ink, lw=0.9, ls=":")
            axes.axhline(estimator.WRONG, color=colors.ink, lw=0.9, ls=":")
            axes.set_yscale("log")
            add_grid(axes, colors)
        panels[0].set_xscale("log")
        panels[0].set(xlabel="residual", ylabel="distance from the whole value, as a share of it")
        panels[1].set_xlabel("share of the estimate in the upper half of the degrees")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=8)
    return figure


DRAW = {"bias": _draw_bias, "degrees": _draw_degrees, "split": _draw_split, "warnings": _draw_warnings}
