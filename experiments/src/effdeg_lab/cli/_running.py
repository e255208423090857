"""Carry out runs: ``run`` and ``sweep``."""

import gc
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Option

from effdeg_lab.cli._options import RUNS, Changes, Data, Device, Name, Runs, Smoke, open_recipe, prepare
from effdeg_lab.cli._output import format_number, format_settings, make_table, print_facts, print_rich
from effdeg_lab.cli._runs import get_state
from effdeg_lab.core.signals import list_stop_signals

if TYPE_CHECKING:
    import torch

    from effdeg_lab.core.recipe import Recipe
    from effdeg_lab.core.runs import RunFolder
    from effdeg_lab.core.sweep import Plan

_MOST_SEEDS = 10_000  # more are a mistake
_SEEDS = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
AnyCode = Annotated[bool, Option("--any-code", help="Use finished runs also if other code made them.")]

REQUEUE = 75
"""The exit code of a run that was asked to stop (``EX_TEMPFAIL``): job schedulers can be told to requeue on it."""
_INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit with the requeue code where runs do not catch signals themselves, such as while torch is imported."""

    def leave(*_: object) -> None:
        raise SystemExit(REQUEUE)

    before = {number: signal.signal(number, leave) for number in list_stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@_exit_on_signals()
def run(
    name: Name,
    method: Annotated[str | None, Option(help="The method. Default: the recipe's first.")] = None,
    seed: Annotated[str, Option(metavar="INTEGER", help="The seed of everything random.")] = "0",
    changes: Changes = None,
    again: Annotated[bool, Option("--again", help="Run it again; old records are kept: **.jsonl.old**, ….")] = False,
    any_code: AnyCode = False,
    data: Data = None,
    runs: Runs = RUNS,
    device: Device = None,
    smoke: Smoke = False,
) -> None:
    """Carry out or continue one run; if it is finished, show it.

    Unless --set says otherwise, tuned settings take the values that a sweep found best, if there was one, and settings
    of a pool that the recipe does not fix are those of its first model. Under torchrun the processes share the work.

    SIGTERM, a closed terminal and Ctrl-C make the run save and stop; started again, it continues. Except after Ctrl-C
    the exit code is 75, on which job schedulers can requeue it (Slurm: **RequeueExit=75** in slurm.conf, and **sbatch
    --requeue**).
    """
    from effdeg_lab.core.recipe import SMOKE_NOTE
    from effdeg_lab.core.runs import Job, RunFolder, StoppedError, get_rank_and_size
    from effdeg_lab.core.signals import catch_signals
    from effdeg_lab.core.sweep import Plan, check_same
    from effdeg_lab.core.workers import execute
    from effdeg_lab.engine import Training
    from effdeg_lab.engine.loop import gather

    (recipe, runs), seeds = open_recipe(name, runs, smoke=smoke), _parse_seeds("--seed", seed)
    if len(seeds) != 1:
        raise ValueError(f"--seed {seed}: a run has one seed. For several: effdeg-lab sweep {name} --seeds {seed}")
    chosen = recipe.methods[0] if method is None else recipe.method(method)
    base, points = recipe.resolve(chosen), recipe.points()
    own = {axis: getattr(base, axis) for axis in recipe.axes}
    point = own if own in points else points[0]  # without it, the run would belong to no pool
    wanted = {**point, "seed": seeds[0], **_parse_changes(recipe, changes, "--seed")}
    data, where = prepare(recipe, runs, data, device)
    folder = RunFolder(runs)
    recipe.check_data([recipe.resolve(chosen, wanted)], data)
    with _join_processes(where), catch_signals(signal.SIGINT) as interrupted:
        # The first process decides for all: what another one sees in the folder may already be something else.
        plan, first = Plan(recipe, [chosen.name], changes=wanted, tune=False), get_rank_and_size()[0] == 0
        tuned, tried = gather(plan.get_tuned(chosen, folder.read(brief=True)) if first else ({}, 0))[0]
        settings, speaks = recipe.resolve(chosen, {**tuned, **wanted}), first
        job = Job(settings, recipe.name, chosen.name, base, folder, where, data, speaks, code=recipe.code)
        job.asked_to_stop = lambda: bool(interrupted)
        if speaks:
            note = f", {format_settings(tuned)} (the best of {tried} tried)" if tuned else ""
            print_rich(f"[bold]{escape(recipe.name)}[/]: {escape(chosen.title)}, seed {settings.seed}{escape(note)}")
        if again and first:
            job.set_aside()
        gather(again)  # the others wait
        known = job.read()
        finished = gather(known is not None and known.finished)[0]
        if known is not None:
            check_same([(settings, known)], recipe, data, any_code=any_code)
        try:
            if not finished:
                execute(recipe, job)
        except StoppedError:
            if speaks:
                print_rich(f"stopped; run the same command again to continue from {escape(str(job.folder))}")
            raise typer.Exit(_INTERRUPTED if interrupted else REQUEUE) from None
    known = job.read()
    if not first or known is None:
        return
    if finished:
        print_rich("already finished; --again runs it again")
    print_rich(f"[bold]{escape(recipe.study.headline(known))}[/]")
    # The name in pools: a classifier's own effective degree is of test examples.
    names = {"effective_degree": "effective degree test"} if isinstance(settings, Training) else {}
    numbers = {names.get(k, k.replace("_", " ")): format_number(value) for k, value in (known.summary or {}).items()}
    print_facts({**numbers, "device": known.machine, "kept in": str(known.file)})
    if recipe.smoke:
        print_rich(SMOKE_NOTE)


@_exit_on_signals()
def sweep(
    name: Name,
    method: Annotated[list[str] | None, Option(help="A method; repeat for several. Default: all.")] = None,
    seeds: Annotated[str, Option(help="Seeds, such as 0-4 or 0,1,7. Default: the recipe's.")] = "",
    changes: Changes = None,
    no_tune: Annotated[bool, Option("--no-tune", help="Do not tune; use what was tuned before.")] = False,
    equal_time: Annotated[str | None, Option(metavar="METHOD", help="Then train all for as long as this one.")] = None,
    processes: Annotated[int, Option(help="How many runs at once.")] = 1,
    together: Annotated[int, Option(help="How many networks of one kind to train in one step.")] = 1,
    data: Data = None,
    runs: Runs = RUNS,
    device: Device = None,
    any_code: AnyCode = False,
    smoke: Smoke = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only list what would be run.")] = False,
) -> None:
    """Carry out all runs of a recipe: first the tuning runs, then every method with every seed.

    Finished runs are skipped and interrupted ones continue, so a sweep can be stopped and restarted at any time. A
    failed run does not stop the others, but a method is skipped if none of its tuning runs finishes. Several sweeps may
    share a folder: each run is carried out once.

    SIGTERM, a closed terminal and Ctrl-C make all runs save and stop. Except after Ctrl-C the exit code is 75, on which
    job schedulers can requeue the sweep (Slurm: **RequeueExit=75** in slurm.conf, and **sbatch --requeue**).
    """
    from effdeg_lab.core import sweep as sweeping
    from effdeg_lab.core.runs import RunFolder, StoppedError

    recipe, runs = open_recipe(name, runs, smoke=smoke)
    (data, where), folder = prepare(recipe, runs, data, device), RunFolder(runs)
    plan = make_plan(recipe, method, seeds, changes, no_tune, equal_time)
    if dry_run:
        plan.check(data)
        print_rich(make_table(("method", "for", "seed", "settings", "state"), list_planned(plan, folder)))
        return
    options: dict[str, Any] = {"processes": processes, "together": together, "any_code": any_code}
    try:
        outcome = sweeping.sweep(plan, runs=folder, device=where, data=data, **options)
    except (StoppedError, KeyboardInterrupt) as stopped:
        print_rich("stopped; run the same command again to continue")
        raise typer.Exit(REQUEUE if isinstance(stopped, StoppedError) else _INTERRUPTED) from None
    counts = Counter(each.ending for each in outcome)
    print_rich(f"{', '.join(f'{count} {ending}' for ending, count in counts.items())}; kept in {escape(str(runs))}")
    for planned, error in ((each.planned, each.note) for each in outcome if each.ending == "failed"):
        failed = folder.find(planned.settings)
        log = failed.file.with_suffix("") / "log.txt" if failed else runs
        what = f"{planned.method}, {planned.purpose}, seed {planned.settings.seed}"
        print_rich(f"[red]{escape(what)}[/]: {escape(error)} ({escape(str(log))})")
    for skipped, reason in {each.planned.method: each.note for each in outcome if each.ending == "not run"}.items():
        print_rich(f"[red]{escape(skipped)}[/]: {escape(reason)}")
    if counts["failed"] or counts["stopped"]:
        raise typer.Exit(1 if counts["failed"] else REQUEUE)


def make_plan(
    recipe: "Recipe",
    method: list[str] | None,
    seeds: str,
    changes: list[str] | None,
    no_tune: bool,
    equal_time: str | None,
) -> "Plan":
    from effdeg_lab.core.sweep import Plan

    asked = _parse_changes(recipe, changes, "--seeds")
    return Plan(recipe, method or (), _parse_seeds("--seeds", seeds), asked, not no_tune, equal_time)


def list_planned(plan: "Plan", folder: "RunFolder") -> Iterator[list[str]]:
    """Yield a row for each planned run: its method, purpose, seed, changed settings and state."""
    finals = plan.plan_final(folder.read(brief=True))
    timed = plan.plan_equal_time(finals, folder) if plan.equal_time is not None else []
    planned = [*plan.plan_tuning(), *finals, *timed]
    for each, known in zip(planned, folder.find_all([each.settings for each in planned]), strict=True):
        base = plan.recipe.resolve(plan.recipe.method(each.method), {"seed": each.settings.seed}).to_dict()
        changed = {key: value for key, value in each.settings.to_dict().items() if value != base[key]}
        state = "to run" if known is None else get_state(known)
        yield [escape(each.method), each.purpose, str(each.settings.seed), escape(format_settings(changed)), state]


def _parse_changes(recipe: "Recipe", changes: list[str] | None, option: str) -> dict[str, Any]:
    parsed = recipe.settings.parse(changes or ())
    if "seed" in parsed:
        raise ValueError(f"--set seed={parsed['seed']}: write {option} {parsed['seed']} instead.")
    return parsed


def _parse_seeds(option: str, text: str) -> list[int]:
    """Return the seeds in a list of numbers and ranges."""
    seeds: list[int] = []
    for part in filter(str.strip, text.split(",")):
        ends = _SEEDS.fullmatch(part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, -1)
        if not 0 <= last - first < _MOST_SEEDS:
            several = option == "--seeds"
            expected = "a list of whole numbers such as 0-4 or 0,1,7" if several else "a whole number of at least 0"
            raise ValueError(f"{option} {text} is not {expected}.")
        seeds.extend(range(first, last + 1))
    return list(dict.fromkeys(seeds))


@contextmanager
def _join_processes(device: "torch.device") -> Iterator[None]:
    """Join the processes that ``torchrun`` started, if it did; on GPUs, each takes its own."""
    import torch
    from torch import distributed

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    on_gpus, rank = device.type == "cuda", int(os.environ["LOCAL_RANK"])
    if on_gpus and ":" in str(device):
        raise ValueError(f"--device {device} is not possible under torchrun, where each process takes its own GPU.")
    if on_gpus and rank >= (count := torch.cuda.device_count()):
        raise ValueError(f"there are more processes on this machine than GPUs: use --nproc-per-node {count}.")
    if on_gpus:
        torch.cuda.set_device(rank)
    distributed.init_process_group("nccl" if on_gpus else "gloo")
    try:
        yield
        gc.collect()  # if DDP outlived the group, gloo could hang: its threads and Python would wait for each other
        distributed.barrier()  # if a process left early, another that still waits for it could hang
    finally:
        distributed.destroy_process_group()
