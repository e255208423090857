"""Tables and numbers of the docs that come from the lab's runs in ``results/lab``."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import along_training
import numpy as np

from effdeg.lab import Store, all_recipes, find_recipe
from effdeg.lab.report import Result, result_of
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.pool import DEGREES, RANDOM_PIXELS, REFERENCE, TEST_DEGREES, ModelPool
from effdeg.lab.report.shared_runs import run_and_not
from effdeg.lab.report.text import document
from effdeg.lab.report.wording import degree, points, strengths
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Record
from effdeg.ranking import rank
from effdeg.ranking.tables import counted

RESULTS = Path(__file__).parent.parent / "results"
BENCHMARKS = RESULTS / "benchmarks" / "gpu.json"
# From this training accuracy on a network is said to fit its training images.
FIT = 0.99
# What pools are measured by besides effective degrees and the paper's other measures.
OTHERS = ("total_variation", "average_sharpness@0.01", "-margin@50", "-mixup_margin", "jacobian_norm", "path_norm")


def tables() -> dict[str, str]:
    """Return all tables and values by the names of their marks."""
    return {
        "lab-methods": lab_methods(),
        "lab-pool": lab_pool(),
        "lab-runs": lab_runs(),
        "engine": engine(),
        "resnet-pool": pool_table("cifar10-resnet18-pool"),
        "vit-pool": pool_table("cifar10-vit-pool"),
        "recipes": recipe_table(),
        "along-training": along_training.table(followed()),
        **values(),
    }


@cache
def lab(name: str) -> Result:
    """Read what the lab's runs say about an experiment."""
    return result_of(find_recipe(name), _records())


@cache
def _records() -> list[Record]:
    return Store(RESULTS / "lab").records()


def studies() -> list[str]:
    """Name the studies of the lab: what has a page of its own."""
    return [name for name, recipe in all_recipes().items() if recipe.study]


def followed() -> Block:
    """Return the runs whose effective degree was measured along training: on CIFAR-10, else on digits."""
    found = [along_training.pick(lab(name).blocks) for name in ("cifar10-methods", "digits-methods")]
    return next(block for block in found if along_training.shown(block))


def models_of(block: Block) -> ModelPool:
    """Return the models of a pool's block."""
    assert block.pool is not None
    return block.pool


def lab_runs() -> str:
    """Set everything that was run in the lab, and name what was not."""
    run, others = run_and_not([lab(name) for name in all_recipes() if name not in studies()])
    parts = [document(result, "markdown") for result in run]
    missing = [
        f"`{result.recipe.name}` ({'; '.join([result.recipe.paper, *([shares] if shares else [])])})"
        for result, shares in others
    ]
    parts.append(f"Not run yet: {', '.join(missing)}.\n")
    return "\n".join(parts)


def recipe_table() -> str:
    """Tabulate every recipe of the lab: what it is planned as and what was run of it."""
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
    return counted(count, "run") + (f" of {epochs} epochs" if epochs else "")


def lab_methods() -> str:
    """Set the tables of methods for the README, the longest training first."""
    blocks = sorted(lab("cifar10-methods").blocks, key=lambda block: -block.epochs)
    return "\n".join(map(_methods, blocks))


def _methods(block: Block) -> str:
    lines = [
        f"| CIFAR-10, ViT-Tiny, {block.epochs} epochs, {counted(len(block.seeds), 'seed')} | hyperparameters | "
        f"{block.paper} | here | in ED's time | training | effective degree | step |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for line in block.done:
        price = block.price(line)
        paper = line.row.paper
        cells = [
            line.row.title,
            strengths(line.given) or "–",
            "–" if paper is None else f"{paper.mean:.2f} ± {paper.std:.2f}",
            points(line.accuracy),
            _in_equal_time(block, line),
            f"{100 * line.train_accuracy:.1f}",
            degree(line.effective_degree) if line.effective_degree else "–",
            "–" if price is None else f"{price:.2f}×",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _in_equal_time(block: Block, line: Line) -> str:
    """Return a method's accuracy in the time of ED, with its epochs where they are others."""
    timed = block.equal_time
    if timed is None:
        return "–"
    accuracy = timed.accuracy(line.row.name)
    if accuracy is None:
        return "takes longer" if line.row.name in timed.longer else "not run"
    epochs = timed.epochs(line.row.name)
    return points(accuracy) + (f" ({epochs} epochs)" if epochs != block.epochs else "")


def engine() -> str:
    """Tabulate how fast the lab's engine trained, from the runs themselves."""
    block = lab("cifar10-methods").blocks[0]
    aims = {"plain": "≤ 0.8 s", "ed": "≤ 1.4 s"}
    lines = [f"| {', '.join(block.machines)}, ViT-Tiny, batch 256 | per epoch | aim | step |", "|---|---:|---:|---:|"]
    for line in block.done:
        aim = aims.get(line.row.name, "")
        lines.append(f"| {line.row.title} | {line.seconds_per_epoch:.2f} s | {aim} | {block.price(line):.2f}× |")
    return "\n".join(lines) + "\n"


def lab_pool() -> str:
    """Describe what the pool of ResNet-18s shows."""
    result = lab("cifar10-resnet18-pool")
    return "\n".join(f"- {sentence}" for sentence in result.findings[result.blocks[0]].sentences) + "\n"


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
    column = next(each for each in (name, f"{name}_test") if all(each in row for row in rows))
    return float(np.corrcoef([row[column] for row in rows], [row["gap"] for row in rows])[0, 1])


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
    return {f"value {name}": f"{number:.2f}".replace("-", "−") for name, number in numbers.items()}
