"""What the pages show of ``results/``: the runs of effdeg-lab, cells and columns of its tables, and the benchmarks."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

from effdeg_lab import RunFolder, Table, find_recipe
from effdeg_lab.core.results import Results, collect
from effdeg_lab.core.runs import Run
from effdeg_lab.experiments.pools.study import FITS, REFERENCE, read_models
from effdeg_lab.show.columns import write_sweep_command
from effdeg_lab.show.tables import escape_markdown

RESULTS = Path(__file__).parent.parent / "results"
Where = tuple[str, int, str]
"""A recipe, the number of one of its tables, and the beginning of the head of a column."""


@cache
def read_runs() -> list[Run]:
    """Read all runs."""
    return RunFolder(RESULTS).read()


@cache
def find_results(name: str) -> Results:
    """Return the results of a recipe at the scale that says most; of ``RECIPE@SETTING=VALUE,…`` with these settings."""
    name, _, settings = name.partition("@")
    recipe = find_recipe(name)
    changes = recipe.settings.parse(settings.split(",")) if settings else None
    return collect(recipe, read_runs(), changes)[0]


@cache
def find_tables(name: str) -> list[Table]:
    """Return the tables of a recipe."""
    results = find_results(name)
    return results.recipe.study.tables(results)


def find_head(name: str, number: int, column: str) -> str:
    """Return the head of the first column that begins like this."""
    heads = find_tables(name)[number - 1].columns
    found = next((head for head in heads if head.startswith(column)), None)
    if found is None:
        raise ValueError(f"{name}, table {number}, has no column {column!r}, but {heads}")
    return found


def read_column(name: str, number: int, column: str) -> dict[str, str]:
    """Return a column of a recipe's table by the names of its rows, without those that were not run."""
    table = find_tables(name)[number - 1]
    place = table.columns.index(find_head(name, number, column))
    return {cells[0]: cells[place] for cells in table.rows if "not run" not in cells}


def merge(columns: Mapping[str, Where], rows: Iterable[str] = (), head: str = "") -> str:
    """Return columns of the lab's tables as one table, by their new heads; all rows, or those with these names."""
    found = [read_column(*where) for where in columns.values()]
    names = list(rows) or list(dict.fromkeys(name for column in found for name in column))
    cells = [[name, *(column.get(name, "–") for column in found)] for name in names]
    kept = [row for row in cells if set(row[1:]) != {"–"}]
    return write_table([head, *columns], [[escape_markdown(cell) for cell in row] for row in kept])


def cut(name: str, number: int, *columns: str, rows: Iterable[str] = (), head: str = "") -> str:
    """Return some columns of one table of a recipe."""
    return merge({find_head(name, number, column): (name, number, column) for column in columns}, rows, head)


def write_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown: words on the left, numbers on the right with three digits at most."""
    rows = list(rows)
    first, *rest = [f"| {' | '.join(cells)} |\n" for cells in [heads, *rows]]
    sides = [
        "---" if any(re.match(r"[^\W\d_]", cell) for cell in column) else "---:" for column in zip(*rows, strict=True)
    ]
    return shorten("".join([first, f"|---|{'|'.join(sides[1:])}|\n", *rest]))


def shorten(text: str) -> str:
    """Write all decimal numbers of a text with at most three digits, and negative ones with a minus sign."""
    text = re.sub(r"(?<![\w.@])\d+\.\d+(?![\w.])", lambda number: round_digits(number[0]), text)
    text = re.sub(r"(?<=\d)…(?=[-−\d])", " to ", text)
    return re.sub(r"(?<![\w\]`])-(?=\d)", "−", text)


def round_digits(number: str) -> str:
    """Round the digits of a decimal number to at most three, halves up; zeros in front do not count."""
    value = Decimal(number)
    decimals = len(number.partition(".")[2])
    kept = min(decimals, max(0, 2 - value.adjusted())) if value else decimals
    rounded = value.quantize(Decimal(1).scaleb(-kept), ROUND_HALF_UP)
    return str(rounded) if rounded < 100 else f"{rounded:.0f}"


def describe(name: str) -> str:
    """Describe the evidence of a recipe: seeds, length, machine, the paper's counterpart, the command."""
    results = find_results(name)
    counts = sorted({len({run.seed for run in method.runs}) for method in results.done})
    seeds = (
        f"{counts[0]} to {counts[-1]} seeds"
        if len(counts) > 1
        else "one seed"
        if counts == [1]
        else f"{counts[0]} seeds"
    )
    epochs = [f"{results.epochs} epochs"] if results.epochs and not results.varies_epochs else []
    text = f"{', '.join([seeds, *epochs, *results.machines])}."
    text += f" Differs from the recipe: {'; '.join(results.departures)}." if results.departures else ""
    paper = results.recipe.paper.removesuffix(".").replace("none;", "not in the paper;")
    source = f"{paper[:1].upper()}{paper[1:]}" if paper.startswith("not ") else f"In the paper: {paper}"
    text += f" {source}. Run it: `{write_sweep_command(results.recipe)}`."
    return shorten(f"**Evidence:** {escape_markdown(text)}\n")


@cache
def find_models(name: str) -> list[dict[str, Any]]:
    """Return the models of a pool with their measures."""
    return read_models(find_results(name))


def keep_fitted(models: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the models of a pool that fit their training images."""
    return [model for model in models if model[REFERENCE] >= FITS]


@cache
def read_cases(machine: str = "gpu") -> dict[str, dict[str, Any]]:
    """Return what every benchmark measured on a machine."""
    return json.loads((RESULTS / "benchmarks" / f"{machine}.json").read_text())["cases"]
