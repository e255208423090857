"""What the pages show of ``results/``: the runs of effdeg-lab, its tables cell by cell, and the benchmarks."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

from effdeg_lab import RunFolder, Table, all_recipes, find_recipe
from effdeg_lab.core.results import Results, collect
from effdeg_lab.core.runs import Run
from effdeg_lab.experiments.pools.study import FITS, REFERENCE, ModelPool, read_pool
from effdeg_lab.show.columns import write_sweep_command
from effdeg_lab.show.tables import escape_markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
BENCHMARKS = RESULTS / "benchmarks"
Models = Sequence[Mapping[str, Any]]


@cache
def read_runs() -> list[Run]:
    """Read all runs."""
    return RunFolder(RESULTS).read()


@cache
def find_results(name: str) -> Results:
    """Return the results of a recipe at the scale that says most; ``RECIPE@SETTING=VALUE,…`` with these settings."""
    name, _, settings = name.partition("@")
    recipe = find_recipe(name)
    changes = recipe.settings.parse(settings.split(","), option="the table") if settings else None
    return collect(recipe, read_runs(), changes)[0]


@cache
def find_tables(name: str) -> list[Table]:
    """Return the tables of a recipe."""
    results = find_results(name)
    return results.recipe.study.tables(results)


def find_cell(name: str, number: int, row: str, column: str) -> str:
    """Return a cell of the ``number``-th table of a recipe, by the name of its row and the head of its column."""
    table = find_tables(name)[number - 1]
    index = next(place for place, head in enumerate(table.columns) if head.startswith(column))
    return next(cells[index] for cells in table.rows if cells[0] == row)


def cut(name: str, number: int, *columns: str, rows: Iterable[str] = (), head: str = "") -> str:
    """Return some columns and rows of a recipe's table in Markdown, without rows that were not run."""
    table = find_tables(name)[number - 1]
    places = [0, *(next(i for i, head in enumerate(table.columns) if head.startswith(each)) for each in columns)]
    kept = [
        [escape_markdown(cells[place]) for place in places]
        for cells in table.rows
        if "not run" not in cells and cells[0] in (list(rows) or [cells[0]])
    ]
    return write_table([head, *(table.columns[place] for place in places[1:])], kept)


def merge(columns: Mapping[str, tuple[str, int, str]], rows: Iterable[str] = (), head: str = "") -> str:
    """Return columns of several tables side by side, each given by its recipe, number and head; rows by their name."""
    found = [_read_column(*where) for where in columns.values()]
    names = list(rows) or list(dict.fromkeys(name for each in found for name in each))
    cells = [[name, *(each.get(name, "–") for each in found)] for name in names]
    return write_table([head, *columns], [[escape_markdown(cell) for cell in row] for row in cells])


def _read_column(name: str, number: int, column: str) -> dict[str, str]:
    table = find_tables(name)[number - 1]
    place = next(place for place, head in enumerate(table.columns) if head.startswith(column))
    return {cells[0]: cells[place] for cells in table.rows if "not run" not in cells}


def write_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown, the numbers of which have three digits at most."""
    rows = list(rows)
    first, *rest = [f"| {' | '.join(cells)} |\n" for cells in [heads, *rows]]
    # Words are on the left, numbers on the right.
    sides = [
        "---" if any(re.match(r"[^\W\d_]", cell) for cell in column) else "---:" for column in zip(*rows, strict=True)
    ]
    return shorten("".join([first, f"|---|{'|'.join(sides[1:])}|\n", *rest]))


def shorten(text: str) -> str:
    """Write all decimal numbers of a text with at most three digits, and negative ones with a minus sign."""
    text = re.sub(r"(?<![\w.@])\d+\.\d+(?![\w.])", lambda found: round_digits(found[0]), text)
    text = re.sub(r"(?<=\d)…(?=[-\d])", " to ", text)
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
    recipe = results.recipe
    counts = sorted({len({run.settings["seed"] for run in each.runs}) for each in results.done})
    facts = [" to ".join(str(each) for each in dict.fromkeys((counts[0], counts[-1]))) + " seeds"]
    facts = ["one seed"] if counts == [1] else facts
    facts += [f"{results.epochs} epochs"] if results.epochs and not results.varies_epochs else []
    text = f"{', '.join([*facts, *results.machines])}."
    text += f" Differs from the recipe: {'; '.join(results.departures)}." if results.departures else ""
    text += f" {_name_source(recipe.paper)}. Run it: `{write_sweep_command(recipe)}`."
    return shorten(f"**Evidence:** {escape_markdown(text)}\n")


def _name_source(paper: str) -> str:
    """Write what a recipe says of the paper as a sentence."""
    paper = paper.removesuffix(".").replace("none;", "not in the paper;")
    return f"{paper[:1].upper()}{paper[1:]}" if paper.startswith("not ") else f"In the paper: {paper}"


def was_run(name: str) -> bool:
    """Return whether a recipe has a finished run of its own."""
    return any(run.recipe == name and run.finished for run in read_runs())


def list_missing() -> str:
    """List the recipes without a run of their own."""
    missing = [name for name in all_recipes() if not was_run(name)]
    return ", ".join(f"`{name}`" for name in missing) + ".\n"


@cache
def find_pool(name: str) -> ModelPool:
    """Return a pool of models and how measures rank it."""
    return read_pool(find_results(name))


def keep_fitted(models: Models) -> list[Mapping[str, Any]]:
    """Return the models of a pool that fit their training images."""
    return [model for model in models if model[REFERENCE] >= FITS]


@cache
def read_cases(machine: str = "gpu") -> dict[str, dict[str, Any]]:
    """Return what every benchmark found on a machine."""
    return json.loads((BENCHMARKS / f"{machine}.json").read_text())["cases"]
