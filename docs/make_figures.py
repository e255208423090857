"""Draw the figures of the README and fill the tables of the docs, from the demo and from ``results/``.

    python docs/make_figures.py                 # everything; trains the demo's networks
    python docs/make_figures.py lab grokking    # figures of effdeg-lab's runs and of a recipe alone, in seconds
    python docs/make_figures.py speed           # the figure of a step's time
    python docs/make_figures.py relatives       # the figure of the penalty's relatives
    python docs/make_figures.py procgen         # the figure of agents' returns, a panel for each game
    python docs/make_figures.py which-model     # the figures of pools of two architectures
    python docs/make_figures.py tables          # no figures

Tables and numbers are always filled in. A page marks where: ``<!-- name -->``, a new line, the table, ``<!-- end -->``;
within a sentence ``<!-- number … -->1.23<!-- end -->``. ``lab_tables.fill`` explains the marks. All else is written by
hand.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import along_training
import bounds
import lab_tables
import relatives
import speed
import which_model
from matplotlib.figure import Figure

from effdeg.demo._experiments import PenaltyEffect, Scores, apply_penalty, select_network
from effdeg.demo._page import plot_penalty
from effdeg.io import write_json
from effdeg.plots import THEMES, open_figure, plot_method
from effdeg.pools import Ranking, Statistic, rank, read_table
from effdeg.proxies import larger_is_better
from effdeg_lab.experiments.pools.random_search import RandomPool
from effdeg_lab.experiments.procgen.study import make_figure
from effdeg_lab.experiments.shifts.study import Shifts

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures"
BENCHMARKS = ROOT / "results" / "benchmarks"
CONTEST = ROOT / "results" / "demo" / "contest.json"
AXES = ("width", "lr", "weight_decay")
# Of the pool of small networks, each at the radius with the highest correlation.
SHOWN = (
    "effective_degree",
    "total_variation",
    "sharpness",
    "adaptive_sharpness",
    "path_norm",
    "jacobian_norm",
    "-mixup_margin",
    "parameter_norm",
)
TRAINING = {"step_over_plain", "step_over_same_size", "many_classes", "joined_forward", "step_memory"}
# Recipes whose figures are on a page as they are; RECIPE/FIGURE is one of them.
STUDIES = (
    "cifar10-contest",
    "cifar10-estimators",
    "cifar10-few-labels/by-labeled",
    "cifar10-few-labels/leads",
    "cifar10-relatives/leads",
    "digits-estimators",
    "estimator",
    "glue-cola",
    "glue-mrpc",
    "glue-rte",
    "grokking",
    "mnist-cifar",
    "path-degrees",
    "pnn",
    "tiny-imagenet-vit/curves",
    "tiny-imagenet-vit-strong/curves",
)


def draw() -> None:
    """Draw the demo's figures."""
    FIGURES.mkdir(exist_ok=True)
    selection = select_network(seed=0, report=print)
    effect = apply_penalty(seed=0, report=print)
    CONTEST.parent.mkdir(parents=True, exist_ok=True)
    write_json(CONTEST, effect.to_dict())
    simpler = selection.comparison.ranking[0]
    for theme in THEMES:
        plot_method(selection.traces[simpler], theme=theme).savefig(FIGURES / f"method-{theme}.png")
        plot_penalty(effect, theme=theme).savefig(FIGURES / f"contest-{theme}.png")
        plot_rescaling(theme).savefig(FIGURES / f"rescaling-{theme}.png")
        plot_pool(theme).savefig(FIGURES / f"pool-{theme}.png")
    draw_lab()
    draw_speed()
    draw_relatives()
    draw_procgen()
    draw_which_model()
    draw_studies([*STUDIES, *lab_tables.list_run(Shifts), *lab_tables.list_run(RandomPool)])


def draw_which_model() -> None:
    """Draw the gap of the models of two architectures against four measures."""
    for theme in THEMES:
        for name, figure in which_model.plot(lab_tables.read_grids(), theme).items():
            figure.savefig(FIGURES / f"which-model-{name}-{theme}.png")


def draw_studies(names: Iterable[str]) -> None:
    """Draw the figures of recipes that were run, each given as RECIPE or RECIPE/FIGURE."""
    FIGURES.mkdir(exist_ok=True)
    for (name, _, figure), theme in product([each.partition("/") for each in names], THEMES):
        results = lab_tables.results(name)
        for each in results.recipe.study.figures(results):
            if figure in {"", each.name}:
                each.draw(theme).savefig(FIGURES / f"{name}-{each.name}-{theme}.png")


def plot_rescaling(theme: str) -> Figure:
    """Plot proxies of one function against the factor by which its layers are rescaled."""
    rows = json.loads((ROOT / "results" / "rescaling.json").read_text())["rows"]
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
            stays = name in {"effective_degree", "adaptive_sharpness@0.5"}
            color = colors.simple if stays else colors.complex
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


def pool() -> Ranking:
    """Rank the measures on the pool of small networks."""
    table = read_table(ROOT / "results" / "pools" / "digits.csv")
    measures = [name for name in table if name not in {*AXES, "gap"}]
    turned = [f"-{name}" if larger_is_better(name) else name for name in measures]
    # Weight decay hardly matters here: networks that differ in it alone are nearly copies, and resampled together.
    return rank(table, target="gap", measures=turned, hyperparameters=AXES, clusters=AXES[:2])


def plot_pool(theme: str) -> Figure:
    """Plot the gap of the pool of small networks against some measures."""
    ranked = pool()
    kinds = [[name for name in ranked.scores if name.partition("@")[0] == kind] for kind in SHOWN]
    best = [max(names, key=lambda name: ranked.scores[name].pearson.value) for names in kinds]
    return ranked.plot(measures=best, theme=theme)


def pool_table() -> str:
    """Tabulate the ranking of the measures."""
    ranked = pool()
    lines = [
        "| measure | Pearson | Kendall's τ | Ψ | sign error, mean / worst | effective degree against it, by τ |",
        "|---|---|---|---|---|---|",
    ]
    for name, score in ranked.scores.items():
        cells = [*map(str, (score.pearson, score.kendall, score.psi))]
        cells.append(f"{score.sign_error.value:.2f} / {score.worst_sign_error.value:.2f}")
        low, high = (0, 0) if name == "effective_degree" else ranked.compare("effective_degree", name).interval
        cells.append("better" if low > 0 else "worse" if high < 0 else "–")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def strata_table() -> str:
    """Tabulate the paper's four measures on two pools: each by itself, within networks, and as if they were one."""
    pools = lab_tables.read_grids()
    rows = [{**model, "network": label} for label, models in pools.items() for model in models]
    families = {f"`{name}`": f"{name}@*" for name in ("sharpness", "adaptive_sharpness")}
    families["`effective_degree`"] = list(lab_tables.DEGREES)
    known = [name for name in rows[0] if name.startswith(("sharpness@", "adaptive_sharpness@"))]
    settings: dict[str, Any] = {"measures": [*lab_tables.DEGREES, *known, "parameter_norm"], "variants": families}
    within = rank(rows, hyperparameters=["batch", "lr"], strata=["network"], **settings)
    mixed = rank(rows, hyperparameters=["batch", "lr", "network"], **settings)
    columns = [*within.strata.values(), within, mixed]
    heads = [*pools, "within networks", "all as one"]
    lines = [f"| Pearson's r with the gap | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for family in [*families, "parameter_norm"]:
        cells = []
        for each in columns:
            if family in families:
                best = each.best[family]["pearson"]
                corrected = Statistic(best.corrected, best.interval)
                cells.append(f"{best.value:z.2f} → {corrected}, `{best.variant}`")
            else:
                cells.append(str(each.scores[family].pearson))
        lines.append(f"| {family if family in families else f'`{family}`'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def proxy_costs() -> str:
    """Tabulate the cost of proxies."""
    case = speed.read_cases()["proxy_costs"]
    lines = [f"| in units of one gradient ({case['detail']}) | ResNet-18 | ViT-Tiny |", "|---|---|---|"]
    for row in case["rows"]:
        cells = ["not defined" if row[kind] is None else _two_digits(row[kind]) for kind in ("ResNet-18", "ViT-Tiny")]
        if row is case["rows"][0]:
            cells[0] += " (cold)"  # the very first to run
        name = row["proxy"] if " " in row["proxy"] else f"`{row['proxy']}`"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _two_digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.2g}"


def shared() -> str:
    """Tabulate what sharing passes saves."""
    lines = ["| together / the most expensive alone | aim | |", "|---|---|---|"]
    for name in ("shared_paths", "shared_paths_with_kinks", "shared_outputs"):
        case = speed.read_cases()[name]
        lines.append(f"| **{case['ratio']:.3g}** | {case['target']} | {case['detail']} |")
    return "\n".join(lines) + "\n"


def baseline_costs() -> str:
    """Tabulate what a training step costs with each baseline; each case has a plain step of its own to divide by."""
    cases = speed.read_cases()
    case = cases["baseline_costs"]
    rows = {(row["method"], row["model"]): row for row in case["rows"]}
    for name in ("relative_costs_resnet", "relative_costs_vit"):
        for row in cases[name]["rows"] if name in cases else ():
            rows.setdefault((row["method"], row["model"]), row)
    lines = [f"| step / plain step ({case['detail']}) | ResNet-18 | ViT-Tiny |", "|---|---|---|"]
    for method in dict.fromkeys(method for method, _ in rows):
        found = [rows.get((method, kind)) for kind in ("ResNet-18", "ViT-Tiny")]
        cells = [f"**{row['ratio']:.2f}** ({row['milliseconds']:.2f} ms)" if row else "" for row in found]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_lab() -> None:
    """Draw the figures of the lab's runs: the paper's four measures of the pool, degree and gap."""
    pool = lab_tables.pool("cifar10-resnet18-pool")
    assert pool.ranking is not None
    for theme in THEMES:
        measures = pool.ranking.plot([score.measure for score in pool.papers], theme=theme)
        along = along_training.plot(lab_tables.results("digits-methods"), theme)
        for name, figure in {"lab-pool": measures, "along-training": along}.items():
            figure.savefig(FIGURES / f"{name}-{theme}.png")


def draw_speed() -> None:
    """Draw where the time of a training step goes, if it was profiled."""
    for theme in THEMES if speed.read_rows("step_profile") else ():
        speed.plot(theme).savefig(FIGURES / f"{speed.NAME}-{theme}.png")


def draw_relatives() -> None:
    """Draw the losses, targets and points of the penalty and its relatives."""
    for theme in THEMES:
        relatives.plot(theme).savefig(FIGURES / f"{relatives.NAME}-{theme}.png")


def draw_procgen() -> None:
    """Draw the returns of Procgen's games that were run, a panel for each."""
    games = lab_tables.read_games()
    for theme in THEMES if games else ():
        make_figure(games).draw(theme).savefig(FIGURES / f"procgen-returns-{theme}.png")


def earlier_runs() -> str:
    """Tabulate two longer runs that are older than effdeg-lab."""
    lines = [
        "| CIFAR-10, ViT-Tiny, 150 epochs, one seed | test accuracy | training accuracy | effective degree | step |",
        "|---|---|---|---|---|",
    ]
    for name, title in (("plain", "without"), ("penalty", "with the penalty")):
        record = json.loads((ROOT / "results" / "cifar10" / f"{name}.json").read_text())
        measured = record["effective_degree"]
        lines.append(
            f"| {title} | **{record['test_accuracy']:.2%}** | {record['train_accuracy']:.1%} | "
            f"{measured['value']:.2f} ± {measured['stderr']:.2f} | {record['milliseconds_per_step']:.2f} ms |"
        )
    return "\n".join(lines) + "\n"


def contest_findings() -> str:
    """Describe what the demo's experiment with the penalty found."""
    record = json.loads(CONTEST.read_text())
    sides = {side: [Scores(**each) for each in record[side]] for side in ("plain", "penalized")}
    return "\n".join(f"- {finding}" for finding in PenaltyEffect(record["seeds"], **sides).findings()) + "\n"


def render_pages() -> dict[Path, str]:
    """Return the text of every page with what is made from ``results/`` between its marks."""
    blocks: dict[str, Callable[[], str]] = {
        "benchmarks": benchmarks,
        "conditioning": conditioning,
        "damping": damping,
        "training": training,
        "earlier-runs": earlier_runs,
        "contest": contest_findings,
        "pool": pool_table,
        "strata": strata_table,
        "proxy_costs": proxy_costs,
        "shared": shared,
        "baseline_costs": baseline_costs,
        "relatives": relatives.make_table,
        "speedups-vit": lambda: speed.make_speedup_table("vit"),
        "speedups-resnet": lambda: speed.make_speedup_table("resnet"),
        "step-profile": speed.make_profile,
        "step-floors": speed.make_floor_table,
        "kernels": speed.make_kernel_table,
        "kernel-versions": speed.make_version_table,
        "networks-at-once": speed.make_network_table,
        "ppo-parts": speed.make_ppo_table,
        "bounds": bounds.polynomial_table,
        "network-bounds": lambda: bounds.network_table(lab_tables.read_digits_pool()),
    }

    def fill(found: re.Match[str]) -> str:
        mark = found[2]
        return found[1] + (blocks[mark]() if mark in blocks else lab_tables.fill(mark)) + found[3]

    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "findings").glob("*.md")]
    pattern = re.compile(r"(<!-- (?!end )(.+?) -->\n?).*?(<!-- end -->)", re.DOTALL)
    return {page: pattern.sub(fill, page.read_text()) for page in pages}


def benchmarks() -> str:
    """Tabulate the benchmarks' ratios."""
    records = {name: json.loads((BENCHMARKS / f"{name}.json").read_text()) for name in ("cpu", "gpu")}
    where = [record["environment"] for record in records.values()]
    lines = [
        "| ratio | aim | " + " | ".join(f"{env['processor']} (torch {env['torch']})" for env in where) + " |",
        "|---|---|---|---|",
    ]
    for name, case in records["cpu"]["cases"].items():
        if "ratio" in case:
            found = [record["cases"].get(name) for record in records.values()]
            aims = list(dict.fromkeys(each["target"] for each in found if each))
            cells = [f"**{each['ratio']:.3g}** ({each['detail']})" if each else "a matter of the CPU" for each in found]
            lines.append(f"| {case['name']} | {', on a GPU '.join(aims)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def training() -> str:
    """Tabulate what regularizers add to a training step."""
    record = json.loads((BENCHMARKS / "gpu.json").read_text())
    environment = record["environment"]
    lines = [f"| {environment['processor']}, torch {environment['torch']} | ratio | aim | |", "|---|---|---|---|"]
    for name, case in record["cases"].items():
        if name in TRAINING:
            lines.append(f"| {case['name']} | **{case['ratio']:.4g}** | {case['target']} | {case['detail']} |")
    return "\n".join(lines) + "\n"


def conditioning() -> str:
    """Tabulate the condition numbers of the fit."""
    return _rows("conditioning", lambda head: ".2g" if "," in head else "")


def damping() -> str:
    """Tabulate what damping does to the penalty."""
    formats = {"damping": "g", "change of the value": ".2%", "gradient, rms": ".3g", "gradient, largest": ".3g"}
    return _rows("damping", lambda head: formats.get(head, ""))


def _rows(case: str, spec: Callable[[str], str]) -> str:
    rows = json.loads((BENCHMARKS / "cpu.json").read_text())["cases"][case]["rows"]
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(format(row[head], spec(head)) for head in heads) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Draw the named figures, or all of them, and fill the tables."""
    if not names:
        draw()
    if "lab" in names:
        draw_lab()
    if "speed" in names:
        draw_speed()
    if "relatives" in names:
        draw_relatives()
    if "procgen" in names:
        draw_procgen()
    if "which-model" in names:
        draw_which_model()
    own = {"lab", "speed", "relatives", "procgen", "which-model", "tables"}
    draw_studies(name for name in names if name not in own)
    for page, text in render_pages().items():
        page.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
