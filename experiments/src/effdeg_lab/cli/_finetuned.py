"""Measure fine-tuned networks: published ones (``clip-pool``) and means of finished runs (``soup``)."""

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from effdeg_lab.cli._options import RUNS, Data, Device, KeptRuns, Name, Runs, pick_device, read_runs
from effdeg_lab.cli._output import print_parts, print_rich


def clip_pool(
    out: Annotated[Path, Argument(help="The table (.csv); missing rows are measured.", show_default=False)],
    checkpoints: Annotated[
        Path | None, Option(metavar="DIR", help="Model soups. If not given, only rank the table and draw its figures.")
    ] = None,
    clip: Annotated[Path | None, Option(metavar="DIR", help="CLIP ViT-B/32, a Hugging Face model folder.")] = None,
    data: Data = None,
    workers: Annotated[int, Option(help="Processes that decode images.")] = 8,
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="Run on Ray; **local** for this machine.")] = None,
    device: Device = None,
) -> None:
    """Measure the fine-tuned CLIPs of model soups, one after another, and draw the paper's Figures 3 and 8.

    The folder of checkpoints holds model_1.pt to model_71.pt, hparam_info.json and individual_model_results.jsonl of
    mlfoundations/model-soups; the data folder holds ImageNet. After an interruption, the same command continues.
    """
    from effdeg.io import check_target, write_figure
    from effdeg_lab.experiments.pools.clip import FIGURES, NOTE, measure_clip_pool, rank_clip_pool
    from effdeg_lab.experiments.pools.random_search import list_tables, plot_panels

    check_target("OUT", out, {".csv"})
    if checkpoints is not None:
        if clip is None or data is None:
            raise ValueError(f"--checkpoints {checkpoints} needs --clip DIR and --data DIR as well.")
        where = device if ray else str(pick_device(device))  # on Ray, it is on other machines
        measure_clip_pool(out, checkpoints, clip, data, workers=workers, ray=ray, device=where, progress=True)
    elif not out.is_file():
        raise FileNotFoundError(
            f"{out} does not exist: to measure it, add --checkpoints DIR, --clip DIR and --data DIR."
        )
    ranking = rank_clip_pool(out)
    console = Console(highlight=False)
    for stratum in ranking.strata:
        file = out.with_name(f"{out.stem}-figure-{FIGURES[stratum]}.png")
        write_figure(plot_panels(ranking, stratum, "light"), file)
        console.print(f"written: {escape(str(file))}, {escape(stratum)}", soft_wrap=True)
    print_parts(console, list_tables(ranking, f"{len(ranking.pool)} fine-tuned CLIPs", NOTE))


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
    console = Console(highlight=False)
    console.print(to_terminal(tabulate_soups(soups), console.width))
    print_rich(f"written: {escape(str(file))}")
