"""How the runs of a folder are doing: ``status``."""

import json as json_module
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from typer import Argument, Option

from effdeg_lab.cli._options import RUNS, Json, Runs
from effdeg_lab.cli._output import make_table, print_rich

if TYPE_CHECKING:
    from effdeg_lab.core.runs import Run

# A run on another machine counts as killed after this many seconds of silence; runs save about every minute.
_ALIVE = 600
_WATCH = 5.0  # seconds between two looks


def status(
    name: Annotated[str | None, Argument(metavar="[RECIPE]", help="Show only this recipe's runs.")] = None,
    runs: Runs = RUNS,
    watch: Annotated[bool, Option("--watch", help="Look again every 5 seconds, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show which runs of a folder are finished, running, stopped or failed, on whatever machine they were started."""
    from effdeg_lab.core.recipe import find_recipe
    from effdeg_lab.core.runs import RunFolder

    code = None if name is None else find_recipe(name).code
    if not runs.is_dir():
        raise ValueError(f"--runs {runs}: there is no such folder. Name the one in which run or sweep kept its runs.")

    def look() -> "list[Run]":
        return [run for run in RunFolder(runs).read(brief=True) if name in {None, run.recipe}]

    if json:
        print(json_module.dumps([describe_run(run) for run in look()]))
    elif watch:
        with suppress(KeyboardInterrupt), Live(console=Console(highlight=False), auto_refresh=False) as live:
            while True:
                live.update(Group(*_list_states(look(), code)), refresh=True)
                time.sleep(_WATCH)
    else:
        for part in _list_states(look(), code):
            print_rich(part)


def get_state(run: "Run") -> str:
    """Return how a run is doing; one that was killed on another machine counts as running for ten minutes."""
    from effdeg_lab.core.runs import RunFolder

    if run.finished or run.failure is not None or run.stopped:
        return "finished" if run.finished else "stopped" if run.stopped else "failed"
    running = RunFolder(run.file.parent.parent).is_running(run)
    return "running" if running or (running is None and _get_age(run) < _ALIVE) else "stopped"


def describe_run(run: "Run") -> dict[str, Any]:
    """Return what is known about a run, for JSON."""
    known = {key: value for key, value in asdict(run).items() if key != "metrics"}  # a brief look does not read them
    state, progress = get_state(run), get_progress(run)
    if state == "running" and progress is not None:
        known |= {"progress": progress[0] / progress[1], "seconds_left": progress[2]}
    return known | {"file": str(run.file), "state": state, "seconds_ago": round(_get_age(run))}


def get_progress(run: "Run") -> tuple[int, int, float] | None:
    """Return the step of a run's last evaluation, its number of steps, and the seconds that training may still take.

    None if it was not evaluated yet, or if its steps are not known.
    """
    entry = run.metrics[-1] if run.metrics else {}
    step, steps = entry.get("step"), run.environment.get("steps") or run.settings.get("steps")
    if not step or not steps:
        return None
    return step, steps, max(0.0, entry.get("seconds", 0.0) / step * (steps - step) - _get_age(run))


def describe_progress(run: "Run") -> str:
    """Return how far a run is, to follow its name; empty if that is not known."""
    from effdeg_lab.show.columns import format_duration

    if (progress := get_progress(run)) is None:
        return ""
    step, steps, left = progress
    return f", step {step:,} of {steps:,} ({step / steps:.0%}), about {format_duration(left)} left"


def _list_states(found: "Sequence[Run]", code: str | None) -> Iterator[RenderableType]:
    states = ("finished", "running", "stopped", "failed")
    current = [get_state(run) for run in found]
    counts = Counter((run.recipe, run.method, state) for run, state in zip(found, current, strict=True))
    groups = dict.fromkeys((run.recipe, run.method) for run in found)
    rows = [[*map(escape, group), *(str(counts[*group, state] or "") for state in states)] for group in groups]
    yield make_table(("recipe", "method", *states), rows)
    for run, state in zip(found, current, strict=True):
        if state == "running":
            score = run.metrics[-1].get("test_accuracy") if run.metrics else None
            said = "" if score is None else f"{score:.1%}, "
            yield f"{escape(run.name)}{describe_progress(run)}: {said}{_get_age(run):.0f} s ago"
        elif run.failure is not None:
            yield f"[red]{escape(run.name)}[/]: {escape(run.error)}"
    for recipe in dict.fromkeys(run.recipe for run in found):
        codes = {run.code for run in found if run.recipe == recipe and run.code} | ({code} if code else set())
        if len(codes) > 1:
            yield f"[yellow]{escape(recipe)}[/]: its code changed between runs{' and now' if code else ''}"


def _get_age(run: "Run") -> float:
    return max(0.0, time.time() - run.file.stat().st_mtime)
