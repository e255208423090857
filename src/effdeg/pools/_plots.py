"""Scatter plots of the gap against each measure, with a linear fit."""

import math
import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator, NullLocator, SymmetricalLogLocator

from effdeg._utils.checks import check_choice, pluralize
from effdeg._utils.statistics import student_quantile
from effdeg.plots import Theme, open_figure
from effdeg.pools._reading import Array
from effdeg.pools._result import Ranking

_COLUMNS = 4
_PANELS = 12
# The longest name in characters; the room for a name in points, across a panel and along its height.
_LONGEST, _WIDE, _TALL = 27, 185.0, 140.0


def plot_ranking(
    ranking: Ranking, measures: Sequence[str] | None = None, *, theme: str = "light", caption: str = ""
) -> Figure:
    """Plot the gap against each measure; see :meth:`Ranking.plot`. The caption ends with ``caption``."""
    names = list(ranking.scores)[:_PANELS] if measures is None else list(measures)
    for name in names:
        check_choice("measure", name, ranking.scores)
    if not names:
        raise ValueError("there is no measure to plot.")
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    width = max(3.1 * columns, 4.2)
    heading = 0.0 if ranking.pool.stratum is None else 0.25
    with open_figure(theme, (width, 2.75 * rows + 0.25 + heading)) as (colors, figure):
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes, name in zip(grid.flat, names, strict=False):
            score = ranking.scores[name]
            if score.undefined is None:
                _plot_panel(axes, ranking, name, colors)
            else:
                reason = textwrap.fill(score.undefined, 32, max_lines=8, placeholder=" …")
                axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", parse_math=False)
                axes.xaxis.set_major_locator(NullLocator())
                axes.spines["bottom"].set_visible(False)
            title = _fold(name)
            if score.pearson is not None and score.kendall is not None:
                title += f"\nr = {score.pearson}, τ = {score.kendall.value:z.2f}"
            # Dollar signs are part of a name, not mathematics.
            axes.set_title(title).set_parse_math(False)
        for axes in grid.flat[len(names) :]:
            axes.remove()
        for axes in grid[:, 0]:
            axes.set_ylabel(_shorten(ranking.pool.target, _TALL), parse_math=False)
        low, high = float(ranking.pool.gaps.min()), float(ranking.pool.gaps.max())
        grid[0, 0].set_ylim(low - 0.12 * (high - low), high + 0.12 * (high - low))
        if heading:
            title = f"{ranking.pool.describe_stratum()} ({pluralize(len(ranking.pool), 'model')})"
            figure.suptitle(title, fontsize=10.5, x=0.01, ha="left").set_parse_math(False)
        text = _caption(ranking, names, by_default=measures is None) + caption
        figure.supxlabel(textwrap.fill(text, int(16 * width)), fontsize=8)
    return figure


def _caption(ranking: Ranking, names: Sequence[str], *, by_default: bool) -> str:
    level, count = f"{ranking.level * 100:g}%", len(ranking.scores)
    alone = " if models were independent" if ranking.pool.clustered else ""
    shown = f"; {len(names)} best of {count}" if by_default and len(names) < count else ""
    chosen = [best["pearson"] for best in ranking.best.values() if best["pearson"].variant in names]
    variants = ", ".join(f"{best.variant} (best of {len(best.variants)})" for best in chosen)
    shown += f"; not corrected for the choice: {variants}" if chosen else ""
    return f"line and band: linear fit, {level} confidence{alone}; r with its {level} interval{shown}"


def _plot_panel(axes: Axes, ranking: Ranking, name: str, colors: Theme) -> None:
    values, gaps = ranking.pool.measures[name], ranking.pool.gaps
    # Axes cannot span the whole range of a float.
    power = math.floor(math.log10(np.abs(values).max()))
    power = power if abs(power) > 100 else 0
    values = values / 10.0**power
    low, high = float(values.min()), float(values.max())
    if low > 0 and math.log10(high) - math.log10(low) > 3:
        axes.set_xscale("log")
        fine = np.geomspace(low, high, 200)
    elif high < 0 and math.log10(-low) - math.log10(-high) > 3:
        # Negated measures: a logarithmic axis of their size, larger to the right as everywhere.
        axes.set_xscale("symlog", linthresh=-high)
        locator = SymmetricalLogLocator(base=10, linthresh=-high)
        locator.set_params(numticks=5)
        axes.xaxis.set_major_locator(locator)
        fine = -np.geomspace(-low, -high, 200)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        fine = np.linspace(low - 0.06 * (high - low), high + 0.06 * (high - low), 200)
    line, half = _fit(values, gaps, fine, ranking.level)
    axes.fill_between(fine, line - half, line + half, color=colors.ink, alpha=0.14, lw=0)
    axes.plot(fine, line, color=colors.ink, lw=1.3)
    axes.scatter(values, gaps, color=colors.simple, s=26, lw=0.5, ec=colors.ground, zorder=3)
    axes.margins(x=0.0 if axes.get_xscale() == "linear" else 0.06)
    axes.grid(color=colors.faint, lw=0.5)
    axes.set_axisbelow(True)
    if power:
        axes.set_xlabel(f"× 10^{power}", parse_math=False)


def _fit(values: Array, gaps: Array, at: Array, level: float) -> tuple[Array, Array]:
    """Fit a line by least squares; return it and the half width of its confidence band."""
    freedom = len(values) - 2
    # In units of the spread, so that squares neither overflow nor vanish.
    x, where = ((each - values.mean()) / np.ptp(values) for each in (values, at))
    slope = float(x @ (gaps - gaps.mean()) / (x @ x))
    residual = gaps - gaps.mean() - slope * x
    scatter = math.sqrt(float(residual @ residual) / freedom)
    margin = student_quantile((1 + level) / 2, freedom) * scatter
    return gaps.mean() + slope * where, margin * np.sqrt(1 / len(x) + where**2 / (x @ x))


def _fold(name: str) -> str:
    """Break a name that is too wide into two lines, between words near its middle."""
    between = [place + 1 for place, character in enumerate(name) if character in "_- "]
    if _shorten(name, _WIDE) == name or not between:
        return _shorten(name, _WIDE)
    middle = min(between, key=lambda place: abs(2 * place - len(name)))
    return "\n".join(_shorten(part, _WIDE) for part in (name[:middle], name[middle:]))


def _shorten(name: str, points: float) -> str:
    """Leave out the middle of a name that has too many characters or is too wide in points."""
    size = mpl.rcParams["axes.titlesize"]
    short, kept = name, min(len(name) + 1, _LONGEST + 1)
    while len(short) > _LONGEST or TextPath((0, 0), short.replace("$", "S"), size=size).get_extents().width > points:
        kept -= 1
        short = f"{name[: math.ceil(kept / 2)]}…{name[len(name) - (kept - 1) // 2 :]}"
    return short
