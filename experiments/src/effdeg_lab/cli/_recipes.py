"""Look at recipes: ``list`` and ``show``."""

import json as json_module
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from typer import Option

from effdeg_lab.cli._options import Changes, Json, Name
from effdeg_lab.cli._output import format_settings, make_table, print_facts, print_rich
from effdeg_lab.settings import format_setting

if TYPE_CHECKING:
    from effdeg_lab.recipe import Recipe


def list_recipes(json: Json = False) -> None:
    """List the recipes, with their place in the paper, number of runs and cost."""
    from effdeg_lab.recipe import all_recipes

    recipes = all_recipes().values()
    if json:
        print(json_module.dumps([_to_dict(recipe) for recipe in recipes]))
        return
    rows = []
    for recipe in recipes:
        count = len(recipe.methods) * len(recipe.points()) * len(recipe.seeds)
        tuning = sum(len(recipe.candidates(method)) for method in recipe.methods)
        what = f"{escape(recipe.title)}\n[dim]{escape(recipe.paper)} · {escape(recipe.cost)}[/]"
        rows.append((recipe.name, what, f"{count}, and {tuning} to tune" if tuning else str(count)))
    print_rich(make_table(("recipe", "what", "runs"), rows))


def show(
    name: Name,
    method: Annotated[str | None, Option(help="Show the settings of this method.")] = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Show a recipe: what the paper found, the methods that are compared, and all settings of a run."""
    from effdeg_lab.recipe import find_recipe

    recipe = find_recipe(name)
    base = recipe.settings if method is None else recipe.resolve(recipe.method(method))
    changed, usual = recipe.settings.parse(changes or ()), recipe.settings.to_dict()
    settings, varied = base.change(changed).to_dict(), {*recipe.axes} - changed.keys()
    if json:
        print(json_module.dumps(_to_dict(recipe) | {"settings": settings}))
        return
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
    for key, value in settings.items():
        note = "differs between points" if key in varied else ""
        note = f"recipe: {format_setting(usual[key])}" if value != usual[key] else note
        print_rich(f"{key}={escape(format_setting(value))}{f'  [dim]{escape(note)}[/]' if note else ''}")


def _to_dict(recipe: "Recipe") -> dict[str, Any]:
    code = {"run", "run_together", "check_data", "study"}
    return {key: value for key, value in asdict(recipe).items() if key not in code}
