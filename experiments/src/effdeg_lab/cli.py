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
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from typer import Argument, Option

from effdeg_lab.settings import format_setting

if TYPE_CHECKING:
    import torch

    from effdeg_lab import tables
    from effdeg_lab.recipe import Recipe
    from effdeg_lab.runs import Run, RunFolder
    from effdeg_lab.sweep import Plan

RUNS = Path("effdeg-runs")
_ALIVE = 600  # seconds after which a run that was not heard of is taken for killed; runs save about every minute
_WATCH = 5.0  # seconds between two looks
app = typer.Typer(
    name="effdeg-lab",
    help="The paper's experiments, to be run again: recipes, runs, sweeps, tables and a report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_traceback = False

_RECIPES = "of [bold]effdeg-lab list[/], or your own as [bold]package.module:RECIPE[/]"
Name = Annotated[str, Argument(help=f"A recipe {_RECIPES}.", show_default=False)]
Runs = Annotated[Path, Option(metavar="DIR", envvar="EFFDEG_RUNS", help="The folder where runs are kept.")]
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
    _print(_make_table(("recipe", "what", "runs"), rows))


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
    facts = {
        "in the paper": recipe.paper,
        recipe.source.lower(): recipe.expects,
        "differs": recipe.departs,
        "points": f"{len(recipe.points())}, which differ in {', '.join(recipe.axes)}" if recipe.axes else "",
        "cost": recipe.cost,
    }
    _print_facts({**facts, "--equal-time": recipe.equal_time or ""})
    rows = []
    for each in recipe.methods:
        tuned = "".join(f"\ntuned: {key} {' '.join(map(format_setting, tried))}" for key, tried in each.tune.items())
        about = f"{escape(each.title)}\n[dim]{escape(_format(each.changes) + tuned)}[/]"
        rows.append((each.name, about, str(each.paper or "")))
    _print(_make_table(("--method", "what", "paper"), rows))
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

    Tuned settings have the values that a sweep found best, if one has, and those of a random search the first that were
    drawn, unless --set says otherwise. Under torchrun the processes share the work.

    SIGTERM makes the run save and exit with code 75, on which job schedulers can requeue it (Slurm:
    [bold]RequeueExit=75[/] in slurm.conf, and [bold]sbatch --requeue[/]). Started again, it continues.
    """
    from effdeg_lab.engine.loop import gather
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.runs import REQUEUE, Job, RunFolder, StoppedError, get_rank_and_size
    from effdeg_lab.sweep import Plan
    from effdeg_lab.workers import execute

    recipe = find_recipe(name)
    chosen = recipe.methods[0] if method is None else recipe.method(method)
    point = recipe.search[0] if recipe.search else {}  # without it, the run would belong to no pool
    wanted = {**point, "seed": seed, **recipe.settings.parse(changes or ())}
    base, where, folder = recipe.resolve(chosen), _pick_device(device), RunFolder(runs)
    recipe.check_data([recipe.resolve(chosen, wanted)], data)
    with _join_processes():
        # The first process decides for all: what another one sees in the folder may already be something else.
        plan, first = Plan(recipe, [chosen.name], changes=wanted), get_rank_and_size()[0] == 0
        tuned, tried = gather(plan.get_tuned(chosen, folder.read(brief=True)) if first else ({}, 0))[0]
        settings, speaks = recipe.resolve(chosen, {**tuned, **wanted}), first and not json
        job = Job(settings, recipe.name, chosen.name, base, folder, where, data, progress=speaks)
        if speaks:
            note = f", {_format(tuned)} (the best of {tried} tried)" if tuned else ""
            _print(f"[bold]{escape(recipe.name)}[/]: {escape(chosen.title)}, seed {settings.seed}{escape(note)}")
        found = job.read()
        finished = gather(found is not None and found.finished)[0]
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
    together: Annotated[int, Option(help="How many networks of one kind to train in one step.")] = 1,
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
        _print(_make_table(("method", "for", "seed", "settings", "state"), _list_planned(plan, folder)))
        return
    where = _pick_device(device)
    try:
        outcome = sweeping.sweep(
            plan, runs=folder, device=where, data=data, processes=processes, together=together, ray=ray
        )
    except (StoppedError, KeyboardInterrupt) as stopped:
        _print("stopped; start it again, and it continues")
        raise typer.Exit(REQUEUE if isinstance(stopped, StoppedError) else 130) from None
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
    name: Annotated[str | None, Argument(metavar="[RECIPE]", help="Only its runs.")] = None,
    runs: Runs = RUNS,
    watch: Annotated[bool, Option("--watch", help="Look again every 5 seconds, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show which runs of a folder are finished, running, stopped and failed, whoever started them, on any machine."""
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.runs import RunFolder

    if name is not None:
        find_recipe(name)
    if not runs.is_dir():
        raise ValueError(f"--runs {runs}: there is no such folder. Give the one that run or sweep kept runs in.")

    def look() -> "list[Run]":
        return [run for run in RunFolder(runs).read(brief=True) if name in {None, run.recipe}]

    if json:
        print(json_module.dumps([_describe_run(run) for run in look()]))
    elif watch:
        with suppress(KeyboardInterrupt), Live(console=Console(highlight=False), auto_refresh=False) as live:
            while True:
                live.update(Group(*_list_states(look())), refresh=True)
                time.sleep(_WATCH)
    else:
        for part in _list_states(look()):
            _print(part)


def _list_states(found: "Sequence[Run]") -> Iterator[RenderableType]:
    states = ("finished", "running", "stopped", "failed")
    counts = Counter((run.recipe, run.method, _get_state(run)) for run in found)
    groups = dict.fromkeys((run.recipe, run.method) for run in found)
    rows = [[*map(escape, group), *(str(counts[*group, state] or "") for state in states)] for group in groups]
    yield _make_table(("recipe", "method", *states), rows)
    for run in found:
        if _get_state(run) == "running":
            score = run.metrics[-1].get("test_accuracy") if run.metrics else None
            said = "" if score is None else f"{score:.1%}, "
            yield f"{escape(run.name)}: {said}{_get_age(run):.0f} s ago"
        elif run.failure is not None:
            yield f"[red]{escape(run.name)}[/]: {escape(run.failure.strip().splitlines()[-1])}"


@app.command()
def table(
    name: Name,
    runs: Runs = RUNS,
    changes: Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE", help="Keep only such runs.")] = None,
    format: Annotated[Literal["terminal", "markdown", "latex", "json"], Option(help="How to write it.")] = "terminal",  # noqa: A002
    csv: Annotated[Path | None, Option(help="Write the models of a pool (.csv).")] = None,
    plot: Annotated[Path | None, Option(help="Draw its figure (.png, .pdf, .svg).")] = None,
) -> None:
    """Show what was found of a recipe next to the paper's numbers."""
    import pandas as pd

    from effdeg.io import to_json, write_atomically, write_figure
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.report import report_on, to_dict, to_text
    from effdeg_lab.studies.pool import Pool, read_models

    recipe = find_recipe(name)
    changed = recipe.settings.parse(changes or ())
    _check_file("--plot", plot, {".png", ".pdf", ".svg"})
    _check_file("--csv", csv, {".csv"})
    if csv and not isinstance(recipe.study, Pool):
        raise ValueError(f"--csv {csv}: {name} is not a pool of models; only pools have such a table.")
    report = report_on(recipe, _read_runs(runs), changed)
    results = report.results[0]
    figures = recipe.study.figures(results) if plot and results.done else []
    if (csv and not results.done) or (plot and not figures):
        raise ValueError(f"{csv or plot} cannot be written: the finished runs of {name} in {runs} do not suffice.")
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
        _print_parts(console, report.list_parts())


@app.command("clip-pool")
def clip_pool(
    out: Annotated[Path, Argument(help="The table (.csv): what it lacks is measured.", show_default=False)],
    checkpoints: Annotated[
        Path | None, Option(metavar="DIR", help="Model soups; without, only the figures and correlations of the table.")
    ] = None,
    clip: Annotated[Path | None, Option(metavar="DIR", help="CLIP ViT-B/32, a Hugging Face model folder.")] = None,
    data: Data = None,
    workers: Annotated[int, Option(help="Processes that decode images.")] = 8,
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="Run on Ray; [bold]local[/] for this machine.")] = None,
    device: Device = None,
) -> None:
    """Measure the fine-tuned CLIPs of model soups, one after another, and draw the paper's Figures 3 and 8.

    The folder of checkpoints holds model_1.pt to model_71.pt, hparam_info.json and individual_model_results.jsonl of
    mlfoundations/model-soups, the data folder ImageNet. The same command continues where it was ended.
    """
    from effdeg.io import write_figure
    from effdeg_lab.finetuning.clip_pool import FIGURES, NOTE, measure_clip_pool, rank_clip_pool
    from effdeg_lab.studies.random_pool import list_tables, plot_panels

    _check_file("OUT", out, {".csv"})
    if checkpoints is not None:
        if clip is None or data is None:
            raise ValueError(f"--checkpoints {checkpoints} needs --clip DIR and --data DIR as well.")
        where = device if ray else str(_pick_device(device))  # on Ray, other machines have it
        measure_clip_pool(out, checkpoints, clip, data, workers=workers, ray=ray, device=where, progress=True)
    ranking = rank_clip_pool(out)
    console = Console(highlight=False)
    for stratum in ranking.strata:
        file = out.with_name(f"{out.stem}-figure-{FIGURES[stratum]}.png")
        write_figure(plot_panels(ranking, stratum, "light"), file)
        console.print(f"written: {escape(str(file))}, {escape(stratum)}", soft_wrap=True)
    _print_parts(console, list_tables(ranking, f"{len(ranking.pool)} fine-tuned CLIPs", NOTE))


def _print_parts(console: Console, parts: "Iterable[str | tables.Table]") -> None:
    from effdeg_lab.tables import to_terminal

    for part in parts:
        console.print(escape(part) if isinstance(part, str) else to_terminal(part, console.width))
        for note in () if isinstance(part, str) else part.notes:
            console.print(f"[dim]{escape(note)}[/]")


@app.command()
def soup(name: Name, data: Data = None, runs: Runs = RUNS, device: Device = None) -> None:
    """Average the weights of a fine-tuning sweep's tuning runs, and test the soups.

    What enters the greedy soup is decided by the training images that these runs held out. The result is kept next to
    the runs, where [bold]effdeg-lab table[/] finds it.
    """
    from effdeg.io import to_json, write_atomically
    from effdeg_lab.finetuning.soups import measure_soups
    from effdeg_lab.recipe import find_recipe
    from effdeg_lab.studies.shifts import SOUPS, Shifts, tabulate_soups
    from effdeg_lab.tables import to_terminal

    recipe, where = find_recipe(name), _pick_device(device)
    if not isinstance(recipe.study, Shifts):
        raise ValueError(f"{name} does not fine-tune a pretrained network: there are no soups to make.")
    found = _read_runs(runs)
    soups = measure_soups(recipe, found, data, where)
    file = next(run.file.parent for run in found if run.recipe == recipe.name) / SOUPS
    write_atomically(file, f"{to_json(soups)}\n".encode())
    console = Console(highlight=False)
    console.print(to_terminal(tabulate_soups(soups), console.width))
    _print(f"written: {escape(str(file))}")


@app.command()
def report(
    names: Annotated[list[str] | None, Argument(metavar="[NAME]...", help=f"Recipes {_RECIPES}; all if none.")] = None,
    runs: Runs = RUNS,
    out: Annotated[Path, Option(help="The page to write (.html).")] = Path("effdeg-lab.html"),
) -> None:
    """Write one page with all results, which needs no other file and no network."""
    from effdeg.io import write_atomically
    from effdeg_lab.recipe import all_recipes, find_recipe
    from effdeg_lab.report import render_page, report_on

    recipes = [find_recipe(name) for name in names] if names else list(all_recipes().values())
    _check_file("--out", out, {".html"})
    found = _read_runs(runs)
    reports = [report_on(recipe, found) for recipe in recipes]
    write_atomically(out, render_page(reports).encode())
    for each in reports:
        verdict = str(each.verdicts[0]) if each.shown else "not run"
        _print(f"[bold]{escape(each.recipe.name)}[/]: {escape(verdict)}")
    _print(f"written: {escape(str(out))}")


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
    code = {"run", "run_together", "check_data", "study"}
    return {key: value for key, value in asdict(recipe).items() if key not in code}


def _list_planned(plan: "Plan", folder: "RunFolder") -> Iterator[list[str]]:
    finals = plan.plan_final(folder.read(brief=True))
    timed = plan.plan_equal_time(finals, folder) if plan.equal_time is not None else []
    planned = [*plan.plan_tuning(), *finals, *timed]
    for each, known in zip(planned, folder.find_all([each.settings for each in planned]), strict=True):
        base = plan.recipe.resolve(plan.recipe.method(each.method), {"seed": each.settings.seed}).to_dict()
        changed = {key: value for key, value in each.settings.to_dict().items() if value != base[key]}
        state = "to run" if known is None else _get_state(known)
        yield [escape(each.method), each.purpose, str(each.settings.seed), escape(_format(changed)), state]


def _read_runs(folder: Path) -> "list[Run]":
    from effdeg_lab.runs import RunFolder

    found = RunFolder(folder).read() if folder.is_dir() else []
    if not found:
        raise ValueError(
            f"--runs {folder}: {'it holds no runs' if folder.is_dir() else 'there is no such folder'}. Name the folder "
            f"that run or sweep kept runs in ({RUNS} where you started them, unless you named another)."
        )
    return found


def _check_file(option: str, file: Path | None, suffixes: set[str]) -> None:
    """Raise, before any work, if a result could not be written."""
    if file is not None and (file.suffix not in suffixes or file.is_dir()):
        raise ValueError(f"{option} {file}: expected a file that ends in {' or '.join(sorted(suffixes))}.")
    if file is not None and not file.absolute().parent.is_dir():
        raise ValueError(f"{option} {file}: the folder {file.parent} does not exist.")


def _get_state(run: "Run") -> str:
    """Return how a run is doing; one that was killed without a trace counts as running for ten minutes."""
    end = "finished" if run.finished else "failed" if run.failure is not None else "stopped" if run.stopped else None
    return end or ("running" if _get_age(run) < _ALIVE else "stopped")


def _get_age(run: "Run") -> float:
    return max(0.0, time.time() - run.file.stat().st_mtime)


def _describe_run(run: "Run") -> dict[str, Any]:
    known = {key: value for key, value in asdict(run).items() if key != "metrics"}  # a brief look does not read them
    return known | {"file": str(run.file), "state": _get_state(run), "seconds_ago": round(_get_age(run))}


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


def _format(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={format_setting(value)}" for key, value in values.items())


def _format_number(value: Any) -> str:
    if isinstance(value, Mapping) and value.keys() >= {"value", "stderr"}:
        return " ± ".join(filter(None, (_format_number(value[key]) for key in ("value", "stderr"))))
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, int | str) else ""


def _print(what: RenderableType) -> None:
    Console(highlight=False).print(what, soft_wrap=isinstance(what, str))


def _make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in head), box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def _print_facts(facts: Mapping[str, str]) -> None:
    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    for label, text in facts.items():
        if text:
            grid.add_row(f"[dim]{label}[/]", escape(text))
    _print(grid)
