"""The demonstration's folder: figures, checkpoints, numbers, and a page that shows them."""

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import effdeg
from effdeg._utils.files import dump, make_folder, write_atomically, write_figure, write_json
from effdeg._utils.pages import render_html
from effdeg.demo._experiment import METHODS, NOISE, DigitsPool, Outcome
from effdeg.plots import THEMES, Theme, open_figure, plot_choice, plot_method


def write_page(outcome: Outcome, folder: Path, command: str) -> None:
    """Write the figures, checkpoints, numbers and ``index.html`` into a folder."""
    pool = outcome.pools[0]
    figures: dict[str, Callable[..., Figure]] = {
        "pick": partial(plot_choice, pool.choice),
        "method": partial(plot_method, effdeg.trace(pool.choice.model, pool.digits.pool)),
        "check": partial(plot_check, pool),
        "penalty": partial(plot_penalty, outcome),
    }
    for (name, draw), theme in product(figures.items(), THEMES):
        write_figure(draw(theme=theme), folder / f"{name}-{theme}.png")
    images = pool.digits.pool.view(-1, 1, 8, 8).numpy()
    write_atomically(folder / "digits.npy", dump(lambda stream: np.save(stream, images)))
    make_folder(folder / "networks", "the networks")
    for name, model in pool.choice.models.items():
        assert isinstance(model, torch.nn.Module)
        write_atomically(folder / "networks" / f"{name}.pt", dump(partial(torch.save, model.state_dict())))
    write_json(folder / "demo.json", outcome.to_dict())
    template = files("effdeg.demo").joinpath("page.html.j2").read_text(encoding="utf-8")
    page = render_html(template, outcome=outcome, pool=pool, methods=METHODS, command=command)
    write_atomically(folder / "index.html", page.encode())


def pick_command(folder: Path, program: str) -> str:
    """Return the command that repeats the pick from the folder's files."""
    files = f"--weights {folder / 'networks'} --data {folder / 'digits.npy'}"
    return f"{program} pick effdeg.demo:network {files} --change 'noise({NOISE})'"


def plot_check(pool: DigitsPool, *, theme: str) -> Figure:
    """Draw the held-out accuracy of each network against the score of the pick and against the effective degree."""
    with open_figure(theme, (5, 2.8)) as (colors, figure):
        left, right = figure.subplots(1, 2, sharey=True)
        for name, score in pool.scores.items():
            color = _colors(colors)[name.partition("-")[0]]
            for axes, value in ((left, pool.choice.scores[name]), (right, score.degree)):
                axes.plot(value, 100 * score.accuracy, "o", color=color, ms=7)
                if name == pool.choice.best:
                    axes.plot(value, 100 * score.accuracy, "o", color=colors.ink, mfc="none", ms=14)
        left.set(title="the pick's score", xlabel="better ←", ylabel="held-out accuracy, %")
        right.set(title="the effective degree", xlabel="simpler ←")
        for method, color in _colors(colors).items():
            right.plot([], [], "o", color=color, label=method)
        right.legend()
        for axes in (left, right):
            axes.grid(color=colors.faint, lw=0.6)
    return figure


def plot_penalty(outcome: Outcome, *, theme: str) -> Figure:
    """Draw what mixup and the penalty change: a thin line per seed, and the means."""
    titles = {"accuracy": "held-out accuracy, %", "loss": "held-out loss", "degree": "effective degree"}
    with open_figure(theme, (5.4, 2.6)) as (colors, figure):
        for axes, (score, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
            scale = 100 if score == "accuracy" else 1
            for pool in outcome.pools:
                values = [scale * getattr(pool.average(method), score) for method in METHODS]
                axes.plot(range(len(METHODS)), values, "o-", color=colors.ink, lw=0.8, ms=2.5, alpha=0.45)
            for place, (method, color) in enumerate(_colors(colors).items()):
                axes.plot(place, scale * getattr(outcome.average(method), score), "o", color=color, ms=9)
            axes.set_xticks(range(len(METHODS)), METHODS)
            axes.set_xlim(-0.4, 2.4)
            axes.set_title(title)
            axes.grid(axis="y", color=colors.faint, lw=0.6)
    return figure


def _colors(theme: Theme) -> dict[str, str]:
    return dict(zip(METHODS, (theme.ink, theme.complex, theme.simple), strict=True))  # ED is blue, as everywhere
