"""Look at runs: ``status`` and ``curve``."""

import json as json_module
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from typer import Argument, Option

from effdeg_lab.cli._options import RUNS, Json, Name, Runs, Smoke, open_recipe, read_runs
from effdeg_lab.cli._output import format_number, make_table, print_rich

if TYPE_CHECKING:
    from effdeg_lab.core.runs import Run

_ALIVE = 600  # a run on another machine counts as killed after so many silent seconds; runs save about every minute
_WATCH = 5.0  # seconds between two looks
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 30
_STATES = ("finished", "running", "stopped", "failed")


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


def curve(
    name: Name,
    method: Annotated[str | None, Option(help="Only runs of this method.")] = None,
    seed: Annotated[int | None, Option(help="Only runs with this seed.")] = None,
    runs: Runs = RUNS,
    smoke: Smoke = False,
) -> None:
    """Show the learning curves of runs, finished or not: what every evaluation found, from the first to the last."""
    recipe, runs = open_recipe(name, runs, smoke=smoke)
    if method is not None:
        recipe.method(method)
    chosen = [
        run
        for run in read_runs(runs)
        if run.recipe == recipe.name and method in {None, run.method} and seed in {None, run.seed} and run.metrics
    ]
    if not chosen:
        asked = "".join(f" --{key} {value}" for key, value in (("method", method), ("seed", seed)) if value is not None)
        raise ValueError(f"{runs} has no run of {recipe.name}{asked} that was evaluated: see effdeg-lab status.")
    for run in chosen:
        state, count = get_state(run), len(run.metrics)
        print_rich(f"[bold]{escape(run.name)}[/]: {state}{describe_progress(run) if state == 'running' else ''}")
        print_rich(make_table(("", f"{count} evaluations", "first", "last"), _list_curves(run)))
        lost = Counter(key for entry in run.metrics for key, value in entry.items() if _get_value(value) is None)
        for key, missing in lost.items():
            print_rich(f"{escape(key.replace('_', ' '))}: no number in {missing} of {count} evaluations")


def get_state(run: "Run") -> str:
    """Return how a run is doing; one that was killed on another machine counts as running for ten minutes."""
    from effdeg_lab.core.runs import RunFolder

    if run.finished or run.failure is not None or run.stopped:
        return "finished" if run.finished else "stopped" if run.stopped else "failed"
    running = RunFolder(run.file.parent.parent).is_running(run)
    return "running" if running or (running is None and _get_age(run) < _ALIVE) else "stopped"


def describe_run(run: "Run") -> dict[str, Any]:
    known = {key: value for key, value in asdict(run).items() if key != "metrics"}  # a brief look does not read them
    state, progress = get_state(run), get_progress(run)
    if state == "running" and progress is not None:
        known |= {"progress": progress[0] / progress[1], "seconds_left": progress[2]}
    return known | {"file": str(run.file), "state": state, "seconds_ago": round(_get_age(run))}


def get_progress(run: "Run") -> tuple[int, int, float] | None:
    """Return the step of the last evaluation, the number of steps, and the seconds left; None if they are not known."""
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


def draw_curve(values: Sequence[float], width: int = _WIDTH) -> str:
    """Draw numbers as bars, each the last of its share of the numbers if there are more than ``width``."""
    count = min(width, len(values))
    shown = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span, most = (high - low) or 1.0, len(_BARS) - 1
    return "".join(_BARS[round((value - low) / span * most)] if math.isfinite(value) else " " for value in shown)


def _list_curves(run: "Run") -> Iterator[tuple[str, ...]]:
    for key in dict.fromkeys(key for entry in run.metrics for key in entry):
        values = [_get_value(entry.get(key)) for entry in run.metrics]
        numbers = [float(value) if isinstance(value, int | float) else math.nan for value in values]
        finite = [format_number(number) for number in numbers if math.isfinite(number)]
        if finite and key not in {"step", "epoch", "seconds"}:
            yield key.replace("_", " "), draw_curve(numbers), finite[0], finite[-1]


def _get_value(entry: Any) -> Any:
    """Return a number of an evaluation, or that of a measurement; None stands for NaN and infinities."""
    return entry.get("value", entry) if isinstance(entry, Mapping) else entry


def _list_states(runs: "Sequence[Run]", code: str | None) -> Iterator[RenderableType]:
    states = [get_state(run) for run in runs]
    counts = Counter((run.recipe, run.method, state) for run, state in zip(runs, states, strict=True))
    groups = dict.fromkeys((run.recipe, run.method) for run in runs)
    rows = [[*map(escape, group), *(str(counts[*group, state] or "") for state in _STATES)] for group in groups]
    yield make_table(("recipe", "method", *_STATES), rows)
    for run, state in zip(runs, states, strict=True):
        if state == "running":
            score = run.metrics[-1].get("test_accuracy") if run.metrics else None
            accuracy = "" if score is None else f"{score:.1%}, "
            yield f"{escape(run.name)}{describe_progress(run)}: {accuracy}{_get_age(run):.0f} s ago"
        elif run.failure is not None:
            yield f"[red]{escape(run.name)}[/]: {escape(run.error)}"
    for recipe in dict.fromkeys(run.recipe for run in runs):
        codes = {run.code for run in runs if run.recipe == recipe and run.code} | ({code} if code else set())
        if len(codes) > 1:
            yield f"[yellow]{escape(recipe)}[/]: its code changed between runs{' and now' if code else ''}"


def _get_age(run: "Run") -> float:
    return max(0.0, time.time() - run.file.stat().st_mtime)
