"""Carry out sweeps in order, within a budget of time: ``campaign``."""

import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from effdeg_lab.cli._options import RUNS, Data, Device, Runs
from effdeg_lab.cli._output import make_table, print_rich
from effdeg_lab.cli._running import REQUEUE, list_planned, make_plan, sweep

if TYPE_CHECKING:
    from effdeg_lab.core.runs import RunFolder
    from effdeg_lab.core.sweep import Plan

_OF_PLANS = ("method", "seeds", "changes", "no_tune", "equal_time")
_TICK = 0.2


def campaign(
    file: Annotated[Path, Argument(help="A sweep per line, with its options; **#** begins a comment.")],
    seconds: Annotated[float | None, Option(min=0, help="The budget: then runs save and stop.")] = None,
    data: Data = None,
    runs: Runs = RUNS,
    device: Device = None,
) -> None:
    """Carry out the sweeps of a file, one after another, until they are done or the budget is spent.

    A line has the arguments of **effdeg-lab sweep**, such as **cifar10-contest --method ed --seeds 0-2**. All lines are
    checked before anything starts. Started again, the campaign continues with what is left; a failed run does not stop
    it. The exit code is 75 if it was stopped before all runs were finished, and 1 if some failed;
    these are tried again.
    """
    from effdeg_lab.core.runs import RunFolder
    from effdeg_lab.core.signals import catch_signals, list_stop_signals

    sweeps = _read(file, data)
    folder, began = RunFolder(runs), time.monotonic()
    given = {"--data": data, "--runs": runs, "--device": device}
    shared = [text for option, value in given.items() if value is not None for text in (option, str(value))]
    with catch_signals(*list_stop_signals(), signal.SIGINT) as received:

        def is_over() -> bool:
            return bool(received) or (seconds is not None and time.monotonic() - began >= seconds)

        for number, (line, plan) in enumerate(sweeps, start=1):
            if is_over():
                break
            if _count(plan, folder).keys() == {"finished"}:
                continue
            print_rich(f"[bold]{number} of {len(sweeps)}[/]: {escape(line)}")
            command = [sys.executable, "-m", "effdeg_lab", "sweep", *shlex.split(line), *shared]
            with subprocess.Popen(command, start_new_session=True) as process:
                while process.poll() is None and not is_over():
                    time.sleep(_TICK)
                process.terminate()  # its runs save
        stopped = is_over()
    rows = []
    for line, plan in sweeps:
        count = _count(plan, folder)
        rows.append((line, count.total(), count["finished"], count["failed"], count.total() - count["finished"]))
    heads = ("sweep", "runs", "finished", "failed", "left")
    print_rich(make_table(heads, [[escape(line), *map(str, numbers)] for line, *numbers in rows]))
    if any(left for *_, left in rows):
        raise typer.Exit(REQUEUE if stopped else 1)


def _count(plan: "Plan", folder: "RunFolder") -> Counter[str]:
    with warnings.catch_warnings(action="ignore"):  # runs at equal time can be planned only after the others
        return Counter(state for *_, state in list_planned(plan, folder))


def _read(file: Path, data: Path | None) -> "list[tuple[str, Plan]]":
    """Read and check all sweeps of a campaign, each with its command line."""
    from effdeg_lab.core.recipe import find_recipe

    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{file} cannot be read: {reason}. Name a text file with a sweep per line.") from error
    sweeps = []
    for number, line in enumerate(lines, start=1):
        try:
            if not (arguments := shlex.split(line, comments=True)):
                continue
            options = _parse(arguments)
            if twice := [option for option in ("--data", "--runs", "--device") if option in arguments]:
                raise ValueError(f"{twice[0]} belongs to the campaign: effdeg-lab campaign {file} {twice[0]} …")
            if options["smoke"] or options["dry_run"]:
                raise ValueError("--smoke and --dry-run are for single sweeps; leave them out.")
            plan = make_plan(find_recipe(options["name"]), **{name: options[name] for name in _OF_PLANS})
            plan.check(data)
        except Exception as error:
            error.add_note(f"This is line {number} of {file}: {line.strip()}")
            raise
        sweeps.append((shlex.join(arguments), plan))
    if not sweeps:
        raise ValueError(f"{file} names no sweep. A line has the arguments of effdeg-lab sweep: digits-methods")
    return sweeps


def _parse(arguments: list[str]) -> dict[str, Any]:
    command = typer.Typer(add_completion=False)
    command.command()(sweep)
    try:
        return dict(typer.main.get_command(command).make_context("sweep", list(arguments)).params)
    except Exception as error:
        raise ValueError(str(getattr(error, "message", "") or error)) from None
