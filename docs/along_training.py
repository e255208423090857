"""The effective degree next to the generalization gap along training: the figure and the table of docs/paper.md.

Both are logged at the same epochs in ``metrics.jsonl`` when a run has ``measure_every``.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from effdeg._utils.checks import pluralize
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.figures import colours_of
from effdeg.lab.report.lines import Line
from effdeg.lab.store import Record
from effdeg.plots import open_figure

# Columns of the figure.
METHODS = ("plain", "mixup", "ed")
_FEWEST = 3  # measurements, below which there is no curve
_SHOWN = ("degrees", "gaps")


@dataclass(frozen=True)
class Course:
    """One run at the epochs at which its effective degree was measured, as arrays of equal length."""

    epochs: np.ndarray
    degrees: np.ndarray
    stderrs: np.ndarray
    gaps: np.ndarray

    @property
    def levels(self) -> float:
        """Pearson's correlation of degree and gap over the measured epochs."""
        return correlation(self.degrees, self.gaps)

    @property
    def changes(self) -> float:
        """Pearson's correlation of the changes of both from one measurement to the next: without a shared trend."""
        return correlation(np.diff(self.degrees), np.diff(self.gaps))


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation, nan where either is constant or has fewer than three values."""
    if len(first) < _FEWEST or not (np.ptp(first) and np.ptp(second)):
        return math.nan
    return float(np.corrcoef(first, second)[0, 1])


def course_of(run: Record) -> Course | None:
    """Return the course of a run; None if it has too few measurements."""
    entries = [entry for entry in run.metrics if entry.get("effective_degree") and "train_accuracy" in entry]
    if len(entries) < _FEWEST:
        return None
    degrees = [entry["effective_degree"] for entry in entries]
    return Course(
        epochs=np.array([entry["epoch"] for entry in entries], dtype=float),
        degrees=np.array([each["value"] for each in degrees], dtype=float),
        stderrs=np.array([each["stderr"] or 0.0 for each in degrees], dtype=float),
        gaps=np.array([100 * (entry["train_accuracy"] - entry["test_accuracy"]) for entry in entries]),
    )


def courses(line: Line) -> list[Course]:
    """Return the courses of a method's runs."""
    return [course for run in line.runs if (course := course_of(run))]


def find_methods(block: Block) -> list[Line]:
    """Return the methods of the figure that have a course."""
    return [line for line in block.done if line.row.name in METHODS and courses(line)]


def pick(blocks: Sequence[Block]) -> Block:
    """Return the first table of runs with the most methods to show."""
    return max(blocks, key=lambda block: len(find_methods(block)))


def plot(block: Block, theme: str) -> Figure:
    """Draw one column per method: the effective degree above, the gap below, by epochs."""
    lines = find_methods(block)
    with open_figure(theme, (3.4 * len(lines) + 0.6, 4.6)) as (colours, figure):
        grid = figure.subplots(2, len(lines), sharex=True, sharey="row", squeeze=False)
        inks = colours_of(block.recipe, theme)
        for (above, below), line in zip(grid.T, lines, strict=True):
            ink = inks[line.row.name]
            for course in courses(line):
                above.errorbar(course.epochs, course.degrees, course.stderrs, fmt="o-", ms=3, lw=1.2, color=ink)
                below.plot(course.epochs, course.gaps, "o-", ms=3, lw=1.2, color=ink)
            above.set_title(line.row.title)
            below.set_xlabel("epoch")
            for axes in (above, below):
                axes.grid(color=colours.faint, lw=0.6)
                axes.set_axisbelow(True)
        for axes in grid[:, 0]:  # shared by the row, so only once all is drawn
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        grid[0, 0].set_ylabel("effective degree")
        grid[1, 0].set_ylabel("training less test accuracy,\npoints")
    return figure


def table(block: Block) -> str:
    """Tabulate how degree and gap go together along training, method by method."""
    data = {"cifar10": "CIFAR-10", "digits": "100 digits"}.get(block.recipe.settings.data, block.recipe.settings.data)
    lines = [
        f"| {data}, {block.epochs} epochs, {pluralize(len(block.seeds), 'seed')} | measured at | effective degree, "
        "first to last | gap, first to last | correlation of both | of their changes |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for line in find_methods(block):
        found = courses(line)
        first, last = ([np.mean([getattr(each, what)[end] for each in found]) for what in _SHOWN] for end in (0, -1))
        lines.append(
            f"| {line.row.title} | {len(found[0].epochs)} epochs | {first[0]:.2f} → {last[0]:.2f} | "
            f"{first[1]:.1f} → {last[1]:.1f} | {_each(each.levels for each in found)} | "
            f"{_each(each.changes for each in found)} |"
        )
    return "\n".join(lines) + "\n"


def _each(correlations: Iterable[float]) -> str:
    return ", ".join("–" if math.isnan(each) else f"{each:.2f}" for each in correlations)
