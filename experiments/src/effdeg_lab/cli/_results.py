"""Look at results: ``table`` and ``report``; measure fine-tuned networks: ``clip-pool`` and ``soup``."""

from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from effdeg_lab.cli._options import (
    RECIPES,
    RUNS,
    Data,
    Device,
    KeptRuns,
    Name,
    Runs,
    Smoke,
    open_recipe,
    pick_device,
    read_runs,
)
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
        lacks = f"{runs} has too few finished runs of it"
        raise ValueError(f"{csv or plot} cannot be written: {name} has no figure, or {lacks}.")
    if plot:
        write_figure(figures[0].draw("light"), plot)
    if csv:
        write_atomically(csv, pd.DataFrame(read_models(results)).to_csv(index=False).encode())
    if format == "json":
        print(to_json(to_dict(report)))
    elif format != "terminal":
        print(to_text(report, format), end="")
    else:
        for file in filter(None, (plot, csv)):
            print_rich(f"written: {escape(str(file))}, {escape(results.heading)}")
        print_parts(report.list_parts())


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
    all_runs, reports = read_runs(runs), []
    with progress_bar("comparing", len(recipes), enabled=True) as update:
        for number, recipe in enumerate(recipes):
            update(number, recipe.name)
            reports.append(report_on(recipe, all_runs))
        update(len(recipes))
    with progress_bar("drawing", len(reports), enabled=True) as update:
        write_atomically(out, render_page(reports, update).encode())
        update(len(reports))
    for each in reports:
        verdict = str(each.verdicts[0]) if each.shown else "not run"
        print_rich(f"[bold]{escape(each.recipe.name)}[/]: {escape(verdict)}")
    print_rich(f"written: {escape(str(out))}")


def clip_pool(
    out: Annotated[Path, Argument(help="The table (.csv); missing rows are measured.", show_default=False)],
    checkpoints: Annotated[Path, Option(metavar="DIR", help="The folder of model soups.")],
    clip: Annotated[Path, Option(metavar="DIR", help="CLIP ViT-B/32, a Hugging Face model folder.")],
    data: Data = None,
    workers: Annotated[int, Option(help="Processes that decode images.")] = 8,
    device: Device = None,
) -> None:
    """Measure the fine-tuned CLIPs of model soups, one after another; **effdeg rank** then ranks the measures.

    The folder of checkpoints holds model_1.pt to model_71.pt, hparam_info.json and individual_model_results.jsonl of
    mlfoundations/model-soups; the data folder holds ImageNet. After an interruption, the same command continues.
    """
    from effdeg.io import check_target
    from effdeg_lab.data.sources import require_folder
    from effdeg_lab.experiments.pools.clip import measure_clip_pool

    check_target("OUT", out, {".csv"})
    folder = require_folder("imagenet", data)
    table = measure_clip_pool(
        out, checkpoints, clip, folder, workers=workers, device=str(pick_device(device)), progress=True
    )
    print_rich(f"written: {escape(str(out))}, {len(table)} models")


def soup(name: Name, changes: KeptRuns = None, data: Data = None, runs: Runs = RUNS, device: Device = None) -> None:
    """Average the weights of a fine-tuning sweep's tuning runs, and test the soups.

    The greedy soup is chosen on the training images that these runs held out. The result is kept in the recipe's folder
    of runs, where **effdeg-lab table** finds it.
    """
    from effdeg.io import to_json, write_atomically
    from effdeg_lab.core.recipe import find_recipe
    from effdeg_lab.core.runs import RunFolder
    from effdeg_lab.experiments.shifts.soups import measure_soups
    from effdeg_lab.experiments.shifts.study import SOUPS, Shifts, tabulate_soups
    from effdeg_lab.show.tables import to_terminal

    recipe, where = find_recipe(name), pick_device(device)
    if not isinstance(recipe.study, Shifts):
        raise ValueError(f"{name} does not fine-tune a pretrained network: there are no soups to make.")
    soups = measure_soups(recipe, read_runs(runs), data, where, recipe.settings.parse(changes or ()))
    # By the recipe's name: runs with equal settings that another recipe made may have tuned its methods.
    file = RunFolder(runs).locate(recipe.name) / SOUPS
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, f"{to_json(soups)}\n".encode())
    print_rich(to_terminal(tabulate_soups(soups), Console().width))
    print_rich(f"written: {escape(str(file))}")
