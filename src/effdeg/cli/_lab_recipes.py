"""``effdeg lab list`` and ``effdeg lab show``: which experiments there are, and what exactly one of them does."""

import json as json_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from effdeg.cli import _lab_options as lo
from effdeg.cli import _options as o
from effdeg.lab import Recipe, Reported, Row, all_recipes, find_recipe
from effdeg.lab.settings import RunSettings, changed, differences, digest, parsed, to_dict


def list_all(json: o.Json = False) -> None:
    """List the recipes: what each is, where in the paper, and what it costs."""
    if json:
        print(json_module.dumps([_described(each) for each in all_recipes().values()]))
        return
    rows = [(each.name, each.title, each.paper, _runs(each), each.cost) for each in all_recipes().values()]
    console = Console(highlight=False)
    console.print(lo.word_table("recipes", ("name", "what", "paper", "runs", "cost"), rows, console.width))
    console.print("[dim]effdeg lab show NAME says more; effdeg lab run NAME runs one; effdeg lab sweep NAME all.[/]")


def show(
    name: lo.Name,
    method: Annotated[
        str | None, typer.Option(help="A line of its table, whose settings to show.", show_default=False)
    ] = None,
    changes: lo.Changes = None,
    json: o.Json = False,
) -> None:
    """Show a recipe: the paper's finding, the lines of its table, and all settings of a run."""
    found = find_recipe(name)
    row = None if method is None else found.row(method)
    settings = changed(found.settings, {**(row.changes if row else {}), **parsed(found.settings, changes or ())})
    if json:
        told = {"expects": found.expects, "departs": found.departs, "method": method, "run": digest(settings)}
        lines = [_line(found, each) for each in found.rows]
        print(json_module.dumps({**_described(found), **told, "settings": to_dict(settings), "lines": lines}))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{escape(found.name)}[/]: {escape(found.title)}")
    texts = {"paper": found.paper, "found there": found.expects, "here": found.departs, "cost": found.cost}
    facts = Table.grid(padding=(0, 2))
    for label, text in (texts | {"runs": _runs(found)}).items():
        if text:
            facts.add_row(f"[dim]{label}[/]", escape(text))
    console.print(facts)
    console.print(_lines(found, console.width))
    console.print(_settings(found, settings, "all lines" if row is None else row.name))
    console.print(f"[dim]A run with these settings has the name {digest(settings)}.[/]")


def _settings(found: Recipe[Any], settings: RunSettings, whose: str) -> Table:
    """List all settings, marking those that are not the recipe's."""
    own = differences(found.settings, settings)
    table = Table(title=f"settings of {escape(whose)}", title_justify="left", show_header=False)
    for key, value in to_dict(settings).items():
        mark, note = ("bold", f"instead of {lo.shown(own[key][0])}") if key in own else ("none", "")
        table.add_row(key, f"[{mark}]{escape(lo.shown(value))}[/]", f"[dim]{escape(note)}[/]")
    return table


def _lines(found: Recipe[Any], width: int) -> Table:
    rows = []
    for row in found.rows:
        settings = lo.assignments(_line(found, row)["changes"])
        tuned = ", ".join(f"{key}: {' '.join(map(lo.shown, values))}" for key, values in row.strengths.items())
        rows.append((row.name, row.title, _reported(row.paper), settings, tuned))
    return lo.word_table("lines of its table", ("--method", "what", "paper", "settings", "tuned"), rows, width)


def _line(found: Recipe[Any], row: Row) -> dict[str, Any]:
    own = differences(found.resolved(row, {}), found.settings)
    return {
        "name": row.name,
        "title": row.title,
        "paper": None if row.paper is None else {"mean": row.paper.mean, "std": row.paper.std},
        "changes": {key: value for key, (value, _) in own.items()},
        "strengths": dict(row.strengths),
    }


def _described(found: Recipe[Any]) -> dict[str, Any]:
    return {
        "name": found.name,
        "title": found.title,
        "paper": found.paper,
        "cost": found.cost,
        "methods": [row.name for row in found.rows],
        "seeds": list(found.seeds),
        "grid": dict(found.grid),
        "runs": len(found.rows) * len(list(found.points())) * len(found.seeds),
        "tuning": dict(found.tuning),
        "tuning_runs": sum(len(list(found.candidates(row))) for row in found.rows),
    }


def _runs(found: Recipe[Any]) -> str:
    """Count the runs, and say what they are."""
    described, points = _described(found), len(list(found.points()))
    what = "lines" if found.study else "methods"
    factors = [(len(found.rows), what), (points, "settings"), (len(found.seeds), "seeds")]
    counted = [f"{count} {what}" for count, what in factors if count > 1]
    tuning = described["tuning_runs"]
    product = " × ".join(counted) + (f" = {described['runs']}" if len(counted) > 1 else "")
    return (product or "1") + (f", and {tuning} to tune" if tuning else "")


def _reported(paper: Reported | None) -> str:
    if paper is None:
        return "–"
    return f"{paper.mean:.2f}" + ("" if paper.std is None else f" ± {paper.std:.2f}")
