"""The demonstration's folder: figures, checkpoints, numbers, and a page that shows them."""

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from effdeg._utils.files import dump, write_atomically, write_figure, write_json
from effdeg._utils.statistics import interval, mean_and_stderr
from effdeg.demo._contest import QUESTION, Contest
from effdeg.demo._story import Run, Story
from effdeg.plots import THEMES, drawing, plot_comparison, plot_method

_STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1f2328; --faint: #d5dadf; }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --ink: #e6edf3; --faint: #39414c; } }
body { background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
       max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
.scroll { overflow-x: auto; }
img { display: block; width: 100%; height: auto; }
figure { margin: 1.5rem 0 2.5rem; }
figcaption { opacity: 0.8; }
table { border-collapse: collapse; min-width: 44rem; }
th, td { text-align: left; padding: 0.3rem 1rem 0.3rem 0; border-bottom: 1px solid var(--faint); }
pre { padding: 0.8rem; border: 1px solid var(--faint); white-space: pre-wrap; overflow-wrap: anywhere; }
"""

# On a narrow screen a figure keeps this width, at which its smallest letters can be read, and scrolls by itself.
_PIXELS_PER_INCH = 72


@dataclass(frozen=True)
class _Picture:
    """A figure in both themes, and what it shows."""

    draw: Callable[[str], Figure]
    alt: str
    caption: str


def write_page(story: Story, contest: Contest, folder: Path) -> Path:
    """Write everything into a folder and return its page."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = {}
    for name, picture in _pictures(story, contest).items():
        for theme in THEMES:
            figure = picture.draw(theme)
            write_figure(figure, folder / f"{name}-{theme}.png")
        shown[name] = _figure(name, picture, width=round(figure.get_figwidth() * _PIXELS_PER_INCH))
    write_atomically(folder / "digits.npy", dump(lambda stream: np.save(stream, story.digits.pool.numpy())))
    for name, run in story.runs.items():
        write_atomically(folder / f"{name}.pt", dump(partial(torch.save, run.model.state_dict())))
    for name, found in (("comparison", story.comparison), ("contest", contest)):
        write_json(folder / f"{name}.json", found.to_dict())
    page = folder / "index.html"
    write_atomically(page, _html(story, contest, folder, shown).encode())
    return page


def _pictures(story: Story, contest: Contest) -> dict[str, _Picture]:
    simpler, other = story.comparison.ranking
    one, two = (story.comparison.measurements[name] for name in (simpler, other))
    return {
        "method": _Picture(
            lambda theme: plot_method(story.traces[simpler], theme=theme),
            f"Four panels for the network {simpler!r}: paths between digits in a plane; the outputs along a simple and "
            "a complex path, with fitted curves; the sizes of the coefficients of these curves, which reach to higher "
            "degrees for the complex path; and the mean size over all paths, which falls with the degree.",
            f"From paths to a number, for the network {simpler!r}: paths between unlabelled digits, strong where the "
            "outputs change; the outputs along a simple and a complex path with the polynomials fitted to them; the "
            "sizes of their coefficients; and the mean size by degree over all paths. The effective degree is the sum "
            "of degree × size.",
        ),
        "training": _Picture(
            lambda theme: plot_training(story.runs, theme=theme),
            "Three panels against the training step, for both networks: "
            + "; ".join(
                f"{name!r} ends at an effective degree of {run.degrees[-1].value:.2g}, a held-out accuracy of "
                f"{run.test_accuracy[-1]:.1%} and a held-out loss of {run.test_loss[-1]:.2f}"
                for name, run in story.runs.items()
            )
            + ".",
            "While the networks train. The bands are 95% intervals.",
        ),
        "comparison": _Picture(
            lambda theme: plot_comparison(story.comparison, theme=theme),
            f"Two panels: the effective degree of {simpler!r}, {one.value:.3g}, and of {other!r}, {two.value:.3g}, "
            "with their intervals; and the difference of the two with its interval.",
            f"The two networks on the same {len(one.per_path)} paths, which serve for the difference one by one.",
        ),
        "contest": _Picture(
            lambda theme: plot_contest(contest, theme=theme),
            f"Three panels, each with a line per seed from training without to training with the penalty: held-out "
            f"accuracy {_change(contest, 'accuracy')}, held-out loss {_change(contest, 'loss')}, effective degree "
            f"{_change(contest, 'degree')}.",
            "Hasty training without and with the penalty: one line per seed, which determines the labelled digits "
            "and the initial weights, and the means with 95% intervals.",
        ),
    }


def compare_command(folder: Path, program: str = "effdeg") -> str:
    """Return the command with which a reader repeats the comparison from the folder's files."""
    weights = " ".join(f"--weights {folder / name}.pt" for name in ("gentle", "hasty"))
    return f"{program} compare effdeg.demo.digits:network {weights} --data {folder / 'digits.npy'}"


def plot_training(runs: Mapping[str, Run], *, theme: str) -> Figure:
    """Draw how the effective degree, the accuracies and the held-out loss move while networks train."""
    with drawing(theme, (10.5, 3.2)) as (colours, figure):
        degree, accuracy, loss = figure.subplots(1, 3)
        for (name, run), colour in zip(runs.items(), (colours.simple, colours.complex), strict=True):
            steps = np.array(run.steps)
            low, high = np.array([measured.interval() for measured in run.degrees]).T
            degree.fill_between(steps, low, high, color=colour, alpha=0.25, lw=0)
            degree.plot(steps, [measured.value for measured in run.degrees], "o-", color=colour, ms=3.5, label=name)
            accuracy.plot(steps, run.train_accuracy, "--", color=colour, lw=1.1, label=f"{name}, training")
            accuracy.plot(steps, run.test_accuracy, "o-", color=colour, ms=3.5, label=f"{name}, held out")
            loss.plot(steps, run.test_loss, "o-", color=colour, ms=3.5, label=name)
        degree.set_title("effective degree, 95% interval")
        accuracy.set_title("accuracy")
        loss.set_title("held-out loss")
        for axes in (degree, accuracy, loss):
            axes.set_xscale("symlog", linthresh=10)
            axes.set_xlabel("training step")
            axes.grid(color=colours.faint, lw=0.6)
            axes.legend(fontsize=8)
    return figure


def plot_contest(contest: Contest, *, theme: str) -> Figure:
    """Draw what the penalty changes, seed by seed and on average."""
    panels = {"accuracy": "held-out accuracy", "loss": "held-out loss", "degree": "effective degree"}
    with drawing(theme, (10.5, 3.2)) as (colours, figure):
        for axes, (what, title) in zip(figure.subplots(1, 3), panels.items(), strict=True):
            sides = [
                np.array([getattr(outcome, what) for outcome in side]) for side in (contest.plain, contest.penalized)
            ]
            for one, other in zip(*sides, strict=True):
                axes.plot((0, 1), (one, other), "o-", color=colours.ink, lw=0.8, ms=2.5, alpha=0.45)
            for place, values, colour in zip((-0.18, 1.18), sides, (colours.complex, colours.simple), strict=True):
                mean, stderr = mean_and_stderr(torch.from_numpy(values))
                low, high = interval(mean, stderr, count=len(values), level=0.95)
                axes.errorbar(
                    [place], [mean], [[mean - low], [high - mean]], fmt="o", ms=6, capsize=3, lw=1.6, color=colour
                )
            axes.set_xticks((0, 1), ("without", "with the penalty"))
            axes.set_xlim(-0.45, 1.45)
            axes.set_title(f"{title}: {_change(contest, what)}")
            axes.grid(axis="y", color=colours.faint, lw=0.6)
    return figure


def _change(contest: Contest, what: str) -> str:
    change = contest.difference(what)
    scale, unit = (100, " points") if what == "accuracy" else (1, "")
    middle, margin = scale * change.mean, scale * (change.high - change.low) / 2
    return f"{middle:+.2g} ± {margin:.2g}{unit}"


def _html(story: Story, contest: Contest, folder: Path, figures: dict[str, str]) -> str:
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>effdeg: which network is simpler?</title><style>{_STYLE}</style>
<h1>Which of two networks will generalize?</h1>
<p>Two networks were trained on the same {len(story.digits.labels)} labelled digits. {len(story.digits.pool)} digits
without labels served to measure how simple the learned functions are, {len(story.digits.held_out)} held-out labels to
check.</p>
{_list(story.findings())}
{_table(story)}
{figures["method"]}
{figures["training"]}
{figures["comparison"]}
<h2>Can a network be trained to be simpler?</h2>
<p>{QUESTION}</p>
{_list(contest.findings())}
{figures["contest"]}
<h2>Do it again</h2>
<pre>{html.escape(compare_command(folder))}</pre>
</html>
"""


def _figure(name: str, picture: _Picture, *, width: int) -> str:
    return (
        f'<figure><div class="scroll"><picture style="display: block; min-width: {width}px">'
        f'<source srcset="{name}-dark.png" media="(prefers-color-scheme: dark)">'
        f'<img src="{name}-light.png" alt="{html.escape(picture.alt)}"></picture></div>'
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>"
    )


def _list(sentences: list[str]) -> str:
    return "<ul>" + "\n".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _table(story: Story) -> str:
    rows = []
    for name, measured in story.comparison.measurements.items():
        run = story.runs[name]
        low, high = measured.interval()
        cells = (
            name,
            run.training.description,
            f"{measured.value:.3g} ({low:.3g} to {high:.3g})",
            f"{run.train_accuracy[-1]:.1%}",
            f"{run.test_accuracy[-1]:.1%}",
            f"{run.gap:.1%}",
        )
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = ("network", "training", "effective degree (95% interval)", "training accuracy", "held-out accuracy", "gap")
    head = "".join(f"<th>{head}</th>" for head in heads)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
