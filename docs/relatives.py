"""The figure of docs/relatives.md: the losses, targets and points of the penalty and its relatives, by the library."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from effdeg import Penalty, baselines
from effdeg.baselines._mixup import draw_shares
from effdeg.plots import Theme, open_figure
from effdeg_lab.figures import add_grid

_PLACE = 0.3  # of the point in the figure; mixup's target there is as large
_OWN_SLOPE = 0.4  # of the straight line between the own outputs at the ends
_DRAWS = 400_000
_PATHS = 2_000
# Of Brier mixup and of ED with 4 nodes; the others have colors of the theme.
_MORE_COLORS = {"light": ("#007a59", "#6f3fa8"), "dark": ("#35c795", "#b79bff")}


def _penalty(anchor: Any, **settings: Any) -> Penalty:
    """Make a penalty without damping: exactly what the page says."""
    return Penalty(anchor=anchor, damping=0.0, generator=torch.Generator().manual_seed(0), **settings)


def draw_nodes(penalty: Penalty, paths: int = _DRAWS) -> Tensor:
    """Draw the nodes that are run, one row per path."""
    x, y = torch.zeros(2, 1), torch.tensor([0, 1])
    points = penalty.points(x, y, pairs=torch.tensor([[1, 0]]).expand(paths, 2))
    return points.alpha[:, points.inner]


def find_losses() -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the losses at one point of a path from class 0 to 1, as functions of the logit of class 1.

    All are sums over the two classes.
    """
    x, soft = torch.zeros(2, 1), torch.tensor([[1 - _PLACE, _PLACE]], dtype=torch.float64).expand(2, 2)

    def mixed(loss: Any) -> Callable[[Tensor], Tensor]:
        # Labels that are equal are mixed to themselves, whatever is drawn.
        way = baselines.RegMixup(loss=loss)
        return lambda logits: way(lambda rows: logits.expand(len(rows), 2), x, soft)[1]

    def degree(*alpha: float) -> Callable[[Tensor], Tensor]:
        penalty = _penalty("labels", nodes=len(alpha), degree=len(alpha) - 1)
        nodes = torch.tensor([alpha], dtype=torch.float64)
        points = penalty.points(x, torch.tensor([0, 1]), pairs=torch.tensor([[1, 0]]), alpha=nodes)
        others = torch.logit(nodes[0, 2:-1])[:, None] * torch.tensor([0.0, 1.0])  # on the straight line
        return lambda logits: 2 * penalty.degree(torch.cat([logits, others]), points)

    losses = {"cross-entropy: mixup, RegMixup": mixed("cross-entropy"), "squared: Brier mixup, ICT": mixed("brier")}
    losses |= {"absolute: L1 mixup": mixed("l1"), "ED, 3 nodes": degree(0, _PLACE, 1)}
    return losses | {"ED, 4 nodes (the other point on the line)": degree(0, _PLACE, 1 - _PLACE, 1)}


def find_degrees(slopes: Tensor, anchor: Any) -> list[float]:
    """Return the penalty of models that are straight at the inner nodes, p = ½ + slope (α − ½), by their slopes.

    The labels at the ends are 0 and 1, the own outputs there 0.3 and 0.7.
    """
    penalty, labels = _penalty(anchor, output="identity"), torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    points = penalty.points(labels, labels, pairs=torch.tensor([[1, 0]]).expand(_PATHS, 2))
    outputs = 0.5 + _OWN_SLOPE * (labels - 0.5)
    values = (torch.cat([outputs, 0.5 + slope * (points.inputs - 0.5)]) for slope in slopes)
    return [penalty.degree(each, points).item() for each in values]


def plot(theme: str) -> Figure:
    """Draw what the target is, the loss and the pull at one point, and where the points lie."""
    with open_figure(theme, (10.5, 7.4)) as (colors, figure):
        (targets, densities), (losses, pulls) = figure.subplots(2, 2)
        _draw_targets(targets, colors)
        _draw_densities(densities, colors, theme)
        _draw_losses(losses, pulls, colors, theme)
        for axes in (targets, densities, losses, pulls):
            add_grid(axes, colors)
    return figure


def _draw_targets(axes: Axes, colors: Theme) -> None:
    slopes = torch.linspace(-0.2, 1.4, 81, dtype=torch.float64)
    own = f"{0.5 - _OWN_SLOPE / 2:g} and {0.5 + _OWN_SLOPE / 2:g}"
    for anchor, least, text, ink in (
        ("labels", 1.0, "between labels, 0 and 1 (mixup, RegMixup, ED with labels)", colors.ink),
        ("self", _OWN_SLOPE, f"between outputs, here {own} (ICT, ED with self anchors)", colors.simple),
        (None, 0.0, "none: a constant costs least (ED without anchors)", colors.complex),
    ):
        degrees = np.array(find_degrees(slopes, anchor))
        axes.plot(slopes, degrees - degrees.min(), color=ink, lw=1.8, label=text)
        axes.plot(least, 0, "o", color=ink, clip_on=False)
    axes.set(ylim=(0, 1.1), xlabel="slope of the model from end to end")
    axes.set_title("1  the target: ED of a straight model, above its least value")
    axes.legend(title="target: the straight line", alignment="left", loc="upper center")


def _draw_losses(left: Axes, right: Axes, colors: Theme, theme: str) -> None:
    brier, four = _MORE_COLORS[theme]
    inks = (colors.ink, brier, colors.simple, colors.complex, four)
    p = torch.linspace(0.004, 0.996, 124, dtype=torch.float64)
    for (name, loss), ink in zip(find_losses().items(), inks, strict=True):
        values, pulls = [], []
        for logit in torch.logit(p):
            logits = torch.stack([torch.zeros_like(logit), logit])[None].requires_grad_()
            value = loss(logits)
            (gradient,) = torch.autograd.grad(value, logits)
            values.append(value.item())
            pulls.append(-gradient[0, 1].item())
        dashes = "--" if name.startswith("ED") else "-"
        left.plot(p, np.array(values) - min(values), dashes, color=ink, lw=1.8, label=name)
        right.plot(p, pulls, dashes, color=ink, lw=1.8)
    for axes in (left, right):
        axes.axvline(_PLACE, ymax=0.5 if axes is left else 1, color=colors.ink, lw=0.8, ls=":")
        axes.set_xlabel(f"the model's probability p at α = {_PLACE:g}")
    left.set_ylim(-0.05, 3.2)
    left.legend(loc="upper center")
    left.set_title(f"3  the loss at one point, α = {_PLACE:g}, above its least value")
    right.set_title("4  the pull on the logit at this point: minus the derivative")


def _draw_densities(axes: Axes, colors: Theme, theme: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shares = {
        alpha: draw_shares(_DRAWS, alpha, device=torch.device("cpu"), generator=generator) for alpha in (1.0, 10.0)
    }
    four = _MORE_COLORS[theme][1]
    for text, alpha, ink, dashes in (
        ("mixup, ICT", shares[1.0], colors.ink, "-"),
        ("RegMixup, Brier and L1 mixup", shares[10.0], colors.simple, "-"),
        ("ED, 3 nodes", draw_nodes(_penalty("labels", nodes=3, degree=2)), colors.complex, "--"),
        ("ED, 4 nodes", draw_nodes(_penalty("labels")), four, "--"),
        ("ED without anchors, 4 nodes", draw_nodes(_penalty(None)), colors.complex, ":"),
    ):
        density, edges = np.histogram(alpha.numpy(), 80, (0, 1), density=True)
        axes.stairs(density, edges, color=ink, ls=dashes, lw=1.8, label=text)
    axes.set(ylim=(0, 5.2), xlabel="position α on the path", title="2  where the points lie on the path: density")
    shown = axes.legend(loc="upper center", ncols=2, fontsize=8, columnspacing=1, frameon=True, framealpha=1)
    shown.get_frame().set(facecolor=colors.ground, edgecolor="none")
