"""What the runs of a line say together, column by column."""

import math
from typing import Any, Literal

from effdeg.lab.report.lines import Line, seed_of
from effdeg.lab.report.spread import Spread
from effdeg.lab.studies.polynomials.estimates import Estimate
from effdeg.lab.studies.polynomials.networks.columns import Column
from effdeg.lab.studies.polynomials.networks.exact import closed_forms


def task_of(line: Line) -> int:
    """Return the number of a line's task."""
    return int(line.row.changes["task"])


def network_value(line: Line, column: Column) -> Estimate:
    """Return what the networks of a line measure, each along paths of its own seed."""
    return Estimate.of([_part(run.summary, "network", column) for run in line.runs])


def exact_value(line: Line, column: Column) -> Estimate:
    """Return what the map measures over all pairs of inputs: in closed form where there is one, else integrated."""
    closed = closed_forms(task_of(line))
    if column.name in closed:
        return Estimate(closed[column.name])
    return Estimate.of([_part(run.summary, "exact", column) for run in line.runs])


def off_the_map(line: Line, column: Column) -> float:
    """Return the largest relative difference between a network and its map along the same paths."""
    pairs = [[_part(run.summary, what, column)["value"] for what in ("network", "same_paths")] for run in line.runs]
    return max(abs(network / exact - 1) for network, exact in pairs)


def by_seed(line: Line, column: Column) -> dict[int, float]:
    """Return what the network of each seed measures."""
    return {seed_of(run): _part(run.summary, "network", column)["value"] for run in line.runs}


def deviation_of_a_path(line: Line, column: Column) -> float:
    """Return the standard deviation of a single path's value."""
    found = [_part(run.summary, "network", column)["stderr"] * math.sqrt(run.settings["paths"]) for run in line.runs]
    return Spread.of(found).mean


def fit_error(line: Line) -> float:
    """Return the relative error of the worst fit among a line's runs, on fresh inputs."""
    return max(float((run.summary or {})["test_error"]) for run in line.runs)


def _part(
    summary: dict[str, Any] | None, what: Literal["network", "same_paths", "exact"], column: Column
) -> dict[str, float]:
    found: dict[str, float] = (summary or {})[what][column.name]
    return found
