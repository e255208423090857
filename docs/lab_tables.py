"""Tables and numbers of the docs that come from the runs of effdeg-lab in ``results/``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import along_training
import numpy as np
import speed
import text_results
import throughput
import which_model
from which_model import keep_fitted

from effdeg.pools import rank, read_table
from effdeg_lab import RunFolder, Table, Verdict, all_recipes, find_recipe
from effdeg_lab.core.results import Results, collect, list_others
from effdeg_lab.core.runs import Run
from effdeg_lab.core.selection import matching
from effdeg_lab.experiments.cifar10.relatives import find_lead, format_lead
from effdeg_lab.experiments.pools.random_search import FITS
from effdeg_lab.experiments.pools.study import (
    DEGREES,
    RANDOM_PIXELS,
    REFERENCE,
    TARGET,
    TEST_DEGREES,
    ModelPool,
    read_pool,
)
from effdeg_lab.experiments.procgen.study import make_figure
from effdeg_lab.experiments.shifts.study import Shifts
from effdeg_lab.show.columns import count_seeds, format_duration
from effdeg_lab.show.probabilities import MEASURES
from effdeg_lab.show.tables import escape_markdown, to_markdown, to_sentence

RESULTS = Path(__file__).parent.parent / "results"
# The measures that effective degrees are compared with in the README, each at several radii or percentiles.
UNLABELED = {
    "confidence": "-confidence_test",
    "total variation": "total_variation_test",
    "decision regions": "decision_regions_test",
}
"""Measures without labels in the README's table."""
BY_VARIANT = {"sharpness": "sharpness", "adaptive sharpness": "adaptive_sharpness", "margin": "-margin"}
# What pools are measured by besides effective degrees and the paper's other measures.
OTHERS = ("total_variation", "average_sharpness@0.01", "-margin@50", "-mixup_margin", "jacobian_norm", "path_norm")


@cache
def runs() -> list[Run]:
    """Read all runs."""
    return RunFolder(RESULTS).read()


@cache
def results(name: str) -> Results:
    """Return the results of a recipe at the scale that says most.

    ``RECIPE@EPOCHS`` is at that length, ``RECIPE@SETTING=VALUE,…`` of the runs with these settings.
    """
    name, _, at = name.partition("@")
    recipe = find_recipe(name)
    if "=" in at:
        return collect(recipe, runs(), recipe.settings.parse(at.split(","), option="the mark"))[0]
    return next(each for each in collect(recipe, runs()) if not at or each.epochs == int(at))


@cache
def tables(name: str) -> list[Table]:
    """Return the tables of a recipe."""
    found = results(name)
    return found.recipe.study.tables(found)


def fill(mark: str) -> str:
    """Return what belongs between a mark of a page and its end.

    Args:
        mark: ``tables RECIPE``, with ``; N`` only the first N, with ``RECIPE@EPOCHS`` or ``RECIPE@SETTING=VALUE,…`` as
            in :func:`results`; ``table RECIPE; N``, the N-th alone;
            ``verdict RECIPE``, ``caption RECIPE-FIGURE`` or ``along-training RECIPE``; or
            ``number RECIPE; TABLE; ROW; COLUMN``, a cell by the number of its table, from 1, the name of its row and
            the number of its column, from 1 after the name; or ``number RECIPE; MEASURE``, the correlation of a measure
            with the gap of a pool, with ``; fit`` among the models that fit; or
            ``number RECIPE; summary; METHOD; KEY``, the mean of a number over a method's runs; or
            ``number RECIPE; time; METHOD``, the time of a run that was not stacked; or
            ``number RECIPE; lead; METHOD; OTHER; MEASURE``, by how much a method is better than another, with an
            interval, or ``number RECIPE; seeds; METHOD; KEY``, a number of each run, both with ``; POINT`` at a point
            of the grid; or
            ``number benchmark; CASE``, its ratio, with ``; VARIANT; METHOD; COLUMN`` that of a row; or
            ``number benchmark; engine_speedups``, a step with the penalty in plain steps of the fastest engine; or
            one of the tables below.
    """
    kind, _, rest = mark.partition(" ")
    if kind == "tables":
        return format_tables(*rest.split("; "))
    if kind == "table":
        name, number = rest.split("; ")
        return to_markdown(tables(name)[int(number) - 1])
    if kind == "verdict":
        return judge(rest).word
    if kind == "caption":
        return f"*{find_caption(rest)}*\n"
    if kind == "along-training":
        return along_training.make_table(results(rest))
    if kind == "number":
        return find_number(*(part.strip() for part in rest.split(";")))
    blocks = {
        "results": make_results,
        "recipes": make_recipe_table,
        "finetuning": format_shifts,
        "procgen": lambda: "\n".join(format_tables(each.recipe.name) for each in read_games()) or "Not run yet.\n",
        "text": lambda: text_results.make_table(read_texts()),
        "text-steps": lambda: text_results.make_step_table(read_texts()),
        "resnet-pool": lambda: make_pool_table("cifar10-resnet18-pool"),
        "vit-pool": lambda: make_pool_table("cifar10-vit-pool"),
        "imagenet": format_imagenet,
        "attention": throughput.make_attention_table,
        "decoding": throughput.make_decoding_table,
        "which-model": lambda: which_model.make_pools_table(read_grids()),
        "which-model mixed": lambda: which_model.make_mixed_table(read_grids()),
        "which-model choice": lambda: which_model.make_choice_table(read_grids() | read_searches()),
    }
    return blocks[mark]()


def read_games() -> list[Results]:
    """Return the results of Procgen's games in which there is something to compare."""
    return [results(name) for name in all_recipes() if name.startswith("procgen-") and was_compared(name)]


def read_texts() -> list[Results]:
    """Return the results of GLUE's tasks: those of the recipes, and RTE with a larger encoder."""
    names = ["glue-rte", "glue-mrpc", "glue-cola", "glue-rte@model=all-mpnet-base-v2"]
    return [results(name) for name in names]


def list_run(study: type) -> list[str]:
    """List the recipes with a kind of study that were run."""
    return [name for name, recipe in all_recipes().items() if isinstance(recipe.study, study) and was_run(name)]


def format_shifts() -> str:
    """Return the tables and the figures, with captions, of every recipe that was tested under shifts and was run."""
    parts = []
    for name in list_run(Shifts):
        found = results(name)
        parts += [f"**`{name}`: {found.recipe.title}**\n", format_tables(name)]
        for figure in found.recipe.study.figures(found):
            file, caption = f"figures/{name}-{figure.name}", figure.caption
            source = f'<source media="(prefers-color-scheme: dark)" srcset="{file}-dark.png">'
            parts.append(f'<picture>{source}<img alt="{caption}" src="{file}-light.png"></picture>\n\n*{caption}*\n')
    return "\n".join(parts) or "Not run yet.\n"


def format_imagenet() -> str:
    """Return what was measured and run on ImageNet and Tiny-ImageNet, and what was not."""
    names = [name for name in all_recipes() if name.startswith(("imagenet-vit", "tiny-imagenet-vit"))]
    parts = [f"**`{name}`: {find_recipe(name).title}**\n\n{format_tables(name)}" for name in names if was_run(name)]
    missing = [f"- the accuracies of `{name}`" for name in names if not was_run(name)]
    if throughput.is_measured():
        parts = [throughput.make_table(), throughput.make_hours(), *parts]
    else:
        missing.insert(0, f"- the time of a step and the hours of Table 3: `python -m benchmarks {throughput.CASE}`")
    return "\n".join([*parts, *(["Not run yet:\n", *missing, ""] if missing else [])])


def read_grids() -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the models of both pools of the paper by the title of their architecture."""
    names = {"ResNet-18": "cifar10-resnet18-pool", "ViT-Tiny": "cifar10-vit-pool"}
    return {title: pool(name).models for title, name in names.items()}


def read_searches() -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the models of the random searches by the title of their architecture."""
    names = {"ResNet-9": "cifar10-random-pool", "MLP": "cifar10-random-mlps", "DeiT-Tiny": "finetune-pool"}
    return {title: pool(name).models for title, name in names.items()}


def judge(name: str) -> Verdict:
    """Return the verdict on a recipe's claim."""
    found = results(name)
    return found.recipe.study.judge(found)


def format_tables(name: str, count: str | None = None) -> str:
    """Return the verdict on a recipe's claim and its tables, or the first of them."""
    if not results(name).done:
        return "*Not run yet.*\n"
    verdict = judge(name)
    details = f" {to_sentence(escape_markdown(verdict.details))}" if verdict.details else ""
    text = f"**Claim: {verdict.word}.**{details}\n"
    found = tables(name)[: int(count) if count else None]
    return "\n".join([*([text] if verdict.word != "no claim" else []), *map(to_markdown, found)])


def find_caption(name: str) -> str:
    """Return the caption of a figure, by the recipe's name and its own, or that of all of Procgen's games."""
    if name == "procgen-returns":
        return make_figure(read_games()).caption
    for recipe in all_recipes():
        if name.startswith(f"{recipe}-"):
            found = results(recipe)
            for figure in found.recipe.study.figures(found):
                if name == f"{recipe}-{figure.name}":
                    return figure.caption
    raise KeyError(f"no study has the figure {name}")


def find_number(name: str, *where: str) -> str:
    """Return a number that stands within a sentence; :func:`fill` explains the marks."""
    if name == "benchmark" and len(where) > 1:
        return speed.find_number(*where)
    if name == "benchmark" and where == ("engine_speedups",):
        rows = [row for row in speed.read_rows(where[0]) if row["variant"] == speed.FASTEST]
        times = {row["method"]: row["milliseconds"] for row in rows}
        return f"{times['ed'] / times['plain']:.2f}"
    if name == "benchmark":
        return f"{speed.read_cases()[where[0]]['ratio']:.2f}"
    if where[0] == "time":
        return format_duration(results(name).find(where[1]).time())
    if len(where) < 3:
        rows = pool(name).models
        return _signed(_correlate(rows if where[1:] != ("fit",) else keep_fitted(rows), where[0]))
    if where[0] == "summary":
        spread = results(name).find(where[1]).spread(where[2])
        assert spread is not None
        return f"{spread.mean:.3f}"
    if where[0] == "lead":
        return compare(name, *where[1:])
    if where[0] == "seeds":
        *others, last = (f"{value:.3g}" for value in at_point(name, *where[3:]).find(where[1]).values(where[2]))
        return f"{', '.join(others)} and {last}"
    table, row, column = tables(name)[int(where[0]) - 1], where[1], int(where[2])
    # Two stars of a paragraph would be emphasis.
    return escape_markdown(next(cells[column] for cells in table.rows if cells[0] == row))


def at_point(name: str, point: str = "") -> Results:
    """Return the results of a recipe at a point of its grid, as ``labeled 250``; all of them without a grid."""
    return next(each for each in results(name).split() if each.point == point)


def compare(name: str, one: str, other: str, title: str, point: str = "") -> str:
    """Return by how much a method is better than another in a measure, with an interval."""
    part = at_point(name, point)
    measure = next(each for each in MEASURES if each.title == title)
    return format_lead(find_lead(measure, part.find(one), part.find(other)))


def find_runs(name: str) -> list[Run]:
    """Return the finished runs of a recipe at any scale, those that it shares with other recipes included."""
    recipe = find_recipe(name)
    found = {run.file: run for each in recipe.methods for run in matching(runs(), recipe, each) if run.finished}
    return list(found.values())


def was_run(name: str) -> bool:
    """Return whether a recipe has a run of its own, not only runs that it shares with others."""
    return any(run.recipe == name for run in find_runs(name))


def was_compared(name: str) -> bool:
    """Return whether a recipe's first method was run, with which the others are compared."""
    first = find_recipe(name).methods[0].name
    return any(run.method == first for run in find_runs(name))


def make_recipe_table() -> str:
    """Tabulate the planned and the finished runs of every recipe."""
    lines = ["| recipe | paper | planned | in `results/` |", "|---|---|---|---|"]
    for name, recipe in all_recipes().items():
        count = len(list(recipe.points())) * len(recipe.seeds)
        # Agents have epochs as well, but those of an update.
        scale = [each for each in recipe.settings.scale_names() if each not in recipe.axes]
        unit = next((each for each in ("epochs", "steps") if each in scale), "")
        planned_lengths = Counter(recipe.resolve(each).to_dict().get(unit) for each in recipe.methods)
        planned = ", ".join(_count_runs(number * count, length, unit) for length, number in planned_lengths.items())
        by_length = Counter(run.settings.get(unit, 0) for run in find_runs(name))
        most_first = sorted(by_length.items(), key=lambda each: (-each[1], -each[0]))
        found = [_count_runs(number, length, unit) for length, number in most_first]
        if not was_run(name):
            owners = Counter(run.recipe for run in find_runs(name))
            found = [f"shares {_count_runs(number)} with {owner}" for owner, number in owners.items()]
        others = sum(len(group) for _, group in list_others(recipe, runs()))
        found += [f"{_count_runs(others)} with other settings"] if others else []
        lines.append(f"| `{name}` | {recipe.paper} | {planned} | {', '.join(found) or 'none'} |")
    return "\n".join(lines) + "\n"


def _count_runs(count: int, length: int | None = None, unit: str = "") -> str:
    return f"{count} run{'s' if count > 1 else ''}" + (f" of {length:,} {unit}" if length else "")


def make_results() -> str:
    """Tabulate the results of the README: the effective degree as a measure, then as a penalty."""
    lines = ["| | ED | for comparison |", "|---|---:|---|"]
    gap = "Pearson correlation with the generalization gap (train − test accuracy)"
    networks, transformers = pool("cifar10-resnet18-pool"), pool("cifar10-vit-pool")
    fitted = keep_fitted(transformers.models)
    lines.append(_format_search(gap, "cifar10-random-pool"))
    lines.append(_format_pool(f"the same, {len(networks.models)} ResNet-18s, training images", networks.models))
    lines.append(_format_pool(f"the same, {len(fitted)} ViT-Tinys that fit", fitted))
    counted = count_seeds(results("cifar10-contest"))
    setting = f"test accuracy, ViT-Tiny with average pooling, 300 epochs, {counted} seeds"
    lines.append(_format_accuracies(setting, "cifar10-contest", 1, 2))
    setting = f"ResNet-9, equal time, {count_seeds(results('cifar10-relatives'))} seeds"
    lines.append(_format_accuracies(setting, "cifar10-relatives", 2, 1))
    for place, labels in enumerate(find_recipe("cifar10-few-labels").grid["labeled"]):
        setting = f"ResNet-9, {labels:,} labels, 3 seeds"
        lines.append(_format_accuracies(setting, "cifar10-few-labels", 3 * place + 2, 1))
    radii, adaptive, percentiles = (len(_list_variants(fitted, kind)) for kind in BY_VARIANT.values())
    best = f"at the best of {radii} radii, adaptive sharpness of {adaptive}, margins of {percentiles} percentiles"
    lines += ["", f"Sharpness is taken {best}. For accuracies, ED is training with the penalty."]
    return "\n".join(lines) + "\n"


def _list_variants(rows: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """List a measure at all its radii or percentiles."""
    sign, name = ("-", kind[1:]) if kind.startswith("-") else ("", kind)
    return [f"{sign}{column}" for column in rows[0] if column.startswith(f"{name}@")]


def _format_pool(setting: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the row of a pool: Pearson's correlations with the gap, of other measures the highest of all variants."""
    best = {
        label: max(_correlate(rows, name) for name in _list_variants(rows, kind)) for label, kind in BY_VARIANT.items()
    }
    others = ", ".join(f"{label} {_signed(correlation)}" for label, correlation in best.items())
    raw, normalized = (_signed(_correlate(rows, f"effective_degree{kind}")) for kind in ("", "_normalized"))
    return f"| {setting} | {raw}; normalized {normalized} | {others} |"


def _format_search(setting: str, name: str) -> str:
    """Return the row of a random search: Pearson's correlations within strata, ED's on unlabeled test images."""
    found = {row[0]: float(row[1].split(" ")[0]) for row in tables(name)[0].rows}
    best = {
        label: max(value for each, value in found.items() if each.startswith(f"{kind}@"))
        for label, kind in BY_VARIANT.items()
    }
    best |= {label: found[each] for label, each in UNLABELED.items()}
    others = ", ".join(f"{label} {_signed(correlation)}" for label, correlation in best.items())
    raw, normalized = (_signed(found[f"effective_degree{kind}_test"]) for kind in ("", "_normalized"))
    count = len(pool(name).models)
    setting += f", {count} ResNet-9s (with and without mixup separately), ED on unlabeled test images"
    return f"| {setting} | {raw}; normalized {normalized} | {others} |"


def _format_accuracies(setting: str, name: str, table: int, column: int) -> str:
    """Return the row of a contest: test accuracies of ED, plain training and every mixup without ED, from a table."""
    cells = {row[0]: row[column].split(" ")[0] for row in tables(name)[table - 1].rows}
    found = {title: f"{float(cell):.1f}%" for title, cell in cells.items() if cell.replace(".", "").isdigit()}
    names = {
        "Baseline": "plain",
        "Plain": "plain",
        "Mixup": "mixup",
        "Mixup, α = 0.2": "mixup (α = 0.2)",
        "CutMix": "CutMix",
    }
    others = ", ".join(f"{label} {found[title]}" for title, label in names.items() if title in found)
    ours = found.get("ED") or found["ED, labels only"]
    return f"| {setting} | {ours} | {others} |"


def _signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def read_digits_pool() -> list[dict[str, Any]]:
    """Return the pool of small networks on digits, one mapping per network."""
    return read_table(RESULTS / "pools" / "digits.csv").to_dict("records")


@cache
def pool(name: str) -> ModelPool:
    """Return a pool of models and how measures rank it."""
    return read_pool(results(name))


def make_pool_table(name: str) -> str:
    """Tabulate how measures rank a pool: all its networks, and those that fit their training images."""
    known, axes = pool(name), list(results(name).recipe.grid)
    rows, fitted = known.models, keep_fitted(known.models)
    measures = [*DEGREES, *TEST_DEGREES, *RANDOM_PIXELS, *(score.measure for score in known.papers[1:])]
    measures += [*(each for each in OTHERS if each in known.measures), REFERENCE]
    clusters = [axis for axis in axes if axis not in known.inert]
    ranked = rank(fitted, target=TARGET, measures=measures, hyperparameters=axes, clusters=clusters)
    scores = [known.scores, ranked.scores]
    lines = [
        f"| correlation with the gap | all {len(rows)}: Pearson | Kendall | the {len(fitted)} that fit: Pearson | "
        "Kendall |",
        "|---|---:|---:|---:|---:|",
    ]
    for measure in measures:
        label = "training accuracy (for reference)" if measure == REFERENCE else f"`{measure}`"
        cells = [cell for each in scores for cell in (each[measure].pearson, each[measure].kendall)]
        lines.append(f"| {label} | {' | '.join(str(cell or '–') for cell in cells)} |")
    rest = [row[REFERENCE] for row in rows if row[REFERENCE] < FITS]
    others = f"{min(rest):.0%} to {max(rest):.0%}"
    note = f"Fit: {FITS:.0%} of the training images or more are right; of the others {others}."
    return "\n".join([*lines, "", note]) + "\n"


def _correlate(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return Pearson's correlation of a measure with the gap; a leading minus turns the measure around."""
    sign, column = (-1, name[1:]) if name.startswith("-") else (1, name)
    return sign * float(np.corrcoef([row[column] for row in rows], [row[TARGET] for row in rows])[0, 1])
