"""The demonstration's folder: figures, checkpoints, numbers, and a page that shows them."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from effdeg._utils.files import dump, write_atomically, write_figure, write_json
from effdeg._utils.pages import render_html
from effdeg.demo._experiments import QUESTION, TRACKED, MeanInterval, PenaltyEffect, Selection, TrackedNetwork
from effdeg.plots import THEMES, open_figure, plot_comparison, plot_method

_PANELS = {"accuracy": "held-out accuracy", "loss": "held-out loss", "degree": "effective degree"}


def write_page(selection: Selection, effect: PenaltyEffect, folder: Path, command: str) -> None:
    """Write the figures, checkpoints, numbers and ``index.html`` into a folder."""
    figures: dict[str, Callable[..., Figure]] = {
        "method": partial(plot_method, selection.traces[selection.comparison.ranking[0]]),
        "training": partial(plot_training, selection.networks),
        "comparison": partial(plot_comparison, selection.comparison),
        "penalty": partial(plot_penalty, effect),
    }
    for (name, draw), theme in product(figures.items(), THEMES):
        write_figure(draw(theme=theme), folder / f"{name}-{theme}.png")
    write_atomically(folder / "digits.npy", dump(lambda stream: np.save(stream, selection.digits.pool.numpy())))
    for name, network in selection.networks.items():
        write_atomically(folder / f"{name}.pt", dump(partial(torch.save, network.model.state_dict())))
    write_json(folder / "comparison.json", selection.comparison.to_dict())
    write_json(folder / "penalty.json", effect.to_dict())
    ends = (
        f"'{name}' ends at an effective degree of {each.degrees[-1].value:.2g}, a held-out accuracy of "
        f"{each.test_accuracy[-1]:.1%} and a held-out loss of {each.test_loss[-1]:.2f}"
        for name, each in selection.networks.items()
    )
    page = render_html(
        files("effdeg.demo").joinpath("page.html.j2").read_text(encoding="utf-8"),
        selection=selection,
        effect=effect,
        question=QUESTION,
        ends="; ".join(ends),
        changes=", ".join(f"{title} {_format_change(effect, what)}" for what, title in _PANELS.items()),
        command=command,
    )
    write_atomically(folder / "index.html", page.encode())


def compare_command(folder: Path, program: str) -> str:
    """Return the command that repeats the comparison from the folder's files."""
    weights = " ".join(f"--weights {folder / name}.pt" for name in ("gentle", "hasty"))
    return f"{program} compare effdeg.demo:network {weights} --data {folder / 'digits.npy'}"


def plot_training(networks: Mapping[str, TrackedNetwork], *, theme: str) -> Figure:
    """Draw how the effective degree, the accuracies and the held-out loss move while networks train."""
    with open_figure(theme, (10.5, 3.2)) as (colors, figure):
        degree, accuracy, loss = figure.subplots(1, 3)
        for (name, network), color in zip(networks.items(), (colors.simple, colors.complex), strict=True):
            low, high = np.array([measured.interval() for measured in network.degrees]).T
            degree.fill_between(TRACKED, low, high, color=color, alpha=0.25, lw=0)
            accuracy.plot(TRACKED, network.train_accuracy, "--", color=color, lw=1.1, label=f"{name}, training")
            for axes, values, label in (
                (degree, [measured.value for measured in network.degrees], name),
                (accuracy, network.test_accuracy, f"{name}, held out"),
                (loss, network.test_loss, name),
            ):
                axes.plot(TRACKED, values, "o-", color=color, ms=3.5, label=label)
        degree.set_title("effective degree, 95% interval")
        accuracy.set_title("accuracy")
        loss.set_title("held-out loss")
        for axes in (degree, accuracy, loss):
            axes.set_xscale("symlog", linthresh=10)
            axes.set_xlabel("training step")
            axes.grid(color=colors.faint, lw=0.6)
            axes.legend(fontsize=8)
    return figure


def plot_penalty(effect: PenaltyEffect, *, theme: str) -> Figure:
    """Draw what the penalty changes, seed by seed and on average."""
    with open_figure(theme, (10.5, 3.2)) as (colors, figure):
        for axes, (what, title) in zip(figure.subplots(1, 3), _PANELS.items(), strict=True):
            groups = [np.array([getattr(each, what) for each in group]) for group in (effect.plain, effect.penalized)]
            for one, other in zip(*groups, strict=True):
                axes.plot((0, 1), (one, other), "o-", color=colors.ink, lw=0.8, ms=2.5, alpha=0.45)
            for place, values, color in zip((-0.18, 1.18), groups, (colors.complex, colors.simple), strict=True):
                shown = MeanInterval.of(torch.from_numpy(values))
                error = [[shown.mean - shown.low], [shown.high - shown.mean]]
                axes.errorbar([place], [shown.mean], error, fmt="o", ms=6, capsize=3, lw=1.6, color=color)
            axes.set_xticks((0, 1), ("without", "with the penalty"))
            axes.set_xlim(-0.45, 1.45)
            axes.set_title(f"{title}: {_format_change(effect, what)}")
            axes.grid(axis="y", color=colors.faint, lw=0.6)
    return figure


def _format_change(effect: PenaltyEffect, what: str) -> str:
    change = effect.difference(what)
    scale, unit = (100, " points") if what == "accuracy" else (1, "")
    middle, margin = scale * change.mean, scale * (change.high - change.low) / 2
    return f"{middle:+.2g} ± {margin:.2g}{unit}"
