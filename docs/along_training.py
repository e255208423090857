"""The effective degree next to the gap along training: the figure and the table of docs/along-training.md.

Runs with ``measure_every`` log both at the same epochs.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from effdeg.plots import open_figure
from effdeg_lab.core.results import MethodRuns, Results
from effdeg_lab.core.runs import Run
from effdeg_lab.show.figures import add_grid, styles_of

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


def find_course(run: Run) -> Course | None:
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


def find_courses(method: MethodRuns) -> list[Course]:
    """Return the courses of a method's runs."""
    return [course for run in method.runs if (course := find_course(run))]


def find_methods(results: Results) -> list[MethodRuns]:
    """Return the methods of the figure that have a course."""
    return [each for each in results.done if each.method.name in METHODS and find_courses(each)]


def plot(results: Results, theme: str) -> Figure:
    """Draw one column per method: the effective degree above, the gap below, by epochs."""
    methods = find_methods(results)
    with open_figure(theme, (3.4 * len(methods) + 0.6, 4.6)) as (colors, figure):
        grid = figure.subplots(2, len(methods), sharex=True, sharey="row", squeeze=False)
        styles = styles_of(results.recipe, theme)
        for (above, below), each in zip(grid.T, methods, strict=True):
            ink = styles[each.method.name].color
            for course in find_courses(each):
                above.errorbar(course.epochs, course.degrees, course.stderrs, fmt="o-", ms=3, lw=1.2, color=ink)
                below.plot(course.epochs, course.gaps, "o-", ms=3, lw=1.2, color=ink)
            above.set_title(each.method.title)
            below.set_xlabel("epoch")
            for axes in (above, below):
                add_grid(axes, colors)
        for axes in grid[:, 0]:  # shared by the row, so only once all is drawn
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        grid[0, 0].set_ylabel("effective degree")
        grid[1, 0].set_ylabel("training minus test accuracy,\npoints")
    return figure


def make_table(results: Results) -> str:
    """Tabulate how degree and gap go together along training, method by method."""
    data = {"cifar10": "CIFAR-10", "digits": "100 digits"}[results.recipe.settings.to_dict()["data"]]
    seeds = "1 seed" if len(results.seeds) == 1 else f"{len(results.seeds)} seeds"
    lines = [
        f"| {data}, {results.epochs} epochs, {seeds} | measured at | effective degree, "
        "first to last | gap, first to last | correlation of both | of their changes |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for each in find_methods(results):
        found = find_courses(each)
        first, last = ([np.mean([getattr(one, what)[end] for one in found]) for what in _SHOWN] for end in (0, -1))
        lines.append(
            f"| {each.method.title} | {len(found[0].epochs)} epochs | {first[0]:.2f} → {last[0]:.2f} | "
            f"{first[1]:.1f} → {last[1]:.1f} | {_each(one.levels for one in found)} | "
            f"{_each(one.changes for one in found)} |"
        )
    return "\n".join(lines) + "\n"


def _each(correlations: Iterable[float]) -> str:
    return ", ".join("–" if math.isnan(each) else f"{each:.2f}" for each in correlations)
