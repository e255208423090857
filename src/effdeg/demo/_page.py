"""The demonstration's folder: figures, checkpoints, numbers, and a page that shows them."""

import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
import torch
from matplotlib.figure import Figure

from effdeg._utils.files import dump, write_atomically, write_figure, write_json
from effdeg._utils.statistics import interval, mean_and_stderr
from effdeg.demo._experiments import QUESTION, TRACKED, PenaltyEffect, Selection, TrackedNetwork
from effdeg.plots import THEMES, drawing, plot_comparison, plot_method

# On a narrow screen a figure keeps this width, at which its smallest letters can be read, and scrolls by itself.
_PIXELS_PER_INCH = 72


def write_page(selection: Selection, effect: PenaltyEffect, folder: Path) -> None:
    """Write the figures, checkpoints, numbers and ``index.html`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _write_figures(selection, effect, folder)
    write_atomically(folder / "digits.npy", dump(lambda stream: np.save(stream, selection.digits.pool.numpy())))
    for name, network in selection.networks.items():
        write_atomically(folder / f"{name}.pt", dump(partial(torch.save, network.model.state_dict())))
    write_json(folder / "comparison.json", selection.comparison.to_dict())
    write_json(folder / "penalty.json", effect.to_dict())
    page = Template(files("effdeg.demo").joinpath("page.html").read_text(encoding="utf-8")).substitute(
        figures,
        **{name: " ".join(f"--{role}: {colour};" for role, colour in asdict(THEMES[name]).items()) for name in THEMES},
        labelled=len(selection.digits.labels),
        pool=len(selection.digits.pool),
        held_out=len(selection.digits.held_out),
        selection=_items(selection.findings()),
        rows=_rows(selection),
        question=QUESTION,
        effect=_items(effect.findings()),
        command=html.escape(compare_command(folder)),
    )
    write_atomically(folder / "index.html", page.encode())


def compare_command(folder: Path, program: str = "effdeg") -> str:
    """Return the command that repeats the comparison from the folder's files."""
    weights = " ".join(f"--weights {folder / name}.pt" for name in ("gentle", "hasty"))
    return f"{program} compare effdeg.demo:network {weights} --data {folder / 'digits.npy'}"


def plot_training(networks: Mapping[str, TrackedNetwork], *, theme: str) -> Figure:
    """Draw how the effective degree, the accuracies and the held-out loss move while networks train."""
    with drawing(theme, (10.5, 3.2)) as (colours, figure):
        degree, accuracy, loss = figure.subplots(1, 3)
        for (name, network), colour in zip(networks.items(), (colours.simple, colours.complex), strict=True):
            low, high = np.array([measured.interval() for measured in network.degrees]).T
            degree.fill_between(TRACKED, low, high, color=colour, alpha=0.25, lw=0)
            accuracy.plot(TRACKED, network.train_accuracy, "--", color=colour, lw=1.1, label=f"{name}, training")
            for axes, values, label in (
                (degree, [measured.value for measured in network.degrees], name),
                (accuracy, network.test_accuracy, f"{name}, held out"),
                (loss, network.test_loss, name),
            ):
                axes.plot(TRACKED, values, "o-", color=colour, ms=3.5, label=label)
        degree.set_title("effective degree, 95% interval")
        accuracy.set_title("accuracy")
        loss.set_title("held-out loss")
        for axes in (degree, accuracy, loss):
            axes.set_xscale("symlog", linthresh=10)
            axes.set_xlabel("training step")
            axes.grid(color=colours.faint, lw=0.6)
            axes.legend(fontsize=8)
    return figure


def plot_penalty(effect: PenaltyEffect, *, theme: str) -> Figure:
    """Draw what the penalty changes, seed by seed and on average."""
    panels = {"accuracy": "held-out accuracy", "loss": "held-out loss", "degree": "effective degree"}
    with drawing(theme, (10.5, 3.2)) as (colours, figure):
        for axes, (what, title) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            groups = [np.array([getattr(each, what) for each in group]) for group in (effect.plain, effect.penalized)]
            for one, other in zip(*groups, strict=True):
                axes.plot((0, 1), (one, other), "o-", color=colours.ink, lw=0.8, ms=2.5, alpha=0.45)
            for place, values, colour in zip((-0.18, 1.18), groups, (colours.complex, colours.simple), strict=True):
                mean, stderr = mean_and_stderr(torch.from_numpy(values))
                low, high = interval(mean, stderr, count=len(values), level=0.95)
                axes.errorbar(
                    [place], [mean], [[mean - low], [high - mean]], fmt="o", ms=6, capsize=3, lw=1.6, color=colour
                )
            axes.set_xticks((0, 1), ("without", "with the penalty"))
            axes.set_xlim(-0.45, 1.45)
            axes.set_title(f"{title}: {_change(effect, what)}")
            axes.grid(axis="y", color=colours.faint, lw=0.6)
    return figure


def _write_figures(selection: Selection, effect: PenaltyEffect, folder: Path) -> dict[str, str]:
    """Write each figure in both themes; return the HTML that shows them."""
    shown = {}

    def add(name: str, draw: Callable[..., Figure], alt: str, caption: str) -> None:
        for theme in THEMES:
            figure = draw(theme=theme)
            write_figure(figure, folder / f"{name}-{theme}.png")
        width = round(figure.get_figwidth() * _PIXELS_PER_INCH)
        shown[name] = (
            f'<figure><div class="scroll"><picture style="display: block; min-width: {width}px">'
            f'<source srcset="{name}-dark.png" media="(prefers-color-scheme: dark)">'
            f'<img src="{name}-light.png" alt="{html.escape(alt)}"></picture></div>'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )

    simpler, other = selection.comparison.ranking
    one, two = (selection.comparison.measurements[name] for name in (simpler, other))
    add(
        "method",
        partial(plot_method, selection.traces[simpler]),
        f"Four panels for the network {simpler!r}: paths between digits in a plane; the outputs along a simple and "
        "a complex path, with fitted curves; the sizes of the coefficients of these curves, which reach to higher "
        "degrees for the complex path; and the mean size over all paths, which falls with the degree.",
        f"From paths to a number, for the network {simpler!r}: paths between unlabelled digits, strong where the "
        "outputs change; the outputs along a simple and a complex path with the polynomials fitted to them; the "
        "sizes of their coefficients; and the mean size by degree over all paths. The effective degree is the sum "
        "of degree × size.",
    )
    ends = "; ".join(
        f"{name!r} ends at an effective degree of {network.degrees[-1].value:.2g}, a held-out accuracy of "
        f"{network.test_accuracy[-1]:.1%} and a held-out loss of {network.test_loss[-1]:.2f}"
        for name, network in selection.networks.items()
    )
    add(
        "training",
        partial(plot_training, selection.networks),
        f"Three panels against the training step, for both networks: {ends}.",
        "The networks during training. The bands are 95% intervals.",
    )
    add(
        "comparison",
        partial(plot_comparison, selection.comparison),
        f"Two panels: the effective degree of {simpler!r}, {one.value:.3g}, and of {other!r}, {two.value:.3g}, "
        "with their intervals; and the difference of the two with its interval.",
        f"The two networks on the same {len(one.per_path)} paths; the difference is taken path by path.",
    )
    changes = {what: _change(effect, what) for what in ("accuracy", "loss", "degree")}
    add(
        "penalty",
        partial(plot_penalty, effect),
        f"Three panels, each with a line per seed from training without to training with the penalty: held-out "
        f"accuracy {changes['accuracy']}, held-out loss {changes['loss']}, effective degree {changes['degree']}.",
        "Hasty training without and with the penalty: one line per seed, which determines the labelled digits "
        "and the initial weights, and the means with 95% intervals.",
    )
    return shown


def _change(effect: PenaltyEffect, what: str) -> str:
    change = effect.difference(what)
    scale, unit = (100, " points") if what == "accuracy" else (1, "")
    middle, margin = scale * change.mean, scale * (change.high - change.low) / 2
    return f"{middle:+.2g} ± {margin:.2g}{unit}"


def _items(sentences: Iterable[str]) -> str:
    return "\n".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)


def _rows(selection: Selection) -> str:
    rows = []
    for name, measured in selection.comparison.measurements.items():
        network, (low, high) = selection.networks[name], measured.interval()
        train, test = network.train_accuracy[-1], network.test_accuracy[-1]
        degree = f"{measured.value:.3g} ({low:.3g} to {high:.3g})"
        cells = (name, network.regime.description, degree, f"{train:.1%}", f"{test:.1%}", f"{train - test:.1%}")
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return "\n".join(rows)
