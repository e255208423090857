"""A table with a row for each method, the columns and notes that such tables share, and how numbers are written."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from effdeg_lab.core.recipe import Recipe, Reported
from effdeg_lab.core.results import Difference, MethodRuns, Results, Spread
from effdeg_lab.core.settings import format_setting
from effdeg_lab.show.tables import NOTHING, Table, bold_largest

# The paper's letters.
_SIGNS = {"alpha": "α", "rho": "ρ", "weight": "λ"}
DEGREE = "effective_degree.value"
ROUGH = "Times on a CPU are rough: other work on it slows some runs more than others."


def tested_on(results: Results) -> str:
    """Return which examples accuracies are on: ``test``, or ``held-out`` training examples."""
    held_out = any(run.settings.get("held_out") for run in results.runs)
    return "held-out" if held_out else "test"


def measure_price(results: Results, each: MethodRuns, key: str = "milliseconds_per_step") -> float | None:
    """Return the time of a step, or a speed, relative to the first method's; None if their machines differ."""
    first = results.methods[0]
    step, plain = each.time(key), first.time(key)
    return None if step is None or plain is None or each.machines != first.machines else step / plain


def read_degree(each: MethodRuns) -> tuple[float, float] | None:
    """Return the mean effective degree and its standard error over paths; None if it was not measured."""
    value = each.spread(DEGREE)
    if value is None:
        return None
    errors = each.values("effective_degree.stderr").fillna(0.0)
    return value.mean, math.sqrt(math.fsum(errors**2)) / value.count


def is_rough(results: Results) -> bool:
    """Return whether times were measured on a CPU, which other work may have slowed down."""
    return any("CPU" in machine for machine in results.machines)


def format_spread(
    spread: Spread | Reported | None, nothing: str = NOTHING, *, factor: float = 1, decimals: int = 2
) -> str:
    if spread is None:
        return nothing
    std = "" if spread.std is None else f" ± {factor * spread.std:.{decimals}f}"
    return f"{factor * spread.mean:.{decimals}f}{std}"


def format_points(spread: Spread | Reported | None, nothing: str = NOTHING) -> str:
    return format_spread(spread, nothing, factor=1 if isinstance(spread, Reported) else 100)


def format_difference(difference: Difference | None, factor: float = 100) -> str:
    """Write a difference, by default in percentage points, with its interval and a star if that excludes zero."""
    if difference is None or difference.interval is None:
        return NOTHING if difference is None else f"{factor * difference.value:+.2f}"
    low, high = (factor * end for end in difference.interval)
    return f"{factor * difference.value:+.2f} ({low:+.2f} to {high:+.2f}){'' if low <= 0 <= high else '*'}"


def format_degree(degree: tuple[float, float] | None) -> str:
    """Write an effective degree with its standard error, to two decimals or more if the error needs them."""
    if degree is None:
        return NOTHING
    value, error = degree
    smallest = error or abs(value) / 10
    decimals = max(2, math.ceil(-math.log10(smallest))) if smallest else 2
    return f"{value:.{decimals}f} ± {error:.{decimals}f}" if decimals <= 6 else f"{value:.3g} ± {error:.1g}"


def format_price(price: float | None) -> str:
    return NOTHING if price is None else f"{price:.2f}×"


def format_duration(seconds: float | None) -> str:
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


def format_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{_SIGNS.get(key, key)} = {format_setting(value)}" for key, value in values.items()) or NOTHING


def list_values(each: MethodRuns) -> str:
    """Write the characteristic settings of a method: those tuned, and those that have a letter in the paper."""
    if not each.runs:
        return NOTHING
    used = each.runs[0].settings
    fixed = {key: used[key] for key in _SIGNS if key in each.method.changes and key not in each.method.tune}
    return format_values({**(each.values_used or {}), **fixed})


def count_seeds(results: Results) -> str:
    """Write the number of seeds of the methods: one number, or the fewest and the most."""
    counts = sorted({len(each.runs) for each in results.done})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def list_notes(results: Results) -> list[str]:
    notes = ["±: standard deviation over seeds for accuracies, standard error for effective degrees (ED)."]
    if "measure_paths" in results.scale and any(map(read_degree, results.methods)):
        measured = "{measure_paths} paths × {measure_nodes} nodes".format(**results.scale)
        notes.append(f"ED: of {tested_on(results)} examples, at the end of training, {measured}.")
    return notes + results.failures


class MethodTable:
    """A table with a row for each method, to which columns are added one by one."""

    def __init__(self, results: Results, methods: Sequence[MethodRuns] | None = None) -> None:
        self.results, self.methods = results, list(results.methods if methods is None else methods)
        self.columns = {"": [each.method.title for each in self.methods]}
        self.bold = set[tuple[int, int]]()
        self.first = results.methods[0].method.title

    def add(self, head: str, cells: Iterable[str]) -> None:
        self.columns[head] = list(cells)

    def add_means(
        self, head: str, key: str, *, factor: float = 100, decimals: int = 2, states: bool = False, bold: bool = False
    ) -> None:
        """Add means with their standard deviations over seeds, with the states of methods that have none."""
        spreads = [each.spread(key) for each in self.methods]
        self.bold |= bold_largest(spreads, len(self.columns)) if bold else set()
        absent = [each.state if states else NOTHING for each in self.methods]
        pairs = zip(spreads, absent, strict=True)
        self.add(head, (format_spread(*pair, factor=factor, decimals=decimals) for pair in pairs))

    def add_accuracies(self, *, bold: bool = False) -> None:
        """Add the accuracies, with the states of methods that have none."""
        head = "here, %" if tested_on(self.results) == "test" else "here, held-out, %"
        self.add_means(head, "test_accuracy", states=True, bold=bold)

    def add_differences(self, head: str, key: str = "test_accuracy", factor: float = 100) -> None:
        """Add the differences from the first method, with their intervals."""
        differences = (self.results.difference(each, key=key) for each in self.methods)
        self.add(head, (format_difference(each, factor) for each in differences))

    def add_degrees(self) -> None:
        self.add("ED", map(format_degree, map(read_degree, self.methods)))

    def add_prices(self) -> None:
        """Add the time of a step as a multiple of the first method's."""
        self.add("step", (format_price(measure_price(self.results, each)) for each in self.methods))

    def add_seeds(self) -> None:
        """Add the number of seeds, unless all methods have those in the heading and none failed."""
        results = self.results
        if any([run.seed for run in each.runs] != results.seeds or each.failed for each in results.done):
            self.add("seeds", map(_count_runs, self.methods))

    def make(self, title: str, notes: Iterable[str]) -> Table:
        return make_table(title, self.columns, notes, self.bold)


def _count_runs(each: MethodRuns) -> str:
    count, failed = len(each.runs), len(each.failed)
    return f"{count} of {count + failed}" if failed else str(count or NOTHING)


def make_table(
    title: str, columns: Mapping[str, Sequence[str]], notes: Iterable[str], bold: Iterable[Any] = ()
) -> Table:
    return Table(title, tuple(columns), tuple(zip(*columns.values(), strict=True)), tuple(notes), frozenset(bold))


def write_sweep_command(recipe: Recipe) -> str:
    """Write the command that runs a recipe; all data except the digits needs a folder."""
    needs_data = recipe.settings.to_dict().get("data", "digits") != "digits"
    return f"effdeg-lab sweep {recipe.name}{' --data DIR' if needs_data else ''}"


def read_curve(each: MethodRuns, along: str, what: str) -> np.ndarray | None:
    """Return the values logged during training, seeds × evaluations × 2; None if there are none before the end.

    Along ``seconds``, runs that shared their device are left out, as in :meth:`MethodRuns.time`.
    """
    runs = [run for run in each.runs if along != "seconds" or not run.environment.get("shared")]
    logs = [pd.json_normalize(run.metrics).reindex(columns=[along, what]).dropna().to_numpy(float) for run in runs]
    shortest = min(map(len, logs), default=0)
    return np.stack([log[-shortest:] for log in logs]) if shortest > 1 else None
