"""Tables and numbers of the docs that come from the lab's runs in ``results/lab``."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import along_training
import numpy as np

from effdeg._utils.checks import pluralize
from effdeg.lab import Store, all_recipes, find_recipe
from effdeg.lab.report import RecipeResult, result_of
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.pool import DEGREES, RANDOM_PIXELS, REFERENCE, TEST_DEGREES, ModelPool
from effdeg.lab.report.shared_runs import run_and_not
from effdeg.lab.report.text import document
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Record
from effdeg.ranking import rank, read_table

RESULTS = Path(__file__).parent.parent / "results"
BENCHMARKS = RESULTS / "benchmarks" / "gpu.json"
# From this training accuracy on a network is said to fit its training images.
FIT = 0.99
# What pools are measured by besides effective degrees and the paper's other measures.
OTHERS = ("total_variation", "average_sharpness@0.01", "-margin@50", "-mixup_margin", "jacobian_norm", "path_norm")


def tables() -> dict[str, str]:
    """Return all tables and values by the names of their marks."""
    return {
        "results": results(),
        "lab-runs": lab_runs(),
        "engine": engine(),
        "resnet-pool": pool_table("cifar10-resnet18-pool"),
        "vit-pool": pool_table("cifar10-vit-pool"),
        "recipes": recipe_table(),
        "along-training": along_training.table(find_tracked_runs()),
        **values(),
    }


@cache
def lab(name: str) -> RecipeResult:
    """Return the result of an experiment from the lab's runs."""
    return result_of(find_recipe(name), _records())


@cache
def _records() -> list[Record]:
    return Store(RESULTS / "lab").records()


def studies() -> list[str]:
    """Return the names of the studies, which have pages of their own."""
    return [name for name, recipe in all_recipes().items() if recipe.study]


def find_tracked_runs() -> Block:
    """Return the runs whose effective degree was measured along training: on CIFAR-10, else on digits."""
    found = [along_training.pick(lab(name).blocks) for name in ("cifar10-methods", "digits-methods")]
    return next(block for block in found if along_training.find_methods(block))


def models_of(block: Block) -> ModelPool:
    """Return the models of a pool's block."""
    assert block.pool is not None
    return block.pool


def lab_runs() -> str:
    """Return the tables of everything that was run in the lab, and the names of what was not."""
    run, others = run_and_not([lab(name) for name in all_recipes() if name not in studies()])
    parts = [document(result, "markdown") for result in run]
    missing = [
        f"`{result.recipe.name}` ({'; '.join([result.recipe.paper, *([shares] if shares else [])])})"
        for result, shares in others
    ]
    parts.append(f"Not run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def recipe_table() -> str:
    """Tabulate the planned and the finished runs of every recipe."""
    results = [lab(name) for name in all_recipes()]
    shared = {result.recipe.name: words or "none" for result, words in run_and_not(results)[1]}
    lines = ["| recipe | paper | planned | in `results/lab` |", "|---|---|---|---|"]
    for result in results:
        recipe = result.recipe
        runs = len(recipe.rows) * len(list(recipe.points())) * len(recipe.seeds)
        planned = _runs(runs, to_dict(recipe.settings).get("epochs"))
        done = Counter(run.settings.get("epochs") for _, run in result.runs)
        found = ", ".join(_runs(count, epochs) for epochs, count in done.most_common())
        lines.append(f"| `{recipe.name}` | {recipe.paper} | {planned} | {shared.get(recipe.name, found)} |")
    return "\n".join(lines) + "\n"


def _runs(count: int, epochs: int | None) -> str:
    return pluralize(count, "run") + (f" of {epochs} epochs" if epochs else "")


def results() -> str:
    """Tabulate the results of the README: the effective degree as a measure, then as a penalty."""
    lines = ["| | effective degree | for comparison |", "|---|---:|---|"]
    for title, name in (("ResNet-18s", "resnet18"), ("ViT-Tinys", "vit")):
        block = lab(f"cifar10-{name}-pool").blocks[0]
        pool = models_of(block)
        others = {
            "sharpness": pool.best["sharpness"].measure,
            "adaptive sharpness": pool.best["adaptive sharpness"].measure,
            "margin": "-margin@50",
        }
        setting = f"gap of {len(pool.table)} {title}, CIFAR-10, {block.epochs} epochs: correlation"
        lines.append(_correlations(setting, pool.table, others))
        lines.append(_correlations(f"the {len(fitted(pool))} that fit", fitted(pool), others))
    rows = digits_pool()
    others = {"sharpness": "sharpness@0.1", "adaptive sharpness": "adaptive_sharpness@0.1", "margin": "-margin@50"}
    lines.append(_correlations(f"gap of {len(rows)} MLPs, digits", rows, others))
    methods = max(lab("cifar10-methods").blocks, key=lambda block: block.epochs)
    setting = f"ViT-Tiny, CIFAR-10, {methods.epochs} epochs each, {pluralize(len(methods.seeds), 'seed')}"
    lines.append(_accuracies(setting, {line.row.name: line for line in methods.done}))
    small = lab("digits-methods").blocks[0]
    assert small.equal_time is not None
    setting = f"MLP, 100 digits, equal time, {pluralize(len(small.seeds), 'seed')}"
    lines.append(_accuracies(setting, {name: line for name, (line, _) in small.equal_time.lines.items()}))
    record = json.loads((RESULTS / "demo" / "contest.json").read_text())
    plain, penalized = (np.mean([run["accuracy"] for run in record[side]]) for side in ("plain", "penalized"))
    setting = f"MLP, 50 digits, {pluralize(len(record['seeds']), 'seed')}"
    lines.append(f"| test accuracy, {setting} | {penalized:.1%} | plain {plain:.1%} |")
    return "\n".join(lines) + "\n"


def _correlations(setting: str, rows: Sequence[Mapping[str, Any]], others: Mapping[str, str]) -> str:
    """Return the row of a pool: Pearson's correlations with the gap."""
    found = ", ".join(f"{label} {_signed(_pearson(rows, name))}" for label, name in others.items())
    raw, normalized = (_signed(_pearson(rows, f"effective_degree{kind}")) for kind in ("", "_normalized"))
    return f"| {setting} | {raw}; normalized {normalized} | {found} |"


def _accuracies(setting: str, lines: Mapping[str, Line]) -> str:
    """Return the row of a contest: test accuracies of ED, plain training and every mixup without ED."""
    names = {"plain": "plain", "mixup": "mixup", "mixup-0.2": "mixup (α = 0.2)", "cutmix": "CutMix"}
    accuracy = {name: line.accuracy.mean for name, line in lines.items() if line.accuracy}
    found = ", ".join(f"{label} {accuracy[name]:.1%}" for name, label in names.items() if name in accuracy)
    return f"| test accuracy, {setting} | {accuracy['ed']:.1%} | {found} |"


def _signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def digits_pool() -> list[dict[str, Any]]:
    """Return the pool of small networks on digits, one mapping per network."""
    table = read_table(RESULTS / "pools" / "digits.csv")
    return [dict(zip(table, each, strict=True)) for each in zip(*table.values(), strict=True)]


def engine() -> str:
    """Tabulate how fast the lab's engine trained, from the runs themselves."""
    block = lab("cifar10-methods").blocks[0]
    aims = {"plain": "≤ 0.8 s", "ed": "≤ 1.4 s"}
    lines = [f"| {', '.join(block.machines)}, ViT-Tiny, batch 256 | per epoch | aim | step |", "|---|---:|---:|---:|"]
    for line in block.done:
        aim = aims.get(line.row.name, "")
        lines.append(f"| {line.row.title} | {line.seconds_per_epoch:.2f} s | {aim} | {block.price(line):.2f}× |")
    return "\n".join(lines) + "\n"


def pool_table(name: str) -> str:
    """Tabulate how measures rank a pool: all its networks, and those that fit their training images."""
    pool = models_of(lab(name).blocks[0])
    rows = fitted(pool)
    axes = [axis for axis in pool.axes if axis not in pool.inert]
    best = [score.measure for score in pool.best.values()]
    others = [measure for measure in OTHERS if measure in pool.measures]
    names = list(dict.fromkeys([*DEGREES, *TEST_DEGREES, *RANDOM_PIXELS, *best, *others, REFERENCE]))
    assert pool.ranking is not None
    every = pool.ranking.scores
    fit = rank(rows, target="gap", measures=names, hyperparameters=pool.axes, clusters=axes).scores
    lines = [
        f"| correlation with the gap | all {len(pool.table)}: Pearson | Kendall | the {len(rows)} that fit: Pearson | "
        "Kendall |",
        "|---|---:|---:|---:|---:|",
    ]
    for measure in names:
        label = "training accuracy (for reference)" if measure == REFERENCE else f"`{measure}`"
        cells = [each for scores in (every, fit) for each in (scores[measure].pearson, scores[measure].kendall)]
        lines.append(f"| {label} | {' | '.join(str(cell or '–') for cell in cells)} |")
    rest = [row[REFERENCE] for row in pool.table if row[REFERENCE] < FIT]
    note = f"Fit: {FIT:.0%} of the training images or more are right; of the others {min(rest):.0%} to {max(rest):.0%}."
    return "\n".join([*lines, "", note]) + "\n"


def fitted(pool: ModelPool) -> list[Mapping[str, Any]]:
    """Return the networks of a pool that fit their training images."""
    return [row for row in pool.table if row[REFERENCE] >= FIT]


def _pearson(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Correlate a column with the gap; an effective degree measured on test images alone goes by ``…_test``."""
    sign, name = (-1, name[1:]) if name.startswith("-") else (1, name)
    column = next(each for each in (name, f"{name}_test") if all(each in row for row in rows))
    return sign * float(np.corrcoef([row[column] for row in rows], [row["gap"] for row in rows])[0, 1])


def values() -> dict[str, str]:
    """Return the numbers that stand within sentences."""
    resnets, vits = (models_of(lab(f"cifar10-{name}-pool").blocks[0]) for name in ("resnet18", "vit"))
    learned = fitted(vits)
    methods = lab("cifar10-methods").blocks[0]
    numbers = {
        "resnet-ed": _pearson(resnets.table, "effective_degree"),
        "resnet-normalized": _pearson(resnets.table, "effective_degree_normalized"),
        "resnet-random-pixels": _pearson(resnets.table, "effective_degree_random_pixels"),
        "resnet-normalized-random-pixels": _pearson(resnets.table, "effective_degree_normalized_random_pixels"),
        "resnet-training": _pearson(resnets.table, REFERENCE),
        "vit-ed": _pearson(vits.table, "effective_degree"),
        "vit-normalized": _pearson(vits.table, "effective_degree_normalized"),
        "vit-sharpness": _pearson(vits.table, vits.best["sharpness"].measure),
        "vit-learned-ed": _pearson(learned, "effective_degree"),
        "vit-learned-training": _pearson(learned, REFERENCE),
        "step": methods.price(methods.line("ed")),
        "step-benchmark": json.loads(BENCHMARKS.read_text())["cases"]["step_over_plain"]["ratio"],
    }
    return {f"value {name}": _signed(number) for name, number in numbers.items()}
