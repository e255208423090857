"""The figures of the library, with colors that color-blind readers can distinguish.

Each function returns a figure of matplotlib; its ``theme`` is ``"light"`` or ``"dark"``.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from effdeg._utils.checks import check_choice, pluralize
from effdeg._utils.imports import describe_install
from effdeg._utils.statistics import format_interval, student_quantile
from effdeg.functional import effective_degree, evaluate, fit, project
from effdeg.measuring import Measurement, Trace
from effdeg.pools import Choice, Comparison, Ranking
from effdeg.pools._choice import RELATIVE
from effdeg.pools._ranked import Array

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.textpath import TextPath
    from matplotlib.ticker import MaxNLocator, NullLocator, SymmetricalLogLocator
except ImportError as error:  # pragma: no cover
    raise ImportError(f"figures need matplotlib: {describe_install('plots')}") from error

__all__ = [
    "THEMES",
    "Theme",
    "open_figure",
    "plot_choice",
    "plot_comparison",
    "plot_measurement",
    "plot_method",
    "plot_ranking",
]


_COLUMNS, _PANELS = 4, 12  # of the figure of a ranking
# The longest name in characters; the room for a name in points, across a panel and along its height.
_LONGEST, _WIDE, _TALL = 27, 185.0, 140.0


@dataclass(frozen=True)
class Theme:
    """The colors of a figure.

    Attributes:
        ground: The background.
        ink: Text and axes.
        faint: Grids.
        simple: Okabe and Ito's blue, for what is simple.
        complex: Okabe and Ito's vermilion, for what is complex.
        steep: Where the outputs change.

    Example:
        >>> from effdeg.plots import THEMES
        >>> THEMES["light"].simple
        '#0072b2'
    """

    ground: str
    ink: str
    faint: str
    simple: str
    complex: str
    steep: str


THEMES = {
    "light": Theme("#ffffff", "#1f2328", "#d5dadf", "#0072b2", "#d55e00", "#4b1d78"),
    "dark": Theme("#0d1117", "#e6edf3", "#39414c", "#56b4e9", "#f0894e", "#f6e96b"),
}
"""The themes by name."""


@contextmanager
def open_figure(theme: str, size: tuple[float, float]) -> Iterator[tuple[Theme, Figure]]:
    """Open a figure in a theme without changing the user's matplotlib settings.

    Args:
        theme: ``"light"`` or ``"dark"``.
        size: Width and height in inches.

    Yields:
        The colors of the theme and the empty figure.

    Raises:
        ValueError: If there is no such theme.

    Example:
        >>> from effdeg.plots import open_figure
        >>> with open_figure("dark", (4, 3)) as (colors, figure):
        ...     lines = figure.subplots().plot([0, 1], [0, 1], color=colors.simple)
    """
    check_choice("theme", theme, THEMES)
    colors = THEMES[theme]
    inked = ("axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "text.color", "xtick.color", "ytick.color")
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": colors.ground,
        "legend.frameon": False,
    }
    with mpl.rc_context(style | dict.fromkeys(inked, colors.ink)):
        yield colors, Figure(figsize=size, dpi=160, layout="constrained", facecolor=colors.ground)


def plot_method(trace: Trace, *, theme: str = "light", **fit_settings: Any) -> Figure:
    """Draw the paper's method figure from a model's own outputs.

    From left to right: the paths between examples, on the two main directions of the data, strong where the outputs
    change; the outputs that vary most along a simple and a complex path (those at the tenth and ninetieth percentile),
    with the fitted polynomials; these polynomials' coefficients; and the spectrum over all paths.

    Args:
        trace: The outputs along paths, from :func:`effdeg.trace`.
        theme: The colors.
        fit_settings: Settings of :meth:`effdeg.Trace.fit`.

    Example:
        >>> import effdeg, torch
        >>> from effdeg.plots import plot_method
        >>> trace = effdeg.trace(torch.nn.Linear(8, 3), torch.randn(20, 8), paths=10, nodes=20)
        >>> len(plot_method(trace, degree=5).axes)
        6
    """
    measured = trace.fit(**fit_settings)
    settings = measured.settings
    values = trace.values(fit_settings.get("output", "softmax")).double()
    if (components := settings.count_components(values.shape[-1])) is not None:
        values = project(values, components)
    sample = measured.per_path
    simple, complex_ = (int((sample - sample.quantile(share)).abs().argmin()) for share in (0.1, 0.9))
    with open_figure(theme, (13, 5)) as (colors, figure):
        grid = figure.add_gridspec(2, 4, width_ratios=[1.5, 1.25, 0.9, 1.0])
        _draw_landscape(figure.add_subplot(grid[:, 0]), trace, values, colors, (simple, complex_))
        rows = ((simple, "simple", colors.simple), (complex_, "complex", colors.complex))
        right: Any = None
        for row, (path, name, color) in enumerate(rows):
            coefficients = fit(values[path], trace.alpha[path], settings.degree, settings.basis, settings.damping)
            left = figure.add_subplot(grid[row, 1])
            right = figure.add_subplot(grid[row, 2], sharey=right)
            _draw_path(left, values[path], trace.alpha[path], coefficients, settings.basis, color)
            title = f"a {name} path: effective degree {float(effective_degree(coefficients)):.3g}"
            left.set(title=title, ylabel="outputs that vary most", xlim=(0, 1))
            magnitudes = coefficients.abs().mean(-1).numpy()
            right.bar(np.arange(1, len(magnitudes)), magnitudes[1:], color=color, width=0.8)
            right.set(title="its coefficients", ylabel="mean |cₖ|")
            right.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.set_xlabel("position α on the path")
        right.set_xlabel("degree k")
        _draw_spectrum(figure.add_subplot(grid[:, 3]), measured, colors)
    return figure


def plot_measurement(measurement: Measurement, *, theme: str = "light") -> Figure:
    """Draw the spectrum with its 95% intervals, and how the effective degree is distributed over paths.

    Example:
        >>> import effdeg, torch
        >>> from effdeg.plots import plot_measurement
        >>> model, x = torch.nn.Linear(8, 3), torch.randn(20, 8)
        >>> len(plot_measurement(effdeg.measure(model, x, paths=10, nodes=20, degree=5)).axes)
        2
    """
    with open_figure(theme, (8.5, 3.4)) as (colors, figure):
        left, right = figure.subplots(1, 2)
        _draw_spectrum(left, measurement, colors)
        low, high = measurement.interval()
        right.axvline(measurement.value, color=colors.complex, lw=1.6)
        if len(measurement.per_path) > 1:
            right.hist(measurement.per_path.numpy(), bins=40, color=colors.simple, alpha=0.75)
            right.axvspan(low, high, color=colors.complex, alpha=0.3, lw=0)
        else:
            right.yaxis.set_major_locator(NullLocator())  # there is nothing to count
        title = f"effective degree {measurement.value:.4g}\n95% interval {format_interval(low, high)}"
        right.set(title=title, xlabel="effective degree of a path", ylabel="paths")
    return figure


@contextmanager
def _open_rows(
    theme: str, names: list[str], heights: tuple[float, float], width: float
) -> Iterator[tuple[Theme, Figure, Axes, Axes]]:
    """Open a figure of two panels that share a row for each name; the left one is ``width`` times as wide."""
    above, each = heights
    with open_figure(theme, (8.5, above + each * len(names))) as (colors, figure):
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[width, 1])
        left.set_yticks(range(len(names)), names)
        left.set_ylim(len(names) - 0.5, -0.5)
        right.tick_params(left=False)
        for axes in (left, right):
            axes.grid(axis="x", color=colors.faint, lw=0.6)
            axes.set_axisbelow(True)
        yield colors, figure, left, right


def plot_comparison(comparison: Comparison, *, theme: str = "light") -> Figure:
    """Draw the ranking: each model with its 95% interval, and how much more complex than the simplest it is.

    Example:
        >>> import effdeg, torch
        >>> from effdeg.plots import plot_comparison
        >>> models, x = {"a": torch.nn.Linear(8, 3), "b": torch.nn.Linear(8, 3)}, torch.randn(20, 8)
        >>> len(plot_comparison(effdeg.compare(models, x, paths=10, nodes=20, degree=5)).axes)
        2
    """
    names, apart = comparison.ranking, comparison.above_simplest()
    with _open_rows(theme, names, (1.6, 0.38), 1.1) as (colors, figure, left, right):
        for row, (name, measurement) in enumerate(comparison.measurements.items()):
            value = measurement.estimate(normalized=comparison.normalized)[0]
            interval = measurement.interval(normalized=comparison.normalized)
            _draw_bar(left, row, value, interval, colors.simple, filled=True)
            if (difference := apart.get(name)) is not None:
                color = colors.complex if difference.significant else colors.ink
                _draw_bar(right, row, difference.value, difference.interval, color, filled=difference.significant)
        single = len(comparison.measurements[names[0]].per_path) == 1
        title = f"{comparison.describe()}\n{'of a single path: no intervals' if single else '95% interval'}"
        left.set(title=title, xlabel="simpler ←")
        right.axvline(0, color=colors.ink, lw=0.8)
        right.spines["left"].set_visible(False)
        title = f"difference from {names[0]}, path by path"
        right.set(title=title, xlabel="filled: significant (simultaneous 95% intervals)")
        return figure


def plot_choice(choice: Choice, *, theme: str = "light") -> Figure:
    """Draw what :func:`effdeg.pick` found: the two parts of each model's score, and how often the model is best.

    Example:
        >>> import effdeg, torch
        >>> from effdeg.plots import plot_choice
        >>> models = [torch.nn.Linear(8, 3) for _ in range(4)]
        >>> len(plot_choice(effdeg.pick(models, torch.randn(50, 8))).axes)
        2
    """
    names = choice.ranking
    # Of long names the ends, which differ; a $ would begin a formula.
    labels = [(name if len(name) <= 30 else f"{name[:14]}…{name[-15:]}").replace("$", r"\$") for name in names]
    rows = np.arange(len(names))
    with _open_rows(theme, labels, (1.7, 0.3), 1.6) as (colors, figure, left, right):
        both = (colors.simple, colors.complex)
        for offset, (kind, measure), color in zip((-0.2, 0.2), RELATIVE.items(), both, strict=True):
            values, errors = zip(*(choice.measures[name][measure] for name in names), strict=True)
            left.barh(rows + offset, values, 0.36, xerr=errors, color=color, ecolor=colors.ink, label=kind)
        score = "estimated error" if choice.settings["labels"] else "score: mean of both"
        left.plot([*choice.scores.values()], rows, "D", color=colors.ink, ms=4, label=score)
        title = f"{labels[0]} is chosen of {len(names)}\nwith standard errors"
        left.set(title=title, xlabel="better ←")
        figure.legend(loc="outside lower left", ncols=3, fontsize=8)
        shades = [colors.simple if name in (choice.best, *choice.tied) else colors.faint for name in names]
        right.barh(rows, [choice.probabilities[name] for name in names], 0.6, color=shades)
        title = "best in this share of resamples\nblue: not distinguishable from the best"
        right.set(title=title, xlim=(0, 1))
        return figure


def _draw_landscape(axes: Axes, trace: Trace, values: Tensor, colors: Theme, marked: tuple[int, int]) -> None:
    """Draw paths in the plane of the data: faint where the outputs stay the same, strong where they change."""
    shown = sorted({*range(min(len(values), 80)), *marked})
    steepness = values.diff(dim=1).norm(dim=-1) / trace.alpha.diff(dim=1).clamp(min=1e-9)
    shades = LinearSegmentedColormap.from_list("steepness", [colors.faint, colors.steep])
    limit = float(steepness[shown].quantile(0.97))
    for path in shown:
        alpha = trace.alpha[path, :, None]
        points = (alpha * trace.ends[path, 0] + (1 - alpha) * trace.ends[path, 1]).numpy()
        lines = LineCollection(list(np.stack([points[:-1], points[1:]], axis=1)), cmap=shades, lw=1.6, clim=(0, limit))
        lines.set_array(steepness[path].numpy())
        axes.add_collection(lines)
    x, y = trace.ends[shown].flatten(0, 1).T.numpy()
    axes.scatter(x, y, s=9, color=colors.ink, zorder=3, lw=0)
    for path, color, name in zip(marked, (colors.simple, colors.complex), ("simple", "complex"), strict=True):
        ends = trace.ends[path].T.numpy()
        axes.plot(*ends, "--", color=color, lw=2.2, marker="o", ms=7, zorder=4, label=f"a {name} path")
    bar = axes.figure.colorbar(lines, cax=axes.inset_axes((0.0, 0.02, 0.3, 0.018)), orientation="horizontal", ticks=[])
    bar.outline.set_visible(False)
    bar.set_label("change of the outputs", fontsize=8)
    axes.set(title=f"{len(shown)} of {len(values)} paths between examples", xticks=[], yticks=[])
    axes.legend(loc="lower right", fontsize=8)
    axes.margins(0.04, 0.14)
    axes.autoscale_view()
    axes.spines[:].set_visible(False)


def _draw_path(axes: Axes, values: Tensor, alpha: Tensor, coefficients: Tensor, basis: str, color: str) -> None:
    """Draw the three outputs that vary most along a path, and the polynomials fitted to them."""
    most = values.var(0).argsort(descending=True)[:3]
    fine = torch.linspace(0, 1, 400, dtype=torch.float64, device="cpu")
    curves = evaluate(coefficients, fine, basis)
    dots = slice(None, None, max(1, len(alpha) // 50))
    for index, strength in zip(most.tolist(), (1.0, 0.6, 0.35), strict=False):
        axes.plot(fine.numpy(), curves[:, index].numpy(), color=color, alpha=strength, lw=1.5)
        axes.plot(alpha[dots].numpy(), values[dots, index].numpy(), ".", color=color, alpha=strength, ms=4)


def _draw_spectrum(axes: Axes, measurement: Measurement, colors: Theme) -> None:
    """Draw the mean size of the coefficients by degree, with 95% intervals, on a logarithmic scale."""
    mean, stderr = measurement.spectrum.numpy(), measurement.spectrum_stderr.numpy()
    degrees = np.arange(len(mean))
    count = len(measurement.per_path)
    margin = student_quantile(0.975, count - 1) * stderr if count > 1 else np.zeros_like(mean)
    floor = max(float(mean.max()), 1e-300) * 1e-12
    low, middle, high = (np.maximum(values, floor) for values in (mean - margin, mean, mean + margin))
    axes.fill_between(degrees, low, high, color=colors.simple, alpha=0.3, lw=0)
    axes.plot(degrees, middle, "o-", color=colors.simple, ms=3, lw=1.2)
    title, label = f"spectrum of {count} paths", "mean |cₖ|, 95% interval"
    if count == 1:
        title, label = "spectrum of a single path", "mean |cₖ|"
    axes.set(yscale="log", title=title, xlabel="degree k", ylabel=label)
    axes.grid(color=colors.faint, lw=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw_bar(axes: Axes, row: int, value: float, interval: tuple[float, float], color: str, *, filled: bool) -> None:
    if np.isfinite(interval).all():
        axes.plot(interval, (row, row), color=color, lw=2, solid_capstyle="round")
    face: Any = color if filled else axes.get_facecolor()
    axes.plot(value, row, "o", ms=7, mec=color, mfc=face, mew=1.6)


def plot_ranking(
    ranking: Ranking, measures: Sequence[str] | None = None, *, theme: str = "light", caption: str = ""
) -> Figure:
    """Plot the gap against each measure: the figure of :meth:`effdeg.pools.Ranking.plot`.

    Args:
        ranking: A ranking without strata, or that of one stratum.
        measures: The measures to plot, a panel each; by default the 12 best by Kendall's τ.
        theme: The colors.
        caption: What the caption of the figure ends with.

    Raises:
        ValueError: If a measure or the theme is not known, or there is no measure to plot.

    Example:
        >>> from effdeg.plots import plot_ranking
        >>> from effdeg.pools import rank
        >>> table = {"norm": [3, 1, 2], "degree": [1, 2, 4], "gap": [0.1, 0.2, 0.3]}
        >>> len(plot_ranking(rank(table, resamples=100)).axes)
        2
    """
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
    count = len(ranking.scores)
    alone = " if models were independent" if ranking.pool.clustered else ""
    shown = f"; {len(names)} best of {count}" if by_default and len(names) < count else ""
    chosen = [best["pearson"] for best in ranking.best.values() if best["pearson"].variant in names]
    variants = ", ".join(f"{best.variant} (best of {len(best.variants)})" for best in chosen)
    shown += f"; not corrected for the choice: {variants}" if chosen else ""
    return f"line and band: linear fit, 95% confidence{alone}; r with its 95% interval{shown}"


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
    line, half = _fit(values, gaps, fine)
    axes.fill_between(fine, line - half, line + half, color=colors.ink, alpha=0.14, lw=0)
    axes.plot(fine, line, color=colors.ink, lw=1.3)
    axes.scatter(values, gaps, color=colors.simple, s=26, lw=0.5, ec=colors.ground, zorder=3)
    axes.margins(x=0.0 if axes.get_xscale() == "linear" else 0.06)
    axes.grid(color=colors.faint, lw=0.5)
    axes.set_axisbelow(True)
    if power:
        axes.set_xlabel(f"× 10^{power}", parse_math=False)


def _fit(values: Array, gaps: Array, at: Array) -> tuple[Array, Array]:
    """Fit a line by least squares; return it and the half width of its 95% confidence band."""
    freedom = len(values) - 2
    # In units of the spread, so that squares neither overflow nor vanish.
    x, where = ((each - values.mean()) / np.ptp(values) for each in (values, at))
    slope = float(x @ (gaps - gaps.mean()) / (x @ x))
    residual = gaps - gaps.mean() - slope * x
    scatter = math.sqrt(float(residual @ residual) / freedom)
    margin = student_quantile(0.975, freedom) * scatter
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
