"""``effdeg lab sweep``: all runs of an experiment, less those that are finished."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from effdeg.cli import _lab_options as lo
from effdeg.cli import _options as o
from effdeg.lab import Outcome, Recipe, Store, all_recipes, find_recipe
from effdeg.lab import sweep as carry_out
from effdeg.lab.jobs import Job, equal_time_jobs, final_jobs, tuning_jobs
from effdeg.lab.settings import differences, digest, parsed, to_dict

# A recipe of one's own, package.module:RECIPE, and no address, which ends with the number of a port.
_OWN = re.compile(r"[\w.]+:[A-Za-z_]\w*")


class Command(TyperCommand):
    """Takes ``--ray`` without an address for a Ray of this machine's own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill in the address that was left out."""
        filled = []
        for argument, following in zip(args, [*args[1:], "-"], strict=True):
            if argument == "--ray" and (following in all_recipes() or _OWN.fullmatch(following)):
                raise ValueError(
                    f"--ray {following}: the name of the recipe was taken for the address of Ray. Write the recipe "
                    f"first: effdeg lab sweep {following} --ray."
                )
            filled += [argument, "local"] if argument == "--ray" and following.startswith("-") else [argument]
        return super().parse_args(ctx, filled)


def sweep(
    name: lo.Name,
    method: Annotated[
        list[str] | None, typer.Option(help="A line of its table, once for each; all if none.", show_default=False)
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as 0,1,2; the recipe's if not given.", show_default=False)] = "",
    changes: lo.Changes = None,
    no_tune: Annotated[bool, typer.Option("--no-tune", help="Do not tune; what was tuned before is used.")] = False,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Change a setting of the runs that tune alone; once for each.", show_default=False
        ),
    ] = None,
    equal_time: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Then run all again, each for the time that this one took.", show_default=False
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="How many runs at once; on Ray, how many share a GPU.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]", help="Run on Ray, on this machine if no address follows.", show_default=False
        ),
    ] = None,
    data: lo.Data = None,
    runs: lo.Runs = lo.RUNS,
    device: lo.Device = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be run.")] = False,
) -> None:
    """Carry out all runs of an experiment: first those that tune strengths, then every method with every seed.

    What is finished is skipped and what was begun goes on, so that a sweep can be ended and started again at any time.
    A run that fails stops no other.
    """
    found, store = find_recipe(name), Store(runs)
    plan: dict[str, Any] = {
        "methods": method or None,
        "changes": parsed(found.settings, changes or ()),
        "tuning_changes": parsed(found.settings, tune or (), option="--tune"),
    }
    numbers = _seeds(seeds)
    console = Console(highlight=False)
    if dry_run:
        tuning = [] if no_tune else tuning_jobs(found, **plan)
        final = final_jobs(found, store.records(), seeds=numbers, **plan)
        timed, notes = ([], []) if equal_time is None else equal_time_jobs(found, final, store, equal_time)
        console.print(_planned(found, store, [*tuning, *final, *timed], equal_time, console.width))
        if notes:
            console.print(f"How many epochs take the time of {equal_time} is known for more lines once they are run.")
        return
    outcome = carry_out(
        found,
        store=store,
        data=data,
        device=o.pick_device(device),
        processes=processes,
        ray=ray,
        seeds=numbers,
        tune=not no_tune,
        equal_time=equal_time,
        **plan,
    )
    _tell(console, outcome, runs)
    if outcome.failed:
        raise typer.Exit(1)
    where = "" if runs == lo.RUNS else f" --runs {runs}"
    same = "".join(f" --set {change}" for change in changes or ())
    console.print(f"[dim]effdeg lab table {escape(name + where + same)} shows the result.[/]", soft_wrap=True)


def _seeds(text: str) -> list[int] | None:
    try:
        return [int(part) for part in text.split(",") if part.strip()] or None
    except ValueError:
        raise ValueError(f"--seeds {text} is not a list of whole numbers such as 0,1,2.") from None


def _tell(console: Console, outcome: Outcome, runs: Path) -> None:
    """Describe how a sweep went."""
    console.print(f"{outcome.counts}; kept in {escape(str(runs))}", soft_wrap=True)
    for note in outcome.notes:
        console.print(f"[yellow]{escape(note)}[/]", soft_wrap=True)
    for failure in outcome.failed:
        what = f"{failure.job.row}, {failure.job.purpose}, seed {failure.job.settings.seed}"
        console.print(f"[red]{escape(what)}[/]: {escape(failure.error)} ({escape(str(failure.log))})", soft_wrap=True)


def _planned(found: Recipe[Any], store: Store, jobs: list[Job], equal_time: str | None, width: int) -> Table:
    """List what would be run, and what of it is done."""
    states = {digest(job.settings): _state(store, job) for job in jobs}
    untuned = {job.row for job in jobs if job.purpose == "tuning" and states[digest(job.settings)] != "finished"}
    rows = []
    for job in jobs:
        row, run, seed = found.row(job.row), digest(job.settings), job.settings.seed
        own = {key: new for key, (new, _) in differences(job.settings, found.resolved(row, {"seed": seed})).items()}
        own |= {key: to_dict(job.settings)[key] for key in row.strengths}
        state = states[run]
        unknown = dict.fromkeys(row.strengths, "as tuned") if job.row in untuned else {}
        if job.purpose == "equal time" and untuned & {job.row, equal_time}:
            unknown["epochs"] = "as timed"
        if job.purpose != "tuning" and unknown:
            own, run, state = own | unknown, "–", "once tuned"
        rows.append((job.row, job.purpose, str(seed), lo.assignments(own), run, state))
    return lo.word_table(f"runs of {found.name}", ("method", "for", "seed", "settings", "run", "state"), rows, width)


def _state(store: Store, job: Job) -> str:
    run = store.run(job.settings)
    return "finished" if run.finished else "begun" if run.folder.exists() else "to run"
