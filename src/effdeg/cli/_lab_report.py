"""``effdeg lab table`` and ``effdeg lab report``: what was run, next to what the paper found."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from effdeg._utils.files import to_json, write_atomically, write_figure
from effdeg.cli import _lab_options as lo
from effdeg.cli._output import check_figures, check_plot, check_target
from effdeg.lab import Recipe, all_recipes, find_recipe
from effdeg.lab.report import RecipeResult, plain, result_of
from effdeg.lab.report.shared_runs import run_and_not
from effdeg.lab.report.sheets import block_sheets, further
from effdeg.lab.report.terminal import terminal
from effdeg.lab.report.text import document
from effdeg.lab.report.wording import sweep_command
from effdeg.lab.settings import parsed


def table(
    name: lo.Name,
    runs: lo.Runs = lo.RUNS,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Keep runs with this setting only; once for each.", show_default=False
        ),
    ] = None,
    format: Annotated[  # noqa: A002  (as users know it)
        Literal["terminal", "markdown", "latex", "json"], typer.Option(help="How to write it.")
    ] = "terminal",
    csv: Annotated[
        Path | None,
        typer.Option(help="Write the models of a pool, for [bold]effdeg rank[/] (.csv).", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw its figure into this file (.png, .pdf, .svg).", show_default=False)
    ] = None,
) -> None:
    """Show what was found of an experiment next to the paper's numbers, at equal epochs and at equal time."""
    found = find_recipe(name)
    kept = parsed(found.settings, changes or ())
    check_plot(plot)
    check_target("--csv", csv, {".csv"})
    if csv is not None and found.shows != "pool":
        raise ValueError(f"--csv {csv}: {name} is no pool of models, only those have such a table.")
    result = result_of(found, lo.records_in(runs), kept)
    if plot is not None:
        _draw(result, plot, runs)
    if csv is not None:
        _write_models(result, csv, runs)
    if format == "json":
        print(to_json(plain.to_dict(result)))
    elif format == "terminal":
        _print(result, runs, kept)
        for file in (plot, csv):
            if file is not None:
                Console(highlight=False).print(f"written: {escape(str(file))}", soft_wrap=True)
    else:
        print(document(result, format), end="")


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Recipes of [bold]effdeg lab list[/]; all if none.", show_default=False
        ),
    ] = None,
    runs: lo.Runs = lo.RUNS,
    out: Annotated[Path, typer.Option(help="The page to write (.html).")] = Path("effdeg-lab.html"),
) -> None:
    """Write one page with all tables and figures, which needs no other file and no network."""
    found: list[Recipe[Any]] = [find_recipe(name) for name in names] if names else list(all_recipes().values())
    check_figures()
    check_target("--out", out, {".html"})
    records = lo.records_in(runs)
    from effdeg.lab.report.page import page

    results = [result_of(each, records) for each in found]
    write_atomically(out, page(results).encode())
    console = Console(highlight=False)
    shown, absent = run_and_not(results)
    said = [(result, str(result.findings[result.blocks[0]])) for result in shown]
    said += [(result, f"Not run yet{f' ({shares})' if shares else ''}.") for result, shares in absent]
    for result, sentences in said:
        console.print(f"[bold]{escape(result.recipe.name)}[/]: {escape(sentences)}", soft_wrap=True)
    console.print(f"written: {escape(str(out))}", soft_wrap=True)


def _print(result: RecipeResult, runs: Path, kept: dict[str, Any]) -> None:
    console = Console(highlight=False)
    about = result.recipe
    console.print(f"[bold]{escape(about.name)}[/]: {escape(about.title)} ({escape(about.paper)})")
    console.print(f"[dim]the paper: {escape(about.expects)}[/]")
    if kept:
        console.print(f"only runs with {escape(lo.assignments(kept))}")
    for block in result.blocks:
        console.print(f"\n{escape(str(result.findings[block]))}")
        for sheet in block_sheets(block):
            console.print(terminal(sheet, console.width))
            for note in sheet.notes:
                console.print(f"[dim]{escape(note)}[/]")
    for sentence in further(result):
        console.print(f"also run: {escape(sentence)}")
    if about.departs:
        console.print(f"[dim]not the paper's: {escape(about.departs)}[/]")
    if not result.runs:
        console.print(
            f"No finished run lies in {escape(str(runs))}. To run it ({escape(about.cost)}): "
            f"{escape(sweep_command(about))} --runs {escape(str(runs))}",
            soft_wrap=True,
        )


def _draw(result: RecipeResult, file: Path, runs: Path) -> None:
    from effdeg.lab.report.figures import drawings

    drawn = drawings(result.blocks[0])
    if not drawn:
        raise ValueError(f"--plot {file}: no finished run of {result.recipe.name} in {runs} has anything to draw.")
    write_figure(drawn[0].draw("light"), file)


def _write_models(result: RecipeResult, file: Path, runs: Path) -> None:
    pool = result.blocks[0].pool
    if pool is None or not pool.table:
        raise ValueError(f"--csv {file}: no finished run of {result.recipe.name} lies in {runs}.")
    pool.write_csv(file)
