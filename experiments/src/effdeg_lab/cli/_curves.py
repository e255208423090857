"""Look at how runs went: ``curve``."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from typer import Option

from effdeg_lab.cli._options import RUNS, Name, Runs, Smoke, open_recipe, read_runs
from effdeg_lab.cli._output import format_number, make_table, print_rich
from effdeg_lab.cli._states import describe_progress, get_state

if TYPE_CHECKING:
    from effdeg_lab.core.runs import Run

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 30
_NOT_SHOWN = {"step", "epoch", "seconds"}


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
        state = get_state(run)
        print_rich(f"[bold]{escape(run.name)}[/]: {state}{describe_progress(run) if state == 'running' else ''}")
        print_rich(make_table(("", f"{len(run.metrics)} evaluations", "first", "last"), _list_curves(run)))
        for key, count in _count_without_number(run).items():
            print_rich(f"{escape(key.replace('_', ' '))}: no number in {count} of {len(run.metrics)} evaluations")


def draw_curve(values: Sequence[float], width: int = _WIDTH) -> str:
    """Draw numbers as bars, each the last of its share of the numbers if there are more than ``width``."""
    count = min(width, len(values))
    shown = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def choose(value: float) -> str:
        if not math.isfinite(value):
            return " "
        return _BARS[round((value - low) / (high - low) * (len(_BARS) - 1)) if high > low else 0]

    return "".join(map(choose, shown))


def _list_curves(run: "Run") -> list[tuple[str, ...]]:
    rows = list[tuple[str, ...]]()
    for key in dict.fromkeys(key for entry in run.metrics for key in entry if key not in _NOT_SHOWN):
        values = [_get_number(entry.get(key)) for entry in run.metrics]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            rows.append((
                key.replace("_", " "),
                draw_curve(values),
                format_number(finite[0]),
                format_number(finite[-1]),
            ))
    return rows


def _count_without_number(run: "Run") -> Counter[str]:
    """Count the evaluations in which a number was NaN or infinite, by its key."""
    return Counter(key for entry in run.metrics for key, value in entry.items() if _get_value(value) is None)


def _get_value(found: Any) -> Any:
    return found.get("value", found) if isinstance(found, Mapping) else found


def _get_number(found: Any) -> float:
    """Return a number of an evaluation, or that of a measurement; nan for anything else."""
    found = _get_value(found)
    return float(found) if isinstance(found, int | float) else math.nan
