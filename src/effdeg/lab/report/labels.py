"""Labels beside what they name, none upon another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.textpath import TextPath

_SIZE = 8.5
# What a line of text takes, in points.
_LINE = 1.3 * _SIZE


@dataclass(frozen=True)
class Label:
    """A text, the point that it names, and its colour."""

    text: str
    x: float
    y: float
    colour: str


def beside(axes: Axes, labels: Sequence[Label]) -> None:
    """Write labels in a column right of the axes, at the heights of their points or near, and lead over to them.

    The limits of the axes must be set.

    Args:
        axes: The axes.
        labels: The labels of the points at the ends of lines.
    """
    low, high = axes.get_ylim()
    height = axes.get_figure().get_figheight() * 0.72 * 72  # type: ignore[union-attr]
    wanted = [(label.y - low) / (high - low) for label in labels]
    for label, own, place in zip(labels, wanted, spread_apart(wanted, _LINE / height), strict=True):
        right = axes.get_xlim()[1]
        axes.plot([label.x, right], [label.y] * 2, ":", color=label.colour, lw=0.9, alpha=0.6, zorder=1)
        axes.annotate(
            label.text,
            (1.0, own),
            (1.07, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=label.colour,
            fontsize=_SIZE,
            va="center",
            arrowprops=_leader(label.colour) | {"relpos": (0.0, 0.5), "shrinkA": 1, "shrinkB": 0},
            annotation_clip=False,
        )


def around(axes: Axes, labels: Sequence[Label]) -> None:
    """Write labels next to their points, where there is room.

    Args:
        axes: The axes, with everything drawn and their limits set.
        labels: The labels.
    """
    labels = sorted(labels, key=lambda label: -label.y)
    figure = axes.get_figure()
    figure.draw_without_rendering()  # type: ignore[union-attr]
    unit = figure.dpi / 72  # type: ignore[union-attr]
    points = axes.transData.transform([(label.x, label.y) for label in labels]) / unit
    inside = np.asarray(axes.get_window_extent().extents) / unit
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in points]
    for label, (x, y) in zip(labels, points, strict=True):
        width = TextPath((0, 0), label.text, size=_SIZE).get_extents().width + 2
        offsets = sorted(product((0, 8, -8, 16, -16, 24, -24), (7, -7, 24, -24, 44, -44)), key=_far)
        places = [(x + right - (width if right < 0 else 0), y + up - _LINE / 2) for up, right in offsets]
        free = [place for place in places if not any(_touch(_box(place, width), other) for other in taken)]
        left, bottom = next((place for place in free if _within(_box(place, width), inside)), (free or places)[0])
        taken.append(_box((left, bottom), width))
        axes.annotate(
            label.text,
            (label.x, label.y),
            (left - x, bottom + _LINE / 2 - y),
            textcoords="offset points",
            color=label.colour,
            fontsize=_SIZE,
            va="center",
            arrowprops=_leader(label.colour) | {"shrinkA": 0, "shrinkB": 3},
            bbox={"fc": axes.get_facecolor(), "ec": "none", "pad": 0.5},
        )


def spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Move places apart until neighbours have a gap, staying within 0 and 1 while there is room.

    Args:
        wanted: The places wanted.
        gap: The least distance between two.

    Returns:
        The places, in the order given.
    """
    order = np.argsort(wanted, kind="stable")
    places = np.asarray(wanted, dtype=float)[order]
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + gap)
    top = max(1.0, gap * (len(places) - 1))
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index], top)
        top = places[index] - gap
    found = np.empty_like(places)
    found[order] = places
    return [float(place) for place in found]


def _far(offset: tuple[int, int]) -> float:
    # A label at the height of its point is read most easily.
    return math.hypot(2 * offset[0], offset[1])


def _leader(colour: str) -> dict[str, Any]:
    return {"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.6}


def _box(place: tuple[float, float], width: float) -> tuple[float, float, float, float]:
    return place[0], place[1], place[0] + width, place[1] + _LINE


def _touch(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _within(box: tuple[float, ...], limits: np.ndarray) -> bool:
    return bool(box[0] >= limits[0] and box[1] >= limits[1] and box[2] <= limits[2] and box[3] <= limits[3])
