"""The figures of the pages, light and dark: some are drawn here, the others by the studies of effdeg-lab."""

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import moving
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from records import RESULTS, find_pool, find_results, keep_fitted, read_runs
from tables import MEASURES, POOLS, choose

import effdeg
from effdeg.demo._experiment import run
from effdeg.demo._page import plot_check, plot_penalty
from effdeg.functional import chebyshev_nodes, effective_degree, fit
from effdeg.io import write_json
from effdeg.plots import THEMES, open_figure, plot_method
from effdeg_lab.experiments.picking.study import plot_pools, read_all_pools
from effdeg_lab.experiments.procgen.study import make_figure
from effdeg_lab.show.figures import add_grid

FIGURES = Path(__file__).parent / "figures"
# Figures of recipes that a page shows, as RECIPE/FIGURE.
STUDIES = (
    "cifar10-contest/curves",
    "cifar10-few-labels/by-labeled",
    "estimator/degrees",
    "finetune-shifts/curves",
    "grokking/with-decay",
    "mnist-cifar/halves",
    "path-degrees/effective",
    "pnn/values",
    "tiny-imagenet-vit/curves",
    "tiny-imagenet-vit-strong/curves",
)
GREENS = {"light": "#007a59", "dark": "#35c795"}


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
    panels = {"cifar10-relatives": "ResNet-9 on CIFAR-10", "tiny-imagenet-vit": "ViT-S on Tiny-ImageNet"}
    with open_figure(theme, (8.5, 3.6)) as (colors, figure):
        inks = {"plain": colors.ink, "ed": colors.complex, "mixup": colors.simple, "cutmix": GREENS[theme]}
        for axes, (name, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            _draw_times(axes, name, inks)
            axes.set(title=title, xlabel="seconds on one H200", ylabel="test accuracy, %")
            add_grid(axes, colors)
            axes.legend(loc="lower right")
    return figure


def _draw_times(axes: Axes, name: str, inks: dict[str, str]) -> None:
    results = find_results(name)
    for method, ink in inks.items():
        each = results.find(method)
        entries = zip(*(run.metrics for run in each.runs), strict=True)
        means = [[statistics.fmean(e[k] for e in seeds) for k in ("seconds", "test_accuracy")] for seeds in entries]
        x, y = [time for time, _ in means], [100 * accuracy for _, accuracy in means]
        axes.plot(x, y, "o-", ms=3, lw=1.8, color=ink, label=f"{each.method.title}: {y[-1]:.1f}%")
        axes.plot(x[-1], y[-1], "o", ms=7, color=ink)


def plot_choices(theme: str) -> Figure:
    """Draw the accuracy of one of five models that fit: at random, by normalized ED, and the best."""
    with open_figure(theme, (6.5, 3.4)) as (colors, figure):
        axes = figure.subplots()
        for place, (title, name) in enumerate(POOLS.items()):
            models = keep_fitted(find_pool(name).models)
            random = statistics.fmean(model["test_accuracy"] for model in models)
            chosen, best = (choose(models, measure) or 0.0 for measure in (MEASURES["normalized ED"], "-test_accuracy"))
            low, high = 100 * random, 100 * best
            ink = colors.simple if chosen > random else colors.complex
            axes.plot([0, high - low], [place, place], color=colors.faint, lw=8, solid_capstyle="butt")
            axes.plot(100 * chosen - low, place, "o", ms=9, color=ink)
            label = f"  {low:.1f} → {100 * chosen:.1f}, best {high:.1f}%"
            axes.text(max(high - low, 0), place, label, va="center", color=colors.ink)
            axes.text(-1.3, place, title, va="center", ha="right")
        axes.axvline(0, color=colors.ink, lw=1)
        axes.set(xlim=(-1.2, 9), xlabel="points of test accuracy above a random choice; bar: up to the best")
        axes.set_title("One of five models, chosen by normalized ED without labels")
        axes.set_yticks([])
        axes.invert_yaxis()
        axes.spines["left"].set_visible(False)
    return figure


def plot_rescaling(theme: str) -> Figure:
    """Draw proxies of one function against the factor by which its layers are rescaled."""
    rows = json.loads((RESULTS / "rescaling.json").read_text())["rows"]
    base = next(row for row in rows if row["scale"] == 1)
    scales = [row["scale"] for row in rows]
    with open_figure(theme, (8.5, 4.2)) as (colors, figure):
        axes = figure.subplots()
        # The factors keep labels apart.
        for name, label, lift in (
            ("hessian_trace", "trace of the Hessian", 1.0),
            ("average_sharpness", "average sharpness", 0.85),
            ("sharpness@0.05", "sharpness", 1.3),
            ("parameter_norm", "parameter norm", 1.0),
            ("spectral_sum", "sum of spectral norms", 0.85),
            ("adaptive_sharpness@0.5", "adaptive sharpness", 1.0),
            ("effective_degree", "effective degree, total variation,\nJacobian, path norm", 0.72),
        ):
            along = [row[name] / base[name] for row in rows]
            color = colors.simple if name in {"effective_degree", "adaptive_sharpness@0.5"} else colors.complex
            axes.plot(scales, along, "o-", ms=3, lw=2.4 if name == "effective_degree" else 1.2, color=color)
            axes.text(18.5, along[-1] * lift, label, color=color, va="center")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(right=170)
        axes.set_ylim(bottom=0.5)
        axes.set_xticks(scales, [f"{scale:g}" if scale >= 1 else f"1/{1 / scale:g}" for scale in scales])
        axes.set(
            title="one function, rescaled: value relative to s = 1", xlabel="s: one layer times s, the next by 1/s"
        )
        axes.grid(color=colors.faint, lw=0.6)
    return figure


def plot_returns(theme: str) -> Figure:
    """Draw the returns of Procgen's games that were run."""
    return make_figure([find_results(f"procgen-{game}") for game in ("dodgeball", "starpilot")]).draw(theme)


def plot_picks(theme: str) -> Figure:
    """Draw the accuracies of a random network, of the pick and of the best, for all pools."""
    return plot_pools(read_all_pools(read_runs()), theme)


OWN: dict[str, Callable[[str], Figure]] = {
    "meaning": plot_meaning,
    "accuracy-time": plot_time,
    "choices": plot_choices,
    "rescaling": plot_rescaling,
    "procgen-returns": plot_returns,
    "picks": plot_picks,
}


def list_names() -> list[str]:
    """List all figures."""
    return [*OWN, *STUDIES, "demo", "training-paths"]


def draw(names: Iterable[str]) -> None:
    """Draw figures, each given by its name, as RECIPE or as RECIPE/FIGURE."""
    for name in names:
        if name == "demo":
            draw_demo()
            continue
        if name == "training-paths":
            moving.draw(FIGURES)
            continue
        for theme in THEMES:
            if name in OWN:
                OWN[name](theme).savefig(FIGURES / f"{name}-{theme}.png")
                continue
            recipe, _, wanted = name.partition("/")
            results = find_results(recipe)
            for figure in results.recipe.study.figures(results):
                if f"{recipe}/{figure.name}" in STUDIES and wanted in {"", figure.name}:
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
