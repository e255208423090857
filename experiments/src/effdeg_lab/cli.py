"""The command ``effdeg-lab``. Commands import what they need, so that ``--help`` does not wait for torch."""

import json as json_module
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from effdeg_lab import cli_report
from effdeg_lab.cli_report import RUNS, Name, Runs
from effdeg_lab.settings import format_setting

if TYPE_CHECKING:
    import torch

    from effdeg_lab.plan import Plan
    from effdeg_lab.recipe import Method, Recipe
    from effdeg_lab.runs import RunFolder

T = TypeVar("T")
app = typer.Typer(
    name="effdeg-lab",
    help="The paper's experiments, to be run again: recipes, runs, sweeps, tables and a report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_traceback = False

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; once for each.", show_default=False),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="EFFDEG_DATA", help="The folder that holds the data sets.", show_default=False),
]
Device = Annotated[str | None, typer.Option(help="Where to run; a GPU if there is one.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command("list")
def list_recipes(json: Json = False) -> None:
    """List the recipes: what each is, where in the paper, how many runs it has, and what they cost."""
    from effdeg_lab.recipe import all_recipes

    found = [_describe_recipe(recipe) for recipe in all_recipes().values()]
    if json:
        print(json_module.dumps(found))
        return
    rows = []
    for each in found:
        tuning = f", and {each['tuning_runs']} to tune" if each["tuning_runs"] else ""
        what = f"{escape(each['title'])}\n[dim]{escape(each['paper'])} · {escape(each['cost'])}[/]"
        rows.append((each["name"], what, f"{each['runs']}{tuning}"))
    console = Console(highlight=False)
    console.print(_make_table(("recipe", "what", "runs"), rows))
    console.print("[dim]effdeg-lab show RECIPE says more; effdeg-lab run RECIPE runs one run, sweep RECIPE all.[/]")


@app.command()
def show(
    name: Name,
    method: Annotated[str | None, typer.Option(help="A method whose settings to show.", show_default=False)] = None,
    changes: Changes = None,
    json: Json = False,
) -> None:
    """Show a recipe: what the paper found, the methods that are compared, and all settings of a run."""
    from effdeg_lab.recipe import find_recipe

    recipe = find_recipe(name)
    base = recipe.settings if method is None else recipe.resolve(recipe.method(method))
    settings = base.change(recipe.settings.parse(changes or ())).to_dict()
    if json:
        methods = [{**asdict(each), "settings": recipe.resolve(each).to_dict()} for each in recipe.methods]
        more = {"expects": recipe.expects, "departs": recipe.departs, "settings": settings, "methods": methods}
        print(json_module.dumps({**_describe_recipe(recipe), **more}))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{escape(recipe.name)}[/]: {escape(recipe.title)}")
    facts = {"paper": recipe.paper, "found there": recipe.expects, "differs": recipe.departs, "cost": recipe.cost}
    timed = f"--equal-time {recipe.equal_time}" if recipe.equal_time else ""
    console.print(_make_grid({**facts, "compare by time": timed}))
    rows = []
    for each in recipe.methods:
        own = _format(_compare(recipe.resolve(each).to_dict(), recipe.settings.to_dict()))
        tuned = "".join(f"\ntuned: {key} {' '.join(map(format_setting, tried))}" for key, tried in each.tune.items())
        rows.append((each.name, f"{escape(each.title)}\n[dim]{escape(own + tuned)}[/]", str(each.paper or "")))
    console.print(_make_table(("--method", "what", "paper"), rows))
    for key, value in settings.items():
        usual = recipe.settings.to_dict()[key]
        note = f"  [dim]recipe: {escape(format_setting(usual))}[/]" if value != usual else ""
        console.print(f"{key}={escape(format_setting(value))}{note}")


@app.command()
def run(
    name: Name,
    method: Annotated[str | None, typer.Option(help="The method; the first if not given.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Decides everything that is random.")] = 0,
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
    from effdeg_lab.plan import check_data
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.runs import REQUEUE, Job, RunFolder, StoppedError
    from effdeg_lab.workers import execute, is_first_process

    recipe = find_recipe(name)
    chosen = recipe.methods[0] if method is None else recipe.method(method)
    wanted = {"seed": seed, **recipe.settings.parse(changes or ())}
    base, where, folder = recipe.resolve(chosen), _pick_device(device), RunFolder(runs)
    check_data([recipe.resolve(chosen, wanted)], data)
    console = Console(highlight=False)
    with _join_processes():
        # The first process decides for all: what another one sees in the folder may already be something else.
        speaks = is_first_process() and not json
        tuned, note = _broadcast(_get_tuned(recipe, chosen, folder, wanted) if is_first_process() else ({}, ""))
        settings = recipe.resolve(chosen, {**tuned, **wanted})
        job = Job(settings, recipe.name, chosen.name, base, folder, where, data, progress=speaks)
        if speaks:
            console.print(f"[bold]{escape(recipe.name)}[/]: {escape(chosen.title)}, seed {settings.seed}{escape(note)}")
        known = _broadcast(job.read() if is_first_process() else None)
        if known is None or not known.finished:
            try:
                execute(recipe, job)
            except StoppedError:
                if speaks:
                    console.print(f"stopped; start it again, and it continues from {escape(str(job.folder))}")
                raise typer.Exit(REQUEUE) from None
        if not is_first_process():
            return
    found = job.read()
    assert found is not None
    if json:
        what = {"recipe": found.recipe, "method": found.method, "file": str(found.file), "settings": found.settings}
        result = {"tuned": bool(tuned), "environment": found.environment, "summary": found.summary}
        print(json_module.dumps({**what, **result}))
        return
    if known is not None and known.finished:
        console.print(f"finished before; delete {escape(str(found.file))} to run it again", soft_wrap=True)
    console.print(f"[bold]{escape(recipe.study.headline(found))}[/]", soft_wrap=True)
    numbers = {key.replace("_", " "): _format_number(value) for key, value in (found.summary or {}).items()}
    console.print(_make_grid({**numbers, "device": found.machine, "kept in": str(found.file)}))


@app.command()
def sweep(
    name: Name,
    method: Annotated[
        list[str] | None, typer.Option(help="A method, once for each; all if none.", show_default=False)
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as 0,1,2; the recipe's if not given.", show_default=False)] = "",
    changes: Changes = None,
    no_tune: Annotated[bool, typer.Option("--no-tune", help="Do not tune; what was tuned before is used.")] = False,
    tune: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Change a setting of the runs that tune alone.", show_default=False),
    ] = None,
    equal_time: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Then train every method for as long as this one trained.", show_default=False
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="How many runs at once; on Ray, how many share a GPU.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on a Ray cluster; [bold]local[/] for this machine.", show_default=False
        ),
    ] = None,
    data: Data = None,
    runs: Runs = RUNS,
    device: Device = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be run.")] = False,
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
    plan = sweeping.Plan(
        recipe,
        method or (),
        _parse_seeds(seeds),
        recipe.settings.parse(changes or ()),
        not no_tune,
        recipe.settings.parse(tune or (), option="--tune"),
        equal_time,
    )
    console = Console(highlight=False)
    if dry_run:
        plan.check(data)
        console.print(_list_planned(plan, folder))
        return
    try:
        outcome = sweeping.sweep(
            plan, runs=folder, device=_pick_device(device), data=data, processes=processes, ray=ray
        )
    except StoppedError:
        console.print("stopped; start it again, and it continues")
        raise typer.Exit(REQUEUE) from None
    console.print(f"{outcome}; kept in {escape(str(runs))}", soft_wrap=True)
    for untimed in outcome.untimed:
        console.print(f"[yellow]{escape(untimed)}[/] has no run at equal time: its training time is not known.")
    for planned, error, log in outcome.failed:
        what = f"{planned.method}, {planned.purpose}, seed {planned.settings.seed}"
        console.print(f"[red]{escape(what)}[/]: {escape(error)} ({escape(str(log))})", soft_wrap=True)
    if outcome.failed or outcome.stopped:
        raise typer.Exit(1 if outcome.failed else REQUEUE)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="Only its runs.", show_default=False)] = None,
    runs: Runs = RUNS,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every few seconds, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show which runs of a folder are finished, running, stopped and failed, whoever started them, on any machine."""
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.status import count_waiting, describe_runs

    if name is not None:
        find_recipe(name)
    if not runs.is_dir():
        raise ValueError(f"--runs {runs}: there is no such folder. Give the one that run or sweep kept runs in.")
    if json:
        waiting = [[*key, count] for key, count in count_waiting(runs, name).items()]
        print(json_module.dumps({"runs": describe_runs(runs, name), "waiting": waiting}))
        return
    if not watch:
        Console(highlight=False).print(_show_status(runs, name))
        return
    with suppress(KeyboardInterrupt), Live(_show_status(runs, name), auto_refresh=False) as live:
        while True:
            time.sleep(5)
            live.update(_show_status(runs, name), refresh=True)


app.command()(cli_report.table)
app.command()(cli_report.report)


@app.callback()
def _options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where in the code an error arose.")] = False,
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


def _describe_recipe(recipe: "Recipe") -> dict[str, Any]:
    return {
        "name": recipe.name,
        "title": recipe.title,
        "paper": recipe.paper,
        "cost": recipe.cost,
        "methods": [method.name for method in recipe.methods],
        "seeds": list(recipe.seeds),
        "equal_time": recipe.equal_time,
        "grid": dict(recipe.grid),
        "runs": len(recipe.methods) * len(list(recipe.points())) * len(recipe.seeds),
        "tuning": dict(recipe.tuning),
        "tuning_runs": sum(len(list(recipe.candidates(method))) for method in recipe.methods),
    }


def _get_tuned(
    recipe: "Recipe", method: "Method", folder: "RunFolder", wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """Return the values that tuning found best, unless the user has set one, and a note about them."""
    from effdeg_lab.results import choose

    if not (recipe.tuning and method.tune) or method.tune.keys() & wanted.keys():
        return {}, ""
    choice = choose(recipe, method, folder.read(brief=True), {**wanted, **recipe.tuning})
    if choice is None:
        return {}, ", not tuned yet"
    return dict(choice.changes), f", {_format(choice.changes)} (the best of {len(choice.tried)} tried)"


def _list_planned(plan: "Plan", folder: "RunFolder") -> Table:
    from effdeg_lab.status import get_state

    finals = plan.plan_final(folder.read(brief=True))
    planned = [*plan.plan_tuning(), *finals]
    if plan.equal_time is not None:
        planned += plan.plan_equal_time(finals, folder)[0]
    rows = []
    for each, known in zip(planned, folder.find_all([each.settings for each in planned]), strict=True):
        base = plan.recipe.resolve(plan.recipe.method(each.method), {"seed": each.settings.seed}).to_dict()
        state = "to run" if known is None else get_state(known)
        changed = _format(_compare(each.settings.to_dict(), base))
        rows.append(list(map(escape, (each.method, each.purpose, str(each.settings.seed), changed, state))))
    return _make_table(("method", "for", "seed", "settings", "state"), rows)


def _show_status(folder: Path, name: str | None) -> RenderableType:
    from effdeg_lab.status import count_waiting, describe_runs, describe_score, describe_seconds

    states = ("finished", "running", "stopped", "failed", "waiting")
    counts = {key: Counter(waiting=count) for key, count in count_waiting(folder, name).items()}
    notes = []
    for run in describe_runs(folder, name):
        counts.setdefault((run["recipe"], run["method"]), Counter())[run["state"]] += 1
        if run["state"] == "running":
            said = [*describe_score(run["last"]), f"{describe_seconds(run['seconds_ago'])} ago"]
            notes.append(f"{escape(run['name'])}: {', '.join(said)}")
        elif run["state"] == "failed":
            notes.append(f"[red]{escape(run['name'])}[/]: {escape(run['error'] or '')}")
    rows = [
        [*map(escape, key), *(str(found[state] or "") for state in states)] for key, found in sorted(counts.items())
    ]
    return Group(_make_table(("recipe", "method", *states), rows), *notes)


def _pick_device(name: str | None) -> "torch.device":
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
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

    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    shared = [value]
    distributed.broadcast_object_list(shared)
    return shared[0]


def _compare(settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value != base[key]}


def _format(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={format_setting(value)}" for key, value in values.items())


def _format_number(value: Any) -> str:
    if isinstance(value, Mapping) and value.keys() >= {"value", "stderr"}:
        stderr = "" if value["stderr"] is None else f" ± {_format_number(value['stderr'])}"
        return f"{_format_number(value['value'])}{stderr}"
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, int | str) else ""


def _make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _make_grid(facts: Mapping[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for label, text in facts.items():
        if text:
            grid.add_row(f"[dim]{label}[/]", escape(text))
    return grid
