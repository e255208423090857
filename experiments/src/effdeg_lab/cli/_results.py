"""Look at results: ``table`` and ``report``."""

from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from effdeg_lab.cli._options import RECIPES, RUNS, KeptRuns, Name, Runs, Smoke, open_recipe, read_runs
from effdeg_lab.cli._output import print_parts, print_rich


def table(
    name: Name,
    runs: Runs = RUNS,
    changes: KeptRuns = None,
    format: Annotated[Literal["terminal", "markdown", "latex", "json"], Option(help="Output format.")] = "terminal",  # noqa: A002
    csv: Annotated[Path | None, Option(help="Also write the models of a pool (.csv).")] = None,
    plot: Annotated[Path | None, Option(help="Also draw its figure (.png, .pdf, .svg).")] = None,
    smoke: Smoke = False,
) -> None:
    """Show the results of a recipe next to the paper's numbers."""
    import pandas as pd

    from effdeg.io import check_target, to_json, write_atomically, write_figure
    from effdeg_lab.experiments.pools.study import PoolStudy, read_models
    from effdeg_lab.show.report import report_on, to_dict, to_text

    recipe, runs = open_recipe(name, runs, smoke=smoke)
    changed = recipe.settings.parse(changes or ())
    check_target("--plot", plot, {".png", ".pdf", ".svg"})
    check_target("--csv", csv, {".csv"})
    if csv and not isinstance(recipe.study, PoolStudy):
        raise ValueError(f"--csv {csv}: {name} is not a pool of models; only pools have such a table.")
    report = report_on(recipe, read_runs(runs), changed)
    results = report.results[0]
    figures = recipe.study.figures(results) if plot and results.done else []
    if (csv and not results.done) or (plot and not figures):
        raise ValueError(f"{csv or plot} cannot be written: {runs} has too few finished runs of {name}.")
    if plot:
        write_figure(figures[0].draw("light"), plot)
    if csv:
        write_atomically(csv, pd.DataFrame(read_models(results)).to_csv(index=False).encode())
    if format == "json":
        print(to_json(to_dict(report)))
    elif format != "terminal":
        print(to_text(report, format), end="")
    else:
        console = Console(highlight=False)
        for file in filter(None, (plot, csv)):
            console.print(f"written: {escape(str(file))}, {escape(results.heading)}", soft_wrap=True)
        print_parts(console, report.list_parts())


def report(
    names: Annotated[list[str] | None, Argument(metavar="[NAME]...", help=f"Recipes {RECIPES}; all if none.")] = None,
    runs: Runs = RUNS,
    out: Annotated[Path, Option(help="The page to write (.html).")] = Path("effdeg-lab.html"),
) -> None:
    """Write all results as one self-contained page."""
    from effdeg.io import check_target, write_atomically
    from effdeg_lab.core.progress import progress_bar
    from effdeg_lab.core.recipe import all_recipes, find_recipe
    from effdeg_lab.show.report import render_page, report_on

    recipes = [find_recipe(name) for name in names] if names else list(all_recipes().values())
    check_target("--out", out, {".html"})
    found, reports = read_runs(runs), []
    with progress_bar("comparing", len(recipes), enabled=True) as update:
        for number, recipe in enumerate(recipes):
            update(number, recipe.name)
            reports.append(report_on(recipe, found))
        update(len(recipes))
    with progress_bar("drawing", len(reports), enabled=True) as update:
        write_atomically(out, render_page(reports, update).encode())
        update(len(reports))
    for each in reports:
        verdict = str(each.verdicts[0]) if each.shown else "not run"
        print_rich(f"[bold]{escape(each.recipe.name)}[/]: {escape(verdict)}")
    print_rich(f"written: {escape(str(out))}")
