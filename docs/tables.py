"""The tables of the pages and the numbers in sentences, by the name in their mark, each made from ``results/``."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
from records import (
    RESULTS,
    cut,
    find_models,
    find_results,
    keep_fitted,
    merge,
    read_cases,
    read_column,
    read_runs,
    write_table,
)

from effdeg_lab import all_recipes
from effdeg_lab.experiments.glue import count_exceptions
from effdeg_lab.experiments.picking.study import make_overview, measure_gains, read_all_pools, read_pools
from effdeg_lab.experiments.pools.study import rank_within
from effdeg_lab.show.columns import count_seeds, format_difference, format_points
from effdeg_lab.show.tables import escape_markdown

# The pools of models by the title of their architecture: two grids, and three random searches.
POOLS = {
    "ResNet-18": "cifar10-resnet18-pool",
    "ResNet-9": "cifar10-random-pool",
    "ViT-Tiny": "cifar10-vit-pool",
    "DeiT-Tiny, fine-tuned": "finetune-pool",
    "MLP": "cifar10-random-mlps",
}
# Measures, by what a page calls them; of test images unless something else is said. A minus: larger is better.
MEASURES = {
    "normalized ED": "effective_degree_normalized_test",
    "raw ED": "effective_degree_test",
    "decision regions": "decision_regions_test",
    "total variation": "total_variation_test",
    "confidence": "-confidence_test",
    "normalized ED, training images": "effective_degree_normalized",
    "total variation, training images": "total_variation",
    "average sharpness, labels": "average_sharpness@0.01",
    "sharpness 0.05, labels": "sharpness@0.05",
    "margin, labels": "-margin@50",
    "parameter norm": "parameter_norm",
    "training accuracy": "train_accuracy",
}
GRID_MEASURES = {
    "normalized ED, training images": "effective_degree_normalized",
    "normalized ED, random pixels": "effective_degree_normalized_random_pixels",
    "raw ED, training images": "effective_degree",
    "raw ED, random pixels": "effective_degree_random_pixels",
    "total variation, training images": "total_variation",
    "adaptive sharpness 1, labels": "adaptive_sharpness@1",
    "margin, labels": "-margin@50",
    "training accuracy": "train_accuracy",
}
README_PICKS = ("CIFAR-10", "CIFAR-10, ViT", "CIFAR-10 corrupted", "PACS", "RTE")
GUIDE_PICKS = (
    *(*README_PICKS, "CIFAR-10, ResNet-9", "MRPC", "PACS paintings", "PACS cartoons", "PACS sketches"),
    *("Tiny-ImageNet", "ImageNet"),
)
LABELS = {n: f"ResNet-9, {n:,} labels" for n in (250, 1000, 4000)}
TINY = {"original": "tiny-imagenet-vit", "strong": "tiny-imagenet-vit-strong"}
GAMES = ("Dodgeball", "StarPilot")
TEXTS = {
    "RTE": "glue-rte",
    "MRPC": "glue-mrpc",
    "CoLA": "glue-cola",
    "RTE, mpnet": "glue-rte@model=all-mpnet-base-v2",
}
NOISY = "cifar10-noisy-labels@model=resnet9-8,batch=128,lr=0.1,augment=none"
# Proxies whose cost is shown, each for its family.
COSTS = (
    *("effective_degree_normalized", "sharpness@0.05", "average_sharpness@0.01", "spectral_product"),
    *("margin@10", "jacobian_norm"),
)


@cache
def find_picks() -> dict[str, tuple[str, ...]]:
    """Return what ``pick`` and its rivals choose in all pools, by the name of the pool with the number of networks.

    Of pools of one kind of network, only those that decided the default.
    """
    rows = make_overview(read_all_pools(read_runs())).rows
    return {name: tuple(cells) for name, *cells in rows if "," not in name or name.startswith("CIFAR-10, ")}


def tabulate_picks(columns: Mapping[str, int], names: Iterable[str] = ()) -> str:
    """Tabulate what picking gains: columns of the overview by their new heads, of all pools or of those named."""
    rows = [
        [name, *(cells[place] for place in columns.values())]
        for name, cells in find_picks().items()
        if not names or name.rpartition(" (")[0] in names
    ]
    return write_table(["one of five that fit", *columns], rows)


def tabulate_pick_examples() -> str:
    """Tabulate what picking gains from fewer examples, on test images like the training images."""
    counts, rows = (250, 500, 2000), []
    pools = [pool for name in ("cifar10", "tiny-imagenet") for pool in read_pools(find_results(f"picking-{name}"))]
    for pool in (pool.take(pool.fits) for pool in pools):
        title = f"{pool.name} ({len(pool)})"
        if pool.predicted.shape[1] == counts[-1] and title in find_picks() and "corrupted" not in title:
            parts = [
                replace(pool, **{key: getattr(pool, key)[:, :n] for key in ("predicted", "changed", "correct")})
                for n in counts
            ]
            rows.append([
                title,
                *(f"{gain.rules['pick'].share:.0f}" for part in parts if (gain := measure_gains(part))),
            ])
    return write_table(["gain, %, from this many examples", *(f"{n:,}" for n in counts)], rows)


def tabulate_accuracies() -> str:
    """Tabulate test accuracies with the penalty and without."""
    tables = {"ViT-Tiny, 300 epochs": ("cifar10-contest", 1), "ResNet-9, equal time": ("cifar10-relatives", 1)}
    tables |= {title: ("cifar10-few-labels", 1 + 3 * place) for place, title in enumerate(LABELS.values())}
    names = {
        "plain": ("Plain", "Baseline"),
        "ED": ("ED", "ED, labels only"),
        "mixup": ("Mixup",),
        "CutMix": ("CutMix",),
    }
    rows = []
    for title, (name, number) in tables.items():
        found = read_column(name, number, "here, %")
        cells = [next((found[row] for row in known if row in found), "–") for known in names.values()]
        rows.append([title, *(cell.partition(" ")[0] for cell in cells)])
    return write_table(["test accuracy on CIFAR-10, %", *names], rows)


def tabulate_variants() -> str:
    """Tabulate variants of ED after 100 epochs, each by its table of the paper."""
    rows = {
        "Baseline": ("random-pixels", "Baseline"),
        "ED": ("random-pixels", "ED"),
        "Table 5: between images of noise": ("random-pixels", "ED (random pixels)"),
        "Table 6: Legendre polynomials": ("basis", "Legendre"),
        "Table 8: Chebyshev nodes": ("sampling", "4 nodes, degree 3: Chebyshev"),
    }
    heads = ("paper, %", "here, %", "ED")
    columns = [
        {title: read_cell(f"cifar10-{name}@epochs=100", 1, row, head) for title, (name, row) in rows.items()}
        for head in heads
    ]
    return write_table(["100 epochs", *heads], [[title, *(column[title] for column in columns)] for title in rows])


@cache
def rank_pool(title: str) -> Mapping[str, Any]:
    """Return the scores of measures among the models of a pool that fit, within recipes with mixup and without."""
    fitted = keep_fitted(find_models(POOLS[title]))
    known = [name for name in MEASURES.values() if name.removeprefix("-") in fitted[0]]
    grid = find_results(POOLS[title]).recipe.grid
    return rank_within(fitted, known, ["recipe"], [axis for axis in grid if axis != "weight_decay"]).scores


def tabulate_pools() -> str:
    """Tabulate Kendall's τ of measures with the gap, among the models of each pool that fit."""
    rows = []
    for label, name in MEASURES.items():
        taus = [rank_pool(title)[name].kendall if name in rank_pool(title) else None for title in POOLS]
        stars = ["" if tau is None or tau.interval[0] <= 0 <= tau.interval[1] else r"\*" for tau in taus]
        rows.append([label, *(f"{tau.value:.2f}{star}" if tau else "–" for tau, star in zip(taus, stars, strict=True))])
    counted = [f"{title} ({len(keep_fitted(find_models(name)))})" for title, name in POOLS.items()]
    return write_table(["Kendall's τ with the gap", *counted], rows)


def tabulate_grids() -> str:
    """Tabulate Pearson's r, which the paper reports, in its two pools: among all models, and those that fit."""
    pools = {title: find_models(POOLS[title]) for title in ("ResNet-18", "ViT-Tiny")}
    frames = {
        f"{title}, {len(kept)}": pd.DataFrame(kept)
        for title, all_ in pools.items()
        for kept in (all_, keep_fitted(all_))
    }
    rows = []
    for label, name in GRID_MEASURES.items():
        sign = -1 if name.startswith("-") else 1
        rows.append([
            label,
            *(f"{sign * frame[name.removeprefix('-')].corr(frame['gap']):.2f}" for frame in frames.values()),
        ])
    return write_table(["Pearson's r with the gap", *frames], rows)


def tabulate_texts() -> str:
    """Tabulate the scores of GLUE: plain training in percent, other methods as differences in points."""
    tasks = [find_results(name) for name in TEXTS.values()]
    rows = [["Plain, %", *(format_points(task.find("plain").spread("score")) for task in tasks)]]
    for method in tasks[0].recipe.methods[1:8]:
        differences = [task.difference(task.find(method.name), key="score") for task in tasks]
        rows.append([method.title, *map(escape_markdown, map(format_difference, differences))])
    rows.append(["seeds", *map(count_seeds, tasks)])
    (count, above, below), (_, *at_once) = (count_exceptions(tasks, at_once=at_once) for at_once in (False, True))
    note = (
        f"Of all {count} differences, {above} intervals lie above zero and {below} below; corrected for their number "
        f"(Bonferroni), {at_once[0]} and {at_once[1]}.\n"
    )
    return write_table(["against Plain, points", *TEXTS], rows) + "\n" + note


def tabulate_noisy_labels() -> str:
    """Tabulate what networks make of wrong labels: means over seeds."""
    names = {"Plain": NOISY, "Mixup": NOISY, "ED": f"{NOISY},epochs=11"}
    columns = {title: find_results(name).split()[0].find(title.lower()) for title, name in names.items()}
    keys = {
        "test accuracy, %": "test_accuracy",
        "accuracy on the given labels, %": "train_accuracy",
        "finds wrong labels (AUROC, %): loss": "wrong_labels.loss",
        "loss, mean over training": "wrong_labels.mean_loss",
        "area under the margin": "wrong_labels.area_under_margin",
        "ED of paths to random examples": "wrong_labels.degree",
        "ED of paths within a label, anchored": "wrong_labels.degree_of_label",
    }
    rows = [
        [label, *(f"{100 * runs.values(key).mean():.1f}" for runs in columns.values())] for label, key in keys.items()
    ]
    return write_table(["mean of three seeds", *columns], rows)


def tabulate_courses() -> str:
    """Tabulate Pearson's correlation of ED and the gap over the epochs of one run, and of their changes."""
    rows = []
    for name, title in (("digits-methods", "100 digits"), ("cifar10-contest", "CIFAR-10")):
        for method in ("plain", "mixup", "ed"):
            courses = [read_course(run.metrics) for run in find_results(name).find(method).runs]
            courses = [course for course in courses if course.shape[1] > 2]
            cells = []
            for kind in (courses, [np.diff(course) for course in courses]):
                least, middle, most = np.quantile([np.corrcoef(course)[0, 1] for course in kind], [0, 0.5, 1])
                cells.append(f"{middle:.2f} ({least:.2f} to {most:.2f})")
            rows.append([f"{title}, {method if method != 'ed' else 'ED'}", *cells])
    return write_table(["median (least to largest)", "correlation of ED and gap", "of their changes"], rows)


def read_course(metrics: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Return the effective degrees of a run and its gaps, at the epochs at which both were measured."""
    entries = [entry for entry in metrics if entry.get("effective_degree") and "train_accuracy" in entry]
    pairs = [
        (entry["effective_degree"]["value"], entry["train_accuracy"] - entry["test_accuracy"]) for entry in entries
    ]
    return np.array(pairs, dtype=float).reshape(-1, 2).T


def tabulate_case(
    case: str, columns: Mapping[str, str], query: str, machine: str = "gpu", pivot: Sequence[str] = ()
) -> str:
    """Tabulate a benchmark's rows that match a query: columns by their new heads; what was not measured is a dash."""
    rows = pd.DataFrame(read_cases(machine)[case]["rows"]).query(query)
    if pivot:
        rows = rows.pivot_table(pivot[2], pivot[0], pivot[1], sort=False).reset_index()
    cells = [[_format(row[key]) for key in columns.values()] for row in rows.to_dict("records")]
    return write_table(list(columns), cells)


def _format(value: Any) -> str:
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def tabulate_step_costs() -> str:
    """Tabulate what the penalty adds to a step."""
    cases = [read_cases()[name] for name in ("step_over_plain", "step_over_same_size", "step_memory")]
    return write_table(["", "ratio"], [[case["name"], f"{case['ratio']:.3g}"] for case in cases])


def tabulate_ratios() -> str:
    """Tabulate what ``python -m benchmarks`` measures on a CPU: ratios of times and of memory."""
    cases = read_cases("cpu")
    rows = [[case["name"], _format(case["ratio"])] for case in cases.values() if "ratio" in case]
    steps = [[f"step / plain step: {row['method']}", _format(row["ratio"])] for row in cases["step_costs"]["rows"][1:]]
    return write_table(["on two CPU cores", "ratio"], [*rows, *steps])


def tabulate_nodes() -> str:
    """Tabulate the nodes that degree 40 needs for a bias of 1%, by function and by how nodes are placed."""
    table = find_results("estimator").recipe.study.tables(find_results("estimator"))[1]
    needed: dict[str, list[str]] = {}
    for name, *_, nodes in table.rows:
        needed.setdefault(name, [name]).append(nodes)
    return write_table(["nodes that degree 40 needs", "cosine", "Chebyshev", "uniform"], needed.values())


def list_demo(part: str) -> str:
    """Return the sentences of the demo about its ``"pick"`` or its ``"penalty"``."""
    return "".join(f"- {text}\n" for text in json.loads((RESULTS / "demo" / "demo.json").read_text())[part])


def list_missing() -> str:
    """List the recipes without a run of their own, except to tune."""
    run = {run.recipe for run in read_runs() if run.finished and not run.settings.get("held_out")}
    return ", ".join(f"`{name}`" for name in all_recipes() if name not in run) + ".\n"


def read_cell(name: str, number: int, row: str, column: str) -> str:
    """Return a cell of a recipe's table."""
    return read_column(name, number, column)[row]


TABLES: dict[str, Callable[[], str]] = {
    "readme-picks": partial(tabulate_picks, {"random, %": 0, "`pick`, %": 1, "best, %": 2}, README_PICKS),
    "readme-accuracies": tabulate_accuracies,
    "picks-guide": partial(
        tabulate_picks, {"random": 0, "`pick`": 1, "best": 2, "gain, %": 3, "by 50 labels": 7}, GUIDE_PICKS
    ),
    "picks": partial(
        tabulate_picks,
        {"gain, %": 3, "within one network": 4, "confidence": 5, "ED": 6, "50 labels": 7, "200 labels": 8},
    ),
    "picks-examples": tabulate_pick_examples,
    "pools": tabulate_pools,
    "grids": tabulate_grids,
    "glue": tabulate_texts,
    "noisy-labels": tabulate_noisy_labels,
    "along-training": tabulate_courses,
    "step-costs": tabulate_step_costs,
    "cpu-ratios": tabulate_ratios,
    "baseline-costs": partial(
        tabulate_case,
        *("baseline_costs", {"step / plain step": "method", "ResNet-18": "ResNet-18", "ViT-Tiny": "ViT-Tiny"}),
        query="ratio > 0",
        pivot=("method", "model", "ratio"),
    ),
    "proxy-costs": partial(
        tabulate_case,
        *("proxy_costs", {"in gradients": "proxy", "ResNet-18": "ResNet-18", "ViT-Tiny": "ViT-Tiny"}),
        query=f"proxy in {COSTS}",
    ),
    "conditioning": partial(
        tabulate_case,
        "conditioning",
        {
            "nodes": "nodes",
            "degree": "degree",
            **{kind: f"{kind}, chebyshev" for kind in ("chebyshev", "cosine", "uniform")},
        },
        query="nodes == 4 or degree == 14 or (nodes in (64, 200) and degree == 40)",
        machine="cpu",
    ),
    "damping": partial(
        tabulate_case,
        "damping",
        {"damping": "damping", "largest gradient": "gradient, largest", "relative change": "change of the value"},
        query="nodes == '4, degree 3, anchored' and damping in (0, 0.001, 0.01)",
        machine="cpu",
    ),
    "speedups": partial(
        tabulate_case,
        *("engine_speedups", {"ms, batch of 256": "variant", "plain": "plain", "with the penalty": "ed"}),
        query="variant in ('baseline', 'flat parameters', '64 tokens', '64 tokens, flat, fused')",
        pivot=("variant", "method", "milliseconds"),
    ),
    "estimator-nodes": tabulate_nodes,
    "demo-pick": partial(list_demo, "pick"),
    "demo-penalty": partial(list_demo, "penalty"),
    "not-run": list_missing,
    "cifar10-methods": partial(cut, "cifar10-methods@epochs=300", 1, "paper, %", "here, %", "against Baseline", "ED"),
    "cifar10-methods-36": partial(cut, "cifar10-methods", 1, "here, %", "ED"),
    "cifar10-contest": partial(cut, "cifar10-contest", 1, "paper, %", "here, %", "against Baseline", "ED"),
    "cifar10-variants": tabulate_variants,
    "cifar10-contest-probabilities": partial(cut, "cifar10-contest", 3, "NLL", "ECE"),
    "cifar10-relatives": lambda: merge({
        "accuracy, %": ("cifar10-relatives", 1, "here, %"),
        "against Plain": ("cifar10-relatives", 1, "against Plain"),
        "corrupted, %": ("cifar10-relatives", 3, "corrupted"),
        "step": ("cifar10-relatives", 2, "step"),
    }),
    "few-labels": lambda: merge(
        {
            **{f"{n:,} labels, %": ("cifar10-few-labels", 1 + 3 * place, "here, %") for place, n in enumerate(LABELS)},
            "250 labels, long, %": ("cifar10-few-labels-long", 1, "here, %"),
        },
        rows=(
            *("Plain", "Mixup", "CutMix", "ICT", "ED, labels only", "ED, self anchors", "ED, teacher anchors"),
            *("Mixup and ED, teacher anchors", "ED to copies", "Π-model", "Mean Teacher", "UDA", "FixMatch"),
        ),
    ),
    "cifar10-sensitivity": partial(cut, "cifar10-sensitivity", 1, "here, %", "ED"),
    "cifar10-learning-rate": partial(
        cut,
        *("cifar10-learning-rate", 1, "here"),
        rows=[f"{method}, lr {rate}, clipped" for method in ("Baseline", "ED") for rate in (0.001, 0.005)],
    ),
    "digits-methods": partial(
        cut,
        *("digits-methods", 1, "here, %", "against Baseline", "ED"),
        rows=("Baseline", "Mixup", "SAM", "Jacobian reg.", "ED without anchors", "ED"),
    ),
    "finetune-shifts": lambda: merge({
        "paintings, %": ("finetune-shifts", 1, "art"),
        "cartoons, %": ("finetune-shifts", 1, "cartoon"),
        "sketches, %": ("finetune-shifts", 1, "sketch"),
        "photos, against Plain": ("finetune-shifts", 1, "test, against"),
        "shifts, against Plain": ("finetune-shifts", 1, "shifts, against"),
    }),
    "tiny-imagenet": lambda: merge({
        f"{kind}: {column}": (name, 1, head)
        for kind, name in TINY.items()
        for column, head in (("test, %", "here"), ("training, %", "training"))
    }),
    "procgen": lambda: merge({
        f"{game}: {column}": (f"procgen-{game.lower()}", 1, head)
        for game in GAMES
        for column, head in (("unseen", "unseen"), ("against PPO", "against"), ("gap", "gap"))
    }),
    "estimators": lambda: merge(
        {
            "digits": ("digits-estimators", 1, "Spearman"),
            "ViT-Tiny, raw": ("cifar10-estimators", 1, "Spearman"),
            "ViT-Tiny, normalized": ("cifar10-estimators", 2, "Spearman"),
        },
        rows=("4/3", "32/20", "64/40"),
        head="nodes/degree",
    ),
    "pnn": partial(cut, "pnn", 1, "ED (Chebyshev): paper", "exact", "network"),
    "path-degrees": partial(cut, "path-degrees", 1, "leading", "found at", "above 1%"),
    "grokking": partial(cut, "grokking", 1, "99% in training", "50% in validation", "loss halved", "ED highest until"),
    "mnist-cifar": partial(cut, "mnist-cifar", 1, "test, %", "MNIST", "CIFAR", "paper"),
    "language": lambda: merge({
        "loss": ("language-webnlg", 1, "loss"),
        "BLEU": ("language-webnlg", 1, "BLEU"),
        "unseen: loss": ("language-webnlg", 1, "unseen: loss"),
        "unseen: BLEU": ("language-webnlg", 1, "unseen: BLEU"),
    }),
    "language-gemma": partial(
        merge,
        {
            column: ("language-webnlg@model=gemma-3-270m,lr=3e-05", 1, column)
            for column in ("loss", "BLEU", "unseen: loss", "unseen: BLEU")
        },
        rows=("Plain, half the steps", "R-Drop", "ED"),
    ),
    "language-lora": partial(cut, "language-webnlg-lora", 1, "loss", "unseen: loss"),
    "language-scan": partial(
        merge,
        {
            split: ("language-scan", place, "exact, %")
            for place, split in enumerate(("jump", "length", "around right"), 1)
        },
        head="exact, %",
    ),
}
# Numbers within sentences, by the name in their mark.
NUMBERS: dict[str, Callable[[], str]] = {
    "step-over-plain": lambda: f"{read_cases()['step_over_plain']['ratio']:.2f}",
    "pick-seconds": lambda: read_cases()["pick_overhead"]["detail"].partition("; ")[2].split()[0],
    "contest-step": partial(read_cell, "cifar10-contest", 2, "ED", "step"),
    "teacher-step": partial(read_cell, "cifar10-few-labels", 5, "ED, teacher anchors", "step"),
    "glue-step": lambda: read_cell("glue-rte", 1, "ED", "step").partition("(")[2].rstrip(")"),
    "digits-mixup-equal-time": lambda: read_cell("digits-methods", 2, "Mixup", "at equal time").partition(" ")[0],
}
