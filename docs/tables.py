"""The tables of the pages, by the name in their mark; each is made from ``results/`` when it is asked for."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from records import (
    RESULTS,
    Models,
    cut,
    describe,
    find_pool,
    find_results,
    find_tables,
    keep_fitted,
    list_missing,
    merge,
    read_cases,
    read_runs,
    write_table,
)

from effdeg.demo import load_digits
from effdeg.pools import read_table
from effdeg_lab import find_recipe
from effdeg_lab.experiments.glue import count_exceptions
from effdeg_lab.experiments.picking.study import make_overview, measure_gains, read_all_pools, read_pools
from effdeg_lab.experiments.pools.study import rank_within
from effdeg_lab.show.columns import count_seeds, format_difference, format_points
from effdeg_lab.show.tables import escape_markdown, to_markdown

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
README_PICKS = (
    "CIFAR-10",
    "CIFAR-10, ResNet-9",
    "CIFAR-10, ViT",
    "CIFAR-10 corrupted",
    "PACS paintings",
    "Tiny-ImageNet",
)
"""The pools of the README."""
GUIDE_PICKS = (
    *("CIFAR-10", "CIFAR-10, ResNet-9", "CIFAR-10, ViT", "CIFAR-10, MLP", "CIFAR-10 corrupted", "Tiny-ImageNet"),
    *("PACS", "PACS paintings", "PACS cartoons", "PACS sketches", "MRPC"),
)
"""The pools of the guide to ``pick``."""
CHOICE = 5
"""How many models there are to choose from."""
NOISY = "cifar10-noisy-labels@model=resnet9-8,batch=128,lr=0.1,augment=none"
TEXTS = ("glue-rte", "glue-mrpc", "glue-cola", "glue-rte@model=all-mpnet-base-v2")
IMAGES = 1_281_167
"""The training images of ImageNet."""
# Proxies whose cost is shown, each for its family; `effective_degree` was timed cold, the Hessian before a rewrite.
COSTS = ("effective_degree_normalized", "sharpness", "average_sharpness", "spectral_product", "margin", "jacobian_norm")
TINY = {"original": "tiny-imagenet-vit", "strong": "tiny-imagenet-vit-strong"}
FASTEST = "64 tokens, flat, fused"


def choose(models: Models, measure: str) -> float | None:
    """Return the mean test accuracy of the model with the least value among five of one recipe, over all such sets.

    A leading minus chooses the largest value. None if a model has no value.
    """
    sign, column = (-1, measure[1:]) if measure.startswith("-") else (1, measure)
    if any(column not in model for model in models):
        return None
    total = 0.0
    for recipe in sorted({model["recipe"] for model in models}):
        inside = [(sign * model[column], model["test_accuracy"]) for model in models if model["recipe"] == recipe]
        # A model is chosen with any of those that come after it.
        ways = [math.comb(len(inside) - 1 - place, CHOICE - 1) for place in range(len(inside))]
        chosen = sum(way * accuracy for way, (_, accuracy) in zip(ways, sorted(inside), strict=True))
        total += len(inside) * chosen / sum(ways)
    return total / len(models)


@cache
def find_picks() -> dict[str, tuple[str, ...]]:
    """Return what ``pick`` and its rivals choose in all pools, by the name of the pool with the number of networks."""
    rows = make_overview(read_all_pools(read_runs())).rows
    return {row[0]: tuple(cell.replace("-", "−") for cell in row[1:]) for row in rows}


def _is_shown(name: str) -> bool:
    """Whether a pool has six networks or more; of one kind, only if it decided the default."""
    return not name.endswith(" (5)") and ("," not in name or name.startswith("CIFAR-10, "))


def tabulate_picks() -> str:
    """Tabulate what picking gains."""
    heads = ["one of five that fit", "random", "`pick`", "best", "gain, %", "within one network"]
    heads += ["confidence", "ED", "50 labels", "200 labels"]
    return write_table(heads, [[name, *cells] for name, cells in find_picks().items() if _is_shown(name)])


def tabulate_guide_picks() -> str:
    """Tabulate what picking gains in some pools, next to what 50 labels do."""
    rows = [
        [name, *cells[:4], cells[7]] for name, cells in find_picks().items() if name.rpartition(" (")[0] in GUIDE_PICKS
    ]
    return write_table(["one of five that fit", "random", "`pick`", "best", "gain, %", "by 50 labels"], rows)


def tabulate_pick_examples() -> str:
    """Tabulate what picking gains from fewer examples, on test images like the training images."""
    counts, rows = (250, 500, 1000, 2000), []
    pools = [pool for name in ("cifar10", "tiny-imagenet") for pool in read_pools(find_results(f"picking-{name}"))]
    for pool in (pool.take(pool.fits) for pool in pools):
        title = f"{pool.name} ({len(pool)})"
        if pool.predicted.shape[1] == counts[-1] and _is_shown(title) and "corrupted" not in title:
            parts = [
                replace(pool, **{key: getattr(pool, key)[:, :n] for key in ("predicted", "changed", "correct")})
                for n in counts
            ]
            gains = [measure_gains(part) for part in parts]
            rows.append([title, *(f"{gain.rules['pick'].share:.0f}" for gain in gains if gain)])
    return write_table(["gain, %, from this many examples", *(f"{n:,}" for n in counts)], rows)


def tabulate_readme_choices() -> str:
    """Tabulate the accuracies of a random network, of the pick and of the best, for the README."""
    rows = [
        [name, *(f"{cell}%" for cell in cells[:3])]
        for name, cells in find_picks().items()
        if name.rpartition(" (")[0] in README_PICKS
    ]
    return write_table(["one of five networks, without labels", "random", "`pick`", "best"], rows)


def tabulate_readme_accuracies() -> str:
    """Tabulate test accuracies with the penalty and without, for the README."""
    rows = []
    contests = {
        "ViT-Tiny, 300 epochs": ("cifar10-contest", 1),
        "ResNet-9, equal time": ("cifar10-relatives", 2),
        **{f"ResNet-9, {n:,} labels": ("cifar10-few-labels", 2 + 3 * i) for i, n in enumerate((250, 1000, 4000))},
    }
    for title, where in contests.items():
        table = {row[0]: row[find_tables(where[0])[where[1] - 1].columns.index("here, %")] for row in read_rows(where)}
        plain, ed = table.get("Plain") or table["Baseline"], table.get("ED") or table["ED, labels only"]
        cells = [plain, ed, table["Mixup"], table["CutMix"]]
        rows.append([title, *("–" if cell == "not run" else f"{float(cell.split()[0]):.1f}%" for cell in cells)])
    return write_table(["test accuracy, CIFAR-10", "plain", "ED", "mixup", "CutMix"], rows)


def read_rows(where: tuple[str, int]) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a recipe's table, by the recipe and the number of the table."""
    return find_tables(where[0])[where[1] - 1].rows


def rank_pool(name: str) -> Any:
    """Rank the measures of a pool among the models that fit, within recipes with mixup and without."""
    fitted = keep_fitted(find_pool(name).models)
    known = [each for each in MEASURES.values() if each.removeprefix("-") in fitted[0]]
    grid = find_results(name).recipe.grid
    return rank_within(fitted, known, ["recipe"], [axis for axis in grid if axis != "weight_decay"])


def tabulate_pools() -> str:
    """Tabulate Kendall's τ of measures with the gap, among the models of each pool that fit."""
    rankings = {title: rank_pool(name).scores for title, name in POOLS.items()}
    rows = []
    for label, name in MEASURES.items():
        found = [scores[name].kendall if name in scores else None for scores in rankings.values()]
        rows.append([label, *(f"{each.value:.2f}{_star(each.interval)}" if each else "–" for each in found)])
    counted = [f"{title} ({len(keep_fitted(find_pool(name).models))})" for title, name in POOLS.items()]
    return write_table(["Kendall's τ with the gap", *counted], rows)


def _star(interval: tuple[float, float]) -> str:
    return r"\*" if interval[0] > 0 or interval[1] < 0 else ""


def correlate(models: Models, name: str) -> float:
    """Return Pearson's correlation of a measure with the gap; a leading minus turns the measure around."""
    sign, column = (-1, name[1:]) if name.startswith("-") else (1, name)
    pairs = [[model[column] for model in models], [model["gap"] for model in models]]
    return sign * float(np.corrcoef(*pairs)[0, 1])


def tabulate_grids() -> str:
    """Tabulate Pearson's r, which the paper reports, in its two pools: among all models, and those that fit."""
    pools = {title: find_pool(POOLS[title]).models for title in ("ResNet-18", "ViT-Tiny")}
    columns = [(title, kept) for title, models in pools.items() for kept in (models, keep_fitted(models))]
    names = {
        "normalized ED, training images": "effective_degree_normalized",
        "normalized ED, random pixels": "effective_degree_normalized_random_pixels",
        "raw ED, random pixels": "effective_degree_random_pixels",
        "total variation, training images": "total_variation",
        "adaptive sharpness 1, labels": "adaptive_sharpness@1",
        "margin, labels": "-margin@50",
        "training accuracy": "train_accuracy",
    }
    rows = [[label, *(f"{correlate(models, name):.2f}" for _, models in columns)] for label, name in names.items()]
    return write_table(["Pearson's r with the gap", *(f"{title}, {len(kept)}" for title, kept in columns)], rows)


def tabulate_texts() -> str:
    """Tabulate the scores of GLUE: plain training in percent, other methods as differences in points."""
    several = [find_results(name) for name in TEXTS]
    rows = [["Plain, %", *(format_points(each.find("plain").spread("score")) for each in several)]]
    for method in several[0].recipe.methods[1:8]:
        found = [each.difference(each.find(method.name), key="score") for each in several]
        rows.append([method.title, *(escape_markdown(format_difference(each)) for each in found)])
    rows.append(["seeds", *map(count_seeds, several)])
    (count, above, below), (_, *at_once) = (count_exceptions(several, at_once=each) for each in (False, True))
    note = (
        f"Of all {count} differences, {above} intervals lie above zero and {below} below; corrected for their number "
        f"(Bonferroni), {at_once[0]} and {at_once[1]}.\n"
    )
    heads = ["against Plain, points", "RTE", "MRPC", "CoLA", "RTE, mpnet"]
    return write_table(heads, rows) + "\n" + note


def tabulate_noisy_labels() -> str:
    """Tabulate what networks make of wrong labels: means over seeds."""
    columns = {title: _find_noisy(title.lower()) for title in ("Plain", "Mixup", "ED")}
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
        [label, *(f"{100 * values.values(key).mean():.1f}" for values in columns.values())]
        for label, key in keys.items()
    ]
    return write_table(["mean of three seeds", *columns], rows)


def _find_noisy(method: str) -> Any:
    return find_results(f"{NOISY},epochs=11" if method == "ed" else NOISY).split()[0].find(method)


def tabulate_courses() -> str:
    """Tabulate Pearson's correlation of ED and the gap over the epochs of one run, and of their changes."""
    rows = []
    for name, title in (("digits-methods", "100 digits"), ("cifar10-contest", "CIFAR-10")):
        for method in ("plain", "mixup", "ed"):
            runs = [run for run in find_results(name).find(method).runs if read_course(run.metrics).shape[1] > 2]
            courses = [read_course(run.metrics) for run in runs]
            cells = [
                ", ".join(f"{np.corrcoef(each)[0, 1]:.2f}" for each in kind)
                for kind in (courses, [np.diff(each) for each in courses])
            ]
            rows.append([f"{title}, {method}", *cells])
    return write_table(["each seed", "correlation of ED and gap", "of their changes"], rows)


def read_course(metrics: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """Return the effective degrees of a run and its gaps, at the epochs at which both were measured."""
    entries = [entry for entry in metrics if entry.get("effective_degree") and "train_accuracy" in entry]
    pairs = [(each["effective_degree"]["value"], each["train_accuracy"] - each["test_accuracy"]) for each in entries]
    return np.array(pairs, dtype=float).reshape(-1, 2).T


def tabulate_polynomial_bounds() -> str:
    """Tabulate how two bounds on Rademacher complexity grow with the degree of polynomials on CIFAR-10."""
    rows = []
    for degree in (1, 3, 40):
        count = math.comb(3072 + degree, degree)
        l2, l1 = math.sqrt(count / 50_000), math.sqrt(2 * math.log(2 * count) / 50_000)
        rows.append([str(degree), _scientific(count), _scientific(l2), f"{l1:.3f}"])
    return write_table(["K", "M = C(3072 + K, K)", "√(M/n)", "√(2 ln(2M)/n)"], rows)


def _scientific(number: float) -> str:
    if number < 10_000:
        return f"{number:,}" if isinstance(number, int) else f"{number:.3g}"
    exponent = math.floor(math.log10(number))
    return f"{number / 10**exponent:.1f} × 10^{exponent}"  # an integer beyond the range of floats is divided exactly


def bound_networks() -> list[float]:
    """Return what the bound of Golowich, Rakhlin and Shamir (2018) allows for the gaps of 27 networks on digits.

    (1 + √(2 L ln 2)) Π‖Wᵢ‖ r/√n, times 2/γ with the median margin γ; biases, ten classes and chance are left out.
    """
    table = read_table(RESULTS / "pools" / "digits.csv")
    inputs = load_digits(per_class=10, seed=0).labeled
    factor = (1 + math.sqrt(6 * math.log(2))) * float(inputs.double().square().sum(1).mean().sqrt())
    norms, margins = table["frobenius_product"], table["margin@50"]
    return [2 / gamma * factor * norm / math.sqrt(len(inputs)) for norm, gamma in zip(norms, margins, strict=True)]


def tabulate_ratios(names: Sequence[str]) -> str:
    """Tabulate ratios of benchmarks."""
    cases = read_cases()
    return write_table(["", "ratio"], [[cases[name]["name"], f"{cases[name]['ratio']:.3g}"] for name in names])


def tabulate_baseline_costs() -> str:
    """Tabulate what a training step costs with each baseline; each case has a plain step of its own to divide by."""
    rows: dict[str, dict[str, float]] = {}
    for name in ("baseline_costs", "relative_costs_resnet", "relative_costs_vit"):
        for row in read_cases().get(name, {}).get("rows", []):
            rows.setdefault(row["method"], {}).setdefault(row["model"], row["ratio"])
    models = ("ResNet-18", "ViT-Tiny")
    cells = [
        [f"`{method}`", *(f"{found[each]:.2f}" if each in found else "–" for each in models)]
        for method, found in rows.items()
    ]
    return write_table(["step / plain step", *models], cells)


def tabulate_proxy_costs() -> str:
    """Tabulate the cost of proxies in gradients."""
    rows: dict[str, list[str]] = {}
    for row in read_cases()["proxy_costs"]["rows"]:
        name = row["proxy"].partition("@")[0]
        if name in COSTS:
            cells = ["–" if row[kind] is None else f"{row[kind]:.2g}" for kind in ("ResNet-18", "ViT-Tiny")]
            rows.setdefault(name, [f"`{name}`", *cells])
    return write_table(["in gradients over the same examples", "ResNet-18", "ViT-Tiny"], rows.values())


def tabulate_conditions() -> str:
    """Tabulate the condition numbers of the fit in the Chebyshev basis."""
    kinds = ("chebyshev", "cosine", "uniform")
    rows = [
        [
            f"{row['nodes']}, {row['degree']}",
            *(_scientific(float(f"{row[f'{kind}, chebyshev']:.2g}")) for kind in kinds),
        ]
        for row in read_cases("cpu")["conditioning"]["rows"]
        if (row["nodes"], row["degree"]) in {(4, 3), (15, 14), (64, 40), (200, 40)}
    ]
    return write_table(["nodes, degree", *kinds], rows)


def tabulate_damping() -> str:
    """Tabulate what damping does to the penalty's value and gradient, for the default nodes."""
    rows = [
        [f"{row['damping']:g}", f"{row['gradient, largest']:.3g}", f"{row['change of the value']:.2%}"]
        for row in read_cases("cpu")["damping"]["rows"]
        if row["nodes"] == "4, degree 3, anchored" and row["damping"] in {0, 1e-3, 1e-2}
    ]
    return write_table(["damping", "largest gradient", "change of the value"], rows)


def tabulate_speedups() -> str:
    """Tabulate the time of a step of ViT-Tiny by what was done to make it faster."""
    rows: dict[str, dict[str, str]] = {}
    for row in read_cases()["engine_speedups"]["rows"]:
        if row["variant"] in {"baseline", "flat parameters", "64 tokens", FASTEST}:
            rows.setdefault(row["variant"], {})[row["method"]] = f"{row['milliseconds']:.2f} ms"
    cells = [[name, *(found.get(method, "–") for method in ("plain", "ed"))] for name, found in rows.items()]
    return write_table(["ViT-Tiny, batch of 256", "plain", "with the penalty"], cells)


def tabulate_networks() -> str:
    """Tabulate how many times as fast several networks train on one GPU as in turns."""
    rows = []
    for row in read_cases()["networks_at_once"]["rows"]:
        if row["networks"] in {2, 16} and "ED" not in row["network"]:
            ways = [
                f"{row['one after another'] / row[way]:.1f} ×" if way in row else "–" for way in ("streams", "stacked")
            ]
            rows.append([row["network"], str(row["networks"]), *ways])
    return write_table(["speedup over taking turns", "networks", "on streams", "stacked"], rows)


def estimate_hours() -> dict[str, list[float]]:
    """Return the hours of a run of the paper's Table 3 on one H200, plain and with the penalty, by recipe."""
    found = {
        (row["recipe"], row["method"]): row["images_per_second"]
        for row in read_cases()["imagenet_throughput"]["rows"]
        if row["batch"] == 1024 and "waited" not in row
    }
    return {
        name: [_count_images(name) / found[name, method] / 3600 for method in ("plain", "ed")]
        for name in ("original", "strong")
    }


def _count_images(name: str) -> int:
    return IMAGES * find_recipe(f"imagenet-vit-{name}").settings.to_dict()["epochs"]


def find_decoding_hours(processes: int = 16) -> float:
    """Return the hours in which some processes decode the images of a run of Table 3 with Pillow."""
    rows = read_cases()["decoding_speed"]["rows"]
    speed = next(r["images_per_second"] for r in rows if (r["decoder"], r["processes"]) == ("pillow", processes))
    return _count_images("strong") / speed / 3600


def tabulate_hours() -> str:
    """Tabulate the hours of the paper's Table 3."""
    rows = [[f"`imagenet-vit-{name}`", *(f"{each:.1f}" for each in hours)] for name, hours in estimate_hours().items()]
    return write_table(["hours of one run, one H200", "plain", "with the penalty"], rows)


def tabulate_nodes() -> str:
    """Tabulate the nodes that degree 40 needs for a bias of 1%, by function and by how nodes are placed."""
    found: dict[str, list[str]] = {}
    for cells in find_tables("estimator")[1].rows:
        found.setdefault(cells[0], [cells[0]]).append(cells[-1])
    return write_table(["nodes that degree 40 needs", "cosine", "Chebyshev", "uniform"], found.values())


def describe_demo(part: str) -> str:
    """Return the sentences of the demo about its ``"pick"`` or its ``"penalty"``."""
    return "".join(f"- {each}\n" for each in json.loads((RESULTS / "demo" / "demo.json").read_text())[part])


TABLES: dict[str, Callable[[], str]] = {
    "readme-choices": tabulate_readme_choices,
    "readme-accuracies": tabulate_readme_accuracies,
    "pools": tabulate_pools,
    "grids": tabulate_grids,
    "glue": tabulate_texts,
    "noisy-labels": tabulate_noisy_labels,
    "along-training": tabulate_courses,
    "bounds": tabulate_polynomial_bounds,
    "step-costs": partial(tabulate_ratios, ("step_over_plain", "step_over_same_size", "many_classes", "step_memory")),
    "baseline-costs": tabulate_baseline_costs,
    "proxy-costs": tabulate_proxy_costs,
    "conditioning": tabulate_conditions,
    "damping": tabulate_damping,
    "speedups": tabulate_speedups,
    "networks-at-once": tabulate_networks,
    "imagenet-hours": tabulate_hours,
    "demo-pick": partial(describe_demo, "pick"),
    "demo-penalty": partial(describe_demo, "penalty"),
    "not-run": list_missing,
    "cifar10-methods": partial(cut, "cifar10-methods@epochs=300", 1, "paper, %", "here, %", "against Baseline", "ED"),
    "cifar10-methods-36": partial(cut, "cifar10-methods", 1, "here, %", "ED"),
    "cifar10-contest": partial(cut, "cifar10-contest", 1, "paper, %", "here, %", "against Baseline", "ED", "seeds"),
    "cifar10-contest-probabilities": partial(cut, "cifar10-contest", 3, "NLL", "ECE"),
    "cifar10-relatives": lambda: merge({
        "accuracy, %": ("cifar10-relatives", 2, "here, %"),
        "against Plain": ("cifar10-relatives", 2, "against Plain"),
        "corrupted, %": ("cifar10-relatives", 4, "corrupted"),
        "step": ("cifar10-relatives", 3, "step"),
    }),
    "few-labels": lambda: merge({
        **{f"{n:,} labels, %": ("cifar10-few-labels", 2 + 3 * i, "here, %") for i, n in enumerate((250, 1000, 4000))},
        "250 labels, 6 times as long, %": ("cifar10-few-labels-long", 2, "here, %"),
    }),
    "cifar10-sensitivity": partial(cut, "cifar10-sensitivity", 1, "here, %", "ED"),
    "cifar10-learning-rate": partial(cut, "cifar10-learning-rate", 1, "here"),
    "picks": tabulate_picks,
    "picks-guide": tabulate_guide_picks,
    "picks-examples": tabulate_pick_examples,
    "digits-methods": partial(
        cut,
        *("digits-methods", 1, "here, %", "against Baseline", "ED"),
        rows=("Baseline", "Mixup", "SAM", "Jacobian reg.", "ED without anchors", "ED"),
    ),
    "finetune-shifts": partial(
        cut, "finetune-shifts", 1, "art", "cartoon", "sketch", "test, against", "shifts, against"
    ),
    "finetune-shifts-one-rate": partial(
        cut, "finetune-shifts@lr=0.0001", 1, "test, against", "shifts, against", rows=("Mixup", "ED", "ED, own ends")
    ),
    "tiny-imagenet": lambda: merge({
        f"{kind}: {column}": (name, 1, head)
        for kind, name in TINY.items()
        for column, head in (("test, %", "here"), ("training, %", "training"))
    }),
    "procgen": lambda: merge({
        f"{game}: {column}": (f"procgen-{game.lower()}", 1, head)
        for game in ("Dodgeball", "StarPilot")
        for column, head in (("unseen levels", "unseen"), ("against PPO", "against"), ("gap", "gap"))
    }),
    "estimator-nodes": tabulate_nodes,
    "estimators": lambda: merge(
        {
            "digits": ("digits-estimators", 1, "Spearman"),
            "ViT-Tiny, raw": ("cifar10-estimators", 1, "Spearman"),
            "ViT-Tiny, normalized": ("cifar10-estimators", 2, "Spearman"),
        },
        rows=("4/3", "8/5", "32/20", "64/40"),
        head="nodes/degree",
    ),
    "pnn": partial(cut, "pnn", 2, "ED (Chebyshev): paper", "exact", "network"),
    "path-degrees": partial(cut, "path-degrees", 1, "leading", "found at", "above 1%"),
    "grokking": partial(cut, "grokking", 1, "99% in training", "50% in validation", "loss halved", "ED highest until"),
    "mnist-cifar": partial(cut, "mnist-cifar", 1, "test, %", "MNIST", "CIFAR", "paper"),
}


def make_table(name: str) -> str:
    """Return a table by its name: ``about RECIPE`` is its evidence, ``RECIPE; N`` its N-th table in the lab's form."""
    if name.startswith("about "):
        return describe(name.removeprefix("about "))
    if name in TABLES:
        return TABLES[name]()
    recipe, number = name.split("; ")
    return to_markdown(find_tables(recipe)[int(number) - 1])
