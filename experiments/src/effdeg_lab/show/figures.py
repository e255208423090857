"""What the studies' figures share: one style for each method, and labels next to what they name.

Importing this does not load matplotlib; drawing does.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from effdeg_lab.core.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

    from effdeg.plots import Theme as Theme
else:  # matplotlib is imported by what draws
    Axes = Figure = Theme = Any

Line = str | tuple[int, tuple[float, ...]]  # as matplotlib has it: a name, or an offset and dashes
# After the theme's own blue; color-blind readers can distinguish them, and labels in them can be read.
_COLORS = {
    "light": ("#c25400", "#007a59", "#b8438a", "#866400", "#5f6b76", "#8a5a44", "#6f3fa8", "#a01d2e"),
    "dark": ("#f0894e", "#35c795", "#ec9ccb", "#e3c34a", "#a5d8ff", "#cfa58f", "#b79bff", "#ff8a8a"),
}
# The lines and markers of methods that share a color; squares are left to the numbers of the paper.
_SHAPES: tuple[tuple[Line, str], ...] = (
    ("-", "o"),
    ((0, (5, 2)), "^"),
    ((0, (1, 1.2)), "D"),
    ((0, (6, 2, 1, 2)), "v"),
    ((0, (2, 2)), "p"),
    ((0, (8, 3)), "<"),
    ((0, (3, 1, 1, 1, 1, 1)), ">"),
)
_SIZE = 8.5
_LINE_HEIGHT = 1.3 * _SIZE


@dataclass(frozen=True)
class Style:
    """How a method is drawn; methods that share a color have other lines and markers."""

    color: str
    line: Line = "-"
    marker: str = "o"


@dataclass(frozen=True)
class Label:
    """A text, the point that it names, in the units of the data, and its color."""

    text: str
    x: float
    y: float
    color: str


def open_figure(theme: str, size: tuple[float, float]) -> "AbstractContextManager[tuple[Theme, Figure]]":
    from effdeg import plots

    return plots.open_figure(theme, size)


def pair_colors() -> dict[str, str]:
    """Return the dark theme's color for each color of the light one."""
    from effdeg.plots import THEMES

    light, dark = ((*astuple(THEMES[theme]), *_COLORS[theme]) for theme in ("light", "dark"))
    return dict(zip(light, dark, strict=True))


def styles_of(recipe: Recipe, theme: str) -> dict[str, Style]:
    """Return the style of each method, the same in all figures; ``equal_time``, ED or else the second is blue.

    Mixup is orange and CutMix green in every recipe.
    """
    from effdeg.plots import THEMES

    first, *others = [method.name for method in recipe.methods]
    others.sort(key=lambda name: (name != recipe.equal_time, name != "ed"))
    looks = [Style(color, *shape) for shape in _SHAPES for color in (THEMES[theme].simple, *_COLORS[theme])]
    fixed = {name: look for name, look in zip(("mixup", "cutmix"), looks[1:3], strict=True) if name in others[1:]}
    free = (look for look in cycle(looks) if look not in fixed.values())
    return {first: Style(THEMES[theme].ink)} | {name: fixed.get(name) or next(free) for name in others}


def add_grid(axes: "Axes", theme: "Theme", axis: Literal["both", "x", "y"] = "both") -> None:
    """Draw faint grid lines behind everything else."""
    axes.grid(axis=axis, color=theme.faint, lw=0.6)
    axes.set_axisbelow(True)


def plot_seeds(axes: "Axes", curves: np.ndarray, style: Style) -> np.ndarray:
    """Plot the curves of all seeds, seeds × points × 2, and their mean with a marker at its end; return the mean."""
    for seed in curves:
        axes.plot(*seed.T, color=style.color, ls=style.line, lw=0.6, alpha=0.4)
    mean: np.ndarray = curves.mean(0)
    axes.plot(*mean.T, color=style.color, ls=style.line, lw=1.6, marker=style.marker, markevery=[-1], ms=5)
    return mean


def name_rows(axes: "Axes", theme: "Theme", titles: Sequence[str]) -> None:
    """Turn the vertical axis into one row for each title, the first on top."""
    axes.set_yticks(range(len(titles)), titles)
    axes.set_ylim(len(titles) - 0.5, -0.5)
    axes.tick_params(left=False)
    axes.spines["left"].set_visible(False)
    add_grid(axes, theme, "x")


def label_ends(axes: "Axes", labels: Sequence[Label]) -> None:
    """Write labels in a column to the right of the axes, each near the height of its point and joined to it.

    Call it when everything is drawn: it fixes the limits of the axes.
    """
    if not labels:
        return
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    figure, right, grid = cast("Figure", axes.get_figure()), axes.get_xlim()[1], axes.get_gridspec()
    points = figure.get_figheight() * 0.72 * 72 / (grid.nrows if grid else 1)  # the height of the axes, roughly
    heights = (axes.transScale + axes.transLimits).transform([(label.x, label.y) for label in labels])[:, 1]
    places = spread_apart(heights, _LINE_HEIGHT / points)
    for label, height, place in zip(labels, heights, places, strict=True):
        axes.plot([label.x, right], [label.y] * 2, ":", color=label.color, lw=0.9, alpha=0.6, zorder=1)
        shape: dict[str, Any] = {"arrowstyle": "-", "color": label.color, "lw": 0.6, "alpha": 0.6}
        leader = {**shape, "relpos": (0.0, 0.5), "shrinkA": 1, "shrinkB": 0}
        where: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "axes fraction", "annotation_clip": False}
        style: dict[str, Any] = {"color": label.color, "fontsize": _SIZE, "va": "center", **where}
        axes.annotate(label.text, (1.0, height), (1.07, place), arrowprops=leader, **style)


def spread_apart(wanted: Sequence[float] | np.ndarray, gap: float) -> list[float]:
    """Move places apart until neighbors have a gap, staying between 0 and 1 while there is room."""
    order = np.argsort(wanted, kind="stable")
    places = np.asarray(wanted, dtype=float)[order]
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + gap)
    top = max(1.0, gap * (len(places) - 1))
    for index in reversed(range(len(places))):
        places[index] = min(places[index], top)
        top = places[index] - gap
    return [float(place) for place in places[np.argsort(order)]]
