"""The figures of the pages, light and dark: some are drawn here, the others by the studies of effdeg-lab."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import moving
import torch
from matplotlib.figure import Figure
from records import RESULTS, find_results
from tables import find_picks

import effdeg
from effdeg.demo._experiment import run
from effdeg.demo._page import plot_check, plot_penalty
from effdeg.functional import chebyshev_nodes, effective_degree, fit
from effdeg.io import write_json
from effdeg.plots import THEMES, open_figure, plot_method
from effdeg_lab.core.results import MethodRuns
from effdeg_lab.experiments.procgen.study import make_figure
from effdeg_lab.show.figures import add_grid, name_rows, styles_of

FIGURES = Path(__file__).parent / "figures"
# Figures of recipes that a page shows, as RECIPE/FIGURE.
STUDIES = (
    "cifar10-contest/curves",
    "estimator/degrees",
    "grokking/with-decay",
    "mnist-cifar/halves",
    "path-degrees/effective",
    "pnn/values",
    "tiny-imagenet-vit/curves",
    "tiny-imagenet-vit-strong/curves",
)


def plot_meaning(theme: str) -> Figure:
    """Draw what the number is: a line, a smooth step and a steep step, each with its effective degree."""
    alpha = chebyshev_nodes(200)
    outputs = {
        "a line": alpha,
        "a smooth step": torch.sigmoid(12 * (alpha - 0.5)),
        "a steep step": torch.sigmoid(60 * (alpha - 0.5)),
    }
    with open_figure(theme, (6, 2.9)) as (colors, figure):
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (name, values), ink in zip(panels, outputs.items(), ("simple", "ink", "complex"), strict=True):
            degree = effective_degree(fit(values[:, None], alpha, degree=40)).item()
            axes.plot(alpha.tolist(), values.tolist(), color=getattr(colors, ink), lw=3)
            axes.set_title(f"{name}\nED {degree:.1f}", fontsize=15, color=getattr(colors, ink))
            axes.set_xticks([0, 1], ["one\nexample", "another"], fontsize=11)
            axes.set_yticks([0, 1])
            axes.tick_params(axis="y", labelsize=11)
            add_grid(axes, colors)
        panels[0].set_ylabel("model's output", fontsize=12)
    return figure


def plot_time(theme: str) -> Figure:
    """Draw test accuracy against training time for plain training, ED, mixup and CutMix."""
    recipes = {"cifar10-relatives": "ResNet-9 on CIFAR-10", "tiny-imagenet-vit": "ViT-S on Tiny-ImageNet"}
    with open_figure(theme, (8.5, 3.6)) as (colors, figure):
        for axes, (name, title) in zip(figure.subplots(1, 2), recipes.items(), strict=True):
            results = find_results(name)
            styles = styles_of(results.recipe, theme)
            for method in map(results.find, ("plain", "ed", "mixup", "cutmix")):
                entries = zip(*(run.metrics for run in method.runs), strict=True)
                means = [
                    [statistics.fmean(e[k] for e in seeds) for k in ("seconds", "test_accuracy")] for seeds in entries
                ]
                x, y = [time for time, _ in means], [100 * accuracy for _, accuracy in means]
                color = styles[method.method.name].color
                axes.plot(x, y, "o-", ms=3, lw=1.8, color=color, label=f"{method.method.title}: {y[-1]:.1f}%")
                axes.plot(x[-1], y[-1], "o", ms=7, color=color)
            axes.set(title=title, xlabel="seconds on one H200", ylabel="test accuracy, %")
            add_grid(axes, colors)
            axes.legend(loc="lower right")
    return figure


def plot_picks(theme: str) -> Figure:
    """Draw the accuracies of a random network, of the pick and of the best, for all pools."""
    picks = find_picks()
    with open_figure(theme, (7, 0.9 + 0.3 * len(picks))) as (colors, figure):
        axes = figure.subplots()
        for row, cells in enumerate(picks.values()):
            random, pick, best = map(float, cells[:3])
            axes.plot([random, best], [row, row], color=colors.faint, lw=6, solid_capstyle="butt", zorder=1)
            axes.plot(random, row, "o", color=colors.ink, mfc=colors.ground, label="" if row else "a random one")
            axes.plot(best, row, "|", ms=13, mew=2, color=colors.ink, label="" if row else "the best")
            axes.plot(pick, row, "o", ms=7, color=colors.simple, label="" if row else "the pick")
        name_rows(axes, colors, list(picks))
        axes.set(xlim=(0, 100), xlabel="accuracy of one of five networks, %")
        figure.legend(loc="outside upper right", ncols=3, frameon=False)
    return figure


def plot_few_labels(theme: str) -> Figure:
    """Draw the accuracies with few labels, a dot per seed."""
    parts = find_results("cifar10-few-labels").split()
    names = ("plain", "mixup", "cutmix", "ed", "ed-teacher", "ed-copies", "uda", "fixmatch")
    panels = {f"{part.point.partition(' ')[2]} labels": [part.find(name) for name in names] for part in parts}
    return plot_seeds(theme, panels, "test_accuracy")


def plot_shifts(theme: str) -> Figure:
    """Draw the accuracies of networks fine-tuned on photos, a dot per seed."""
    results = find_results("finetune-shifts")
    titles = {"test_accuracy": "photos", "shifted.art_painting": "paintings", "shifted.sketch": "sketches"}
    methods = [results.find(name) for name in ("plain", "mixup", "ed", "ed-self")]
    return plot_seeds(theme, dict.fromkeys(titles.values(), methods), *titles)


def plot_seeds(theme: str, panels: dict[str, Sequence[MethodRuns]], *keys: str) -> Figure:
    """Draw the values of methods in some panels: a row per method, a small dot per seed, a large one for the mean."""
    rows = len(next(iter(panels.values())))
    with open_figure(theme, (8, 0.9 + 0.3 * rows)) as (colors, figure):
        for place, (axes, (title, methods)) in enumerate(zip(figure.subplots(1, 3), panels.items(), strict=True)):
            inks = {"plain": colors.ink, "ed": colors.simple, "mixup": colors.complex, "cutmix": GREENS[theme]}
            for row, method in enumerate(methods):
                values = 100 * method.values(keys[place % len(keys)])
                ink = inks.get(method.method.name, GRAYS[theme])
                axes.plot(values, [row] * len(values), "o", ms=3, color=ink, alpha=0.6)
                axes.plot(values.mean(), row, "o", ms=8, color=ink)
            name_rows(axes, colors, [method.method.title if place == 0 else "" for method in methods])
            axes.set_title(title)
        figure.supxlabel("accuracy, %", fontsize=10)
    return figure


GREENS = {"light": "#007a59", "dark": "#35c795"}
GRAYS = {"light": "#68717a", "dark": "#98a2ad"}


def plot_returns(theme: str) -> Figure:
    """Draw the returns of Procgen's games that were run."""
    return make_figure([find_results(f"procgen-{game}") for game in ("dodgeball", "starpilot")]).draw(theme)


DRAWN: dict[str, Callable[[str], Figure]] = {
    "meaning": plot_meaning,
    "accuracy-time": plot_time,
    "picks": plot_picks,
    "few-labels": plot_few_labels,
    "shifts": plot_shifts,
    "procgen-returns": plot_returns,
}


def list_names() -> list[str]:
    """List all figures."""
    return [*DRAWN, *STUDIES, "demo", "training-paths"]


def draw(names: Iterable[str]) -> None:
    """Draw figures, each given by its name, as RECIPE or as RECIPE/FIGURE."""
    for name in names:
        if name == "demo":
            draw_demo()
        elif name == "training-paths":
            moving.draw(FIGURES)
        elif name in DRAWN:
            for theme in THEMES:
                DRAWN[name](theme).savefig(FIGURES / f"{name}-{theme}.png")
        else:
            recipe, _, wanted = name.partition("/")
            results = find_results(recipe)
            for figure in results.recipe.study.figures(results):
                if f"{recipe}/{figure.name}" in STUDIES and wanted in {"", figure.name}:
                    for theme in THEMES:
                        figure.draw(theme).savefig(FIGURES / f"{recipe}-{figure.name}-{theme}.png")


def draw_demo() -> None:
    """Run the demo's experiment, keep its numbers, and draw the method, the pick's check and what the penalty does."""
    outcome = run(seed=0, report=print)
    write_json(RESULTS / "demo" / "demo.json", outcome.to_dict())
    pool = outcome.pools[0]
    trace = effdeg.trace(pool.choice.model, pool.digits.pool)
    for theme in THEMES:
        plot_method(trace, theme=theme).savefig(FIGURES / f"method-{theme}.png")
        plot_check(pool, theme=theme).savefig(FIGURES / f"demo-check-{theme}.png")
        plot_penalty(outcome, theme=theme).savefig(FIGURES / f"demo-penalty-{theme}.png")
