"""``effdeg-lab table`` and ``report``. Commands import what they need, so that ``--help`` does not wait for torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from effdeg_lab.report import Report
    from effdeg_lab.runs import Run

RUNS = Path("effdeg-runs")

Name = Annotated[
    str,
    typer.Argument(
        help="A recipe of [bold]effdeg-lab list[/], or your own as [bold]package.module:RECIPE[/].", show_default=False
    ),
]
Runs = Annotated[Path, typer.Option(metavar="DIR", envvar="EFFDEG_RUNS", help="The folder where runs are kept.")]

Kept = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Keep only runs with this setting.", show_default=False),
]
Format = Annotated[Literal["terminal", "markdown", "latex", "json"], typer.Option(help="How to write it.")]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Recipes of [bold]effdeg-lab list[/]; all if none.", show_default=False),
]


def read_runs(folder: Path) -> "list[Run]":
    """Read the runs in a folder; raise if there is no such folder, or no run in it."""
    from effdeg_lab.runs import RunFolder

    found = RunFolder(folder).read() if folder.is_dir() else []
    if not found:
        raise ValueError(
            f"--runs {folder}: {'it holds no runs' if folder.is_dir() else 'there is no such folder'}. Name the folder "
            f"that run or sweep kept runs in ({RUNS} where you started them, unless you named another)."
        )
    return found


def table(
    name: Name,
    runs: Runs = RUNS,
    changes: Kept = None,
    format: Format = "terminal",  # noqa: A002  (as users know it)
    csv: Annotated[Path | None, typer.Option(help="Write the models of a pool (.csv).", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw its figure (.png, .pdf, .svg).", show_default=False)] = None,
) -> None:
    """Show what was found of a recipe next to the paper's numbers."""
    import pandas as pd

    from effdeg.io import to_json, write_atomically, write_figure
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.report import report_on, to_dict, to_text
    from effdeg_lab.studies.pool import Pool, read_pool

    recipe = find_recipe(name)
    changed = recipe.settings.parse(changes or ())
    _check_file("--plot", plot, {".png", ".pdf", ".svg"})
    _check_file("--csv", csv, {".csv"})
    if csv and not isinstance(recipe.study, Pool):
        raise ValueError(f"--csv {csv}: {name} is not a pool of models; only pools have such a table.")
    report = report_on(recipe, read_runs(runs), changed)
    results = report.results[0]
    figures = recipe.study.figures(results) if plot and results.done else []
    if (csv and not results.done) or (plot and not figures):
        raise ValueError(f"{csv or plot} cannot be written: the finished runs of {name} in {runs} do not suffice.")
    if plot:
        write_figure(figures[0].draw("light"), plot)
    if csv:
        write_atomically(csv, pd.DataFrame([*read_pool(results).models]).to_csv(index=False).encode())
    if format == "json":
        print(to_json(to_dict(report)))
    elif format == "terminal":
        _print(report)
    else:
        print(to_text(report, format), end="")


def report(
    names: Names = None,
    runs: Runs = RUNS,
    out: Annotated[Path, typer.Option(help="The page to write (.html).")] = Path("effdeg-lab.html"),
) -> None:
    """Write one page with all results, which needs no other file and no network."""
    from effdeg.io import write_atomically
    from effdeg_lab.recipe import all_recipes, find_recipe
    from effdeg_lab.report import render_page, report_on

    recipes = [find_recipe(name) for name in names] if names else list(all_recipes().values())
    _check_file("--out", out, {".html"})
    found = read_runs(runs)
    reports = [report_on(recipe, found) for recipe in recipes]
    write_atomically(out, render_page(reports).encode())
    console = Console(highlight=False)
    for each in reports:
        verdict = str(each.verdicts[0]) if each.shown else "not run"
        console.print(f"[bold]{escape(each.recipe.name)}[/]: {escape(verdict)}", soft_wrap=True)
    console.print(f"written: {escape(str(out))}", soft_wrap=True)


def _print(report: "Report") -> None:
    from effdeg_lab.tables import Table, to_terminal

    console = Console(highlight=False)
    for part in report.list_parts():
        console.print(to_terminal(part, console.width) if isinstance(part, Table) else escape(part))
        for note in part.notes if isinstance(part, Table) else ():
            console.print(f"[dim]{escape(note)}[/]")


def _check_file(option: str, file: Path | None, suffixes: set[str]) -> None:
    """Raise, before any work, if a result could not be written."""
    if file is not None and (file.suffix not in suffixes or file.is_dir()):
        raise ValueError(f"{option} {file}: expected a file that ends in {' or '.join(sorted(suffixes))}.")
    if file is not None and not file.absolute().parent.is_dir():
        raise ValueError(f"{option} {file}: the folder {file.parent} does not exist.")
