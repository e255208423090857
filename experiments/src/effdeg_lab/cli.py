"""The command ``effdeg-lab``. Commands import what they need, so that ``--help`` does not wait for torch."""

import json as json_module
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from typer import Option

from effdeg_lab import cli_report
from effdeg_lab.cli_report import RUNS, Name, Runs
from effdeg_lab.settings import format_setting

if TYPE_CHECKING:
    import torch

    from effdeg_lab.recipe import Recipe
    from effdeg_lab.runs import Run, RunFolder
    from effdeg_lab.sweep import Plan

T = TypeVar("T")
_ALIVE = 600  # seconds after which a run that was not heard of is taken for killed; runs save about every minute
app = typer.Typer(
    name="effdeg-lab",
    help="The paper's experiments, to be run again: recipes, runs, sweeps, tables and a report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(cli_report.table)
app.command()(cli_report.report)
_traceback = False

Changes = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a setting; once for each.")]
Data = Annotated[Path | None, Option(metavar="DIR", envvar="EFFDEG_DATA", help="The folder that holds the data sets.")]
Device = Annotated[str | None, Option(help="Where to run; a GPU if there is one.")]
Json = Annotated[bool, Option("--json", help="Print JSON, for programs.")]


@app.command("list")
def list_recipes(json: Json = False) -> None:
    """List the recipes: what each is, where in the paper, how many runs it has, and what they cost."""
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
    _print_table(("recipe", "what", "runs"), rows)


@app.command()
def show(
    name: Name,
    method: Annotated[str | None, Option(help="A method whose settings to show.")] = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Show a recipe: what the paper found, the methods that are compared, and all settings of a run."""
    from effdeg_lab.recipe import find_recipe

    recipe = find_recipe(name)
    base = recipe.settings if method is None else recipe.resolve(recipe.method(method))
    settings, usual = base.change(recipe.settings.parse(changes or ())).to_dict(), recipe.settings.to_dict()
    if json:
        print(json_module.dumps(_to_dict(recipe) | {"settings": settings}))
        return
    _print(f"[bold]{escape(recipe.name)}[/]: {escape(recipe.title)}")
    facts = {"paper": recipe.paper, "found there": recipe.expects, "differs": recipe.departs, "cost": recipe.cost}
    _print_facts({**facts, "--equal-time": recipe.equal_time or ""})
    rows = []
    for each in recipe.methods:
        tuned = "".join(f"\ntuned: {key} {' '.join(map(format_setting, tried))}" for key, tried in each.tune.items())
        about = f"{escape(each.title)}\n[dim]{escape(_format(each.changes) + tuned)}[/]"
        rows.append((each.name, about, str(each.paper or "")))
    _print_table(("--method", "what", "paper"), rows)
    for key, value in settings.items():
        note = f"  [dim]recipe: {escape(format_setting(usual[key]))}[/]" if value != usual[key] else ""
        _print(f"{key}={escape(format_setting(value))}{note}")


@app.command()
def run(
    name: Name,
    method: Annotated[str | None, Option(help="The method; the first if not given.")] = None,
    seed: Annotated[int, Option(help="Decides everything that is random.")] = 0,
    changes: Changes = None,
    data: Data = None,
    runs: Runs = RUNS,
    device: Device = None,
    json: Json = False,
) -> None:
    """Carry out one run, or what is left of it; one that is finished is shown.

    Tuned settings have the values that a sweep found best, if one has, unless --set says otherwise. Under torchrun the
    processes share the work.

    SIGTERM makes the run save and exit with code 75, on which job schedulers can requeue it (Slurm:
    [bold]RequeueExit=75[/] in slurm.conf, and [bold]sbatch --requeue[/]). Started again, it continues.
    """
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.runs import REQUEUE, Job, RunFolder, StoppedError
    from effdeg_lab.sweep import Plan, check_data
    from effdeg_lab.workers import execute, is_first_process

    recipe = find_recipe(name)
    chosen = recipe.methods[0] if method is None else recipe.method(method)
    wanted = {"seed": seed, **recipe.settings.parse(changes or ())}
    base, where, folder = recipe.resolve(chosen), _pick_device(device), RunFolder(runs)
    check_data([recipe.resolve(chosen, wanted)], data)
    with _join_processes():
        # The first process decides for all: what another one sees in the folder may already be something else.
        plan, first = Plan(recipe, [chosen.name], changes=wanted), is_first_process()
        tuned, tried = _broadcast(plan.get_tuned(chosen, folder.read(brief=True)) if first else ({}, 0))
        settings, speaks = recipe.resolve(chosen, {**tuned, **wanted}), first and not json
        job = Job(settings, recipe.name, chosen.name, base, folder, where, data, progress=speaks)
        if speaks:
            note = f", {_format(tuned)} (the best of {tried} tried)" if tuned else ""
            _print(f"[bold]{escape(recipe.name)}[/]: {escape(chosen.title)}, seed {settings.seed}{escape(note)}")
        found = job.read()
        finished = _broadcast(found is not None and found.finished)
        try:
            if not finished:
                execute(recipe, job)
        except StoppedError:
            if speaks:
                _print(f"stopped; start it again, and it continues from {escape(str(job.folder))}")
            raise typer.Exit(REQUEUE) from None
    found = job.read()
    if not first or found is None:
        return
    if json:
        print(json_module.dumps(_describe_run(found)))
        return
    if finished:
        _print(f"finished before; delete {escape(str(found.file))} to run it again")
    _print(f"[bold]{escape(recipe.study.headline(found))}[/]")
    numbers = {key.replace("_", " "): _format_number(value) for key, value in (found.summary or {}).items()}
    _print_facts({**numbers, "device": found.machine, "kept in": str(found.file)})


@app.command()
def sweep(
    name: Name,
    method: Annotated[list[str] | None, Option(help="A method, once for each; all if none.")] = None,
    seeds: Annotated[str, Option(help="Seeds, as 0,1,2; the recipe's if not given.")] = "",
    changes: Changes = None,
    no_tune: Annotated[bool, Option("--no-tune", help="Do not tune; what was tuned before is used.")] = False,
    tune: Annotated[
        list[str] | None, Option(metavar="KEY=VALUE", help="Change a setting of tuning runs alone.")
    ] = None,
    equal_time: Annotated[str | None, Option(metavar="METHOD", help="Then train all for as long as this one.")] = None,
    processes: Annotated[int, Option(help="How many runs at once; on Ray, how many share a GPU.")] = 1,
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="Run on Ray; [bold]local[/] for this machine.")] = None,
    data: Data = None,
    runs: Runs = RUNS,
    device: Device = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only list what would be run.")] = False,
) -> None:
    """Carry out all runs of a recipe: first those that tune, then every method with every seed.

    What is finished is skipped and what was started continues, so that a sweep can be ended and started again at any
    time. A run that fails stops no other. Several sweeps may share a folder: each run is carried out once.

    SIGTERM and Ctrl-C make all runs save and stop. After SIGTERM the exit code is 75, on which job schedulers can
    requeue the sweep (Slurm: [bold]RequeueExit=75[/] in slurm.conf, and [bold]sbatch --requeue[/]).
    """
    from effdeg_lab import sweep as sweeping
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.runs import REQUEUE, RunFolder, StoppedError

    recipe, folder = find_recipe(name), RunFolder(runs)
    asked, tuning = recipe.settings.parse(changes or ()), recipe.settings.parse(tune or (), option="--tune")
    plan = sweeping.Plan(recipe, method or (), _parse_seeds(seeds), asked, not no_tune, tuning, equal_time)
    if dry_run:
        plan.check(data)
        _print_table(("method", "for", "seed", "settings", "state"), _list_planned(plan, folder))
        return
    where = _pick_device(device)
    try:
        outcome = sweeping.sweep(plan, runs=folder, device=where, data=data, processes=processes, ray=ray)
    except StoppedError:
        _print("stopped; start it again, and it continues")
        raise typer.Exit(REQUEUE) from None
    counts = Counter(each.ending for each in outcome)
    _print(f"{', '.join(f'{count} {ending}' for ending, count in counts.items())}; kept in {escape(str(runs))}")
    for planned, ending, error in outcome:
        if ending == "failed":
            found = folder.find(planned.settings)
            log = found.file.with_suffix("") / "log.txt" if found else runs
            what = f"{planned.method}, {planned.purpose}, seed {planned.settings.seed}"
            _print(f"[red]{escape(what)}[/]: {escape(error)} ({escape(str(log))})")
    if counts["failed"] or counts["stopped"]:
        raise typer.Exit(1 if counts["failed"] else REQUEUE)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Only its runs.")] = None,
    runs: Runs = RUNS,
    json: Json = False,
) -> None:
    """Show which runs of a folder are finished, running, stopped and failed, whoever started them, on any machine."""
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.runs import RunFolder

    if name is not None:
        find_recipe(name)
    if not runs.is_dir():
        raise ValueError(f"--runs {runs}: there is no such folder. Give the one that run or sweep kept runs in.")
    found = [run for run in RunFolder(runs).read(brief=True) if name in {None, run.recipe}]
    if json:
        print(json_module.dumps([_describe_run(run) for run in found]))
        return
    states = ("finished", "running", "stopped", "failed")
    counts = Counter((run.recipe, run.method, _get_state(run)) for run in found)
    groups = dict.fromkeys((run.recipe, run.method) for run in found)
    rows = [[*map(escape, group), *(str(counts[*group, state] or "") for state in states)] for group in groups]
    _print_table(("recipe", "method", *states), rows)
    for run in found:
        if _get_state(run) == "running":
            score = run.metrics[-1].get("test_accuracy") if run.metrics else None
            said = "" if score is None else f"{score:.1%}, "
            _print(f"{escape(run.name)}: {said}{_get_age(run):.0f} s ago")
        elif run.failure is not None:
            _print(f"[red]{escape(run.name)}[/]: {escape(run.failure.strip().splitlines()[-1])}")


@app.callback()
def _options(
    traceback: Annotated[bool, Option("--traceback", help="Show where in the code an error arose.")] = False,
) -> None:
    global _traceback
    _traceback = traceback


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error is printed as one clear sentence, with a traceback only under ``--traceback``."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)

    def warn(message: Warning | str, *_: object, **__: object) -> None:
        console.print(f"[bold yellow]warning:[/] {escape(' '.join(str(message).split()))}")

    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            app(arguments, prog_name="effdeg-lab")
    except Exception as error:
        if _traceback:
            raise
        console.print(f"[bold red]error:[/] {escape(str(error))}")
        for note in getattr(error, "__notes__", ()):
            console.print(escape(note))
        if not isinstance(error, ValueError | TypeError | OSError | ImportError):  # not a message written for users
            console.print(f"[dim]({type(error).__name__}; effdeg-lab --traceback … shows where it arose)[/]")
        raise SystemExit(2) from error


def _to_dict(recipe: "Recipe") -> dict[str, Any]:
    return {key: value for key, value in asdict(recipe).items() if key not in {"run", "study"}}


def _list_planned(plan: "Plan", folder: "RunFolder") -> Iterator[list[str]]:
    finals = plan.plan_final(folder.read(brief=True))
    timed = plan.plan_equal_time(finals, folder) if plan.equal_time is not None else []
    planned = [*plan.plan_tuning(), *finals, *timed]
    for each, known in zip(planned, folder.find_all([each.settings for each in planned]), strict=True):
        base = plan.recipe.resolve(plan.recipe.method(each.method), {"seed": each.settings.seed}).to_dict()
        changed = {key: value for key, value in each.settings.to_dict().items() if value != base[key]}
        state = "to run" if known is None else _get_state(known)
        yield [escape(each.method), each.purpose, str(each.settings.seed), escape(_format(changed)), state]


def _get_state(run: "Run") -> str:
    """Return how a run is doing; one that was killed without a trace counts as running for ten minutes."""
    end = "finished" if run.finished else "failed" if run.failure is not None else "stopped" if run.stopped else None
    return end or ("running" if _get_age(run) < _ALIVE else "stopped")


def _get_age(run: "Run") -> float:
    return max(0.0, time.time() - run.file.stat().st_mtime)


def _describe_run(run: "Run") -> dict[str, Any]:
    return asdict(run) | {"file": str(run.file), "state": _get_state(run), "seconds_ago": round(_get_age(run))}


def _pick_device(name: str | None) -> "torch.device":
    import torch

    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"--device {name} is not a device: write cpu, cuda or cuda:1.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name} was asked for, but torch finds no such device on this machine.")
    return device


def _parse_seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"--seeds {text} is not a list of whole numbers such as 0,1,2.") from None


@contextmanager
def _join_processes() -> Iterator[None]:
    """Join the processes that ``torchrun`` started, if it did."""
    import torch
    from torch import distributed

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        distributed.barrier()  # if a process left early, another that still waits for it could hang
    finally:
        distributed.destroy_process_group()


def _broadcast(value: T) -> T:
    """Return what the first process has."""
    from torch import distributed

    shared = [value]
    if distributed.is_available() and distributed.is_initialized():
        distributed.broadcast_object_list(shared)
    return shared[0]


def _format(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={format_setting(value)}" for key, value in values.items())


def _format_number(value: Any) -> str:
    if isinstance(value, Mapping) and value.keys() >= {"value", "stderr"}:
        return " ± ".join(filter(None, (_format_number(value[key]) for key in ("value", "stderr"))))
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, int | str) else ""


def _print(what: RenderableType) -> None:
    Console(highlight=False).print(what, soft_wrap=isinstance(what, str))


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _print(table)


def _print_facts(facts: Mapping[str, str]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for label, text in facts.items():
        if text:
            grid.add_row(f"[dim]{label}[/]", escape(text))
    _print(grid)
