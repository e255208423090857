"""Look at recipes: ``list`` and ``show``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Column, Table
from typer import Option

from effdeg_lab.cli._options import RUNS, Changes, Data, Name, Smoke, open_recipe
from effdeg_lab.cli._output import format_settings, make_table, print_facts, print_rich
from effdeg_lab.core.settings import format_setting

if TYPE_CHECKING:
    from effdeg_lab.core.recipe import Recipe


def list_recipes(data: Data = None) -> None:
    """List the recipes, with their place in the paper, number of runs and cost, and what is missing to run them here.

    Without what is missing, **effdeg-lab run RECIPE --smoke** tries a recipe on made-up data.
    """
    from effdeg_lab.core.recipe import all_recipes

    recipes = all_recipes().values()
    table = Table(Column("recipe", no_wrap=True), "what", box=SIMPLE_HEAD, pad_edge=False)
    for recipe in recipes:
        count = len(recipe.methods) * len(recipe.points()) * len(recipe.seeds)
        tuning = sum(len(recipe.candidates(method)) for method in recipe.methods)
        runs = f"{count} runs, and {tuning} to tune" if tuning else f"{count} runs"
        missing = find_missing(recipe, data)
        here = f"[yellow]missing here: {escape(missing)}[/]" if missing else "[green]can run here[/]"
        what = f"{escape(recipe.title)}\n[dim]{escape(recipe.paper)} · {runs} · {escape(recipe.cost)}[/]\n{here}"
        table.add_row(recipe.name, what)
    print_rich(table)


def find_missing(recipe: "Recipe", data: Path | None) -> str:
    """Return what is missing to run a recipe here: a data set, a pretrained network or a package; empty if nothing."""
    try:
        recipe.check_data([recipe.resolve(recipe.methods[0], recipe.points()[0])], data)
    except (ValueError, OSError, ImportError) as error:
        return str(getattr(error, "missing", error))
    return ""


def show(
    name: Name,
    method: Annotated[str | None, Option(help="Show the settings of this method.")] = None,
    changes: Changes = None,
    smoke: Smoke = False,
) -> None:
    """Show a recipe: what the paper found, the methods that are compared, and all settings of a run."""
    recipe, _ = open_recipe(name, RUNS, smoke=smoke)
    base = recipe.settings if method is None else recipe.resolve(recipe.method(method))
    changed, usual = recipe.settings.parse(changes or ()), recipe.settings.to_dict()
    settings, varied = base.change(changed).to_dict(), {*recipe.axes} - changed.keys()
    print_rich(f"[bold]{escape(recipe.name)}[/]: {escape(recipe.title)}")
    facts = {
        "in the paper": recipe.paper,
        recipe.source.lower(): recipe.expects,
        recipe.departs_heading.lower(): recipe.departs,
        "points": f"{len(recipe.points())}, which differ in {', '.join(recipe.axes)}" if recipe.axes else "",
        "cost": recipe.cost,
    }
    print_facts({**facts, "--equal-time": recipe.equal_time or ""})
    rows = []
    for each in recipe.methods:
        tuned = "".join(f"\ntuned: {key} {' '.join(map(format_setting, tried))}" for key, tried in each.tune.items())
        about = f"{escape(each.title)}\n[dim]{escape(format_settings(each.changes) + tuned)}[/]"
        rows.append((each.name, about, str(each.paper or "")))
    print_rich(make_table(("--method", "what", "paper"), rows))
    grid, words = Table.grid(Column(overflow="fold", max_width=38), "", padding=(0, 2)), base.describe()
    for key, value in settings.items():
        note = "differs between points" if key in varied else ""
        note = f"recipe: {format_setting(usual[key])}" if value != usual[key] else note
        said = f"{escape(words[key])}{f' [yellow]({escape(note)})[/]' if note else ''}"
        grid.add_row(f"{key}={escape(format_setting(value))}", f"[dim]{said}[/]")
    print_rich(grid)
