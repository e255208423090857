"""The paper's figure of grokking: the loss, and below it the effective degree and the measures beside it."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from effdeg._utils.statistics import student_quantile
from effdeg.lab.report.lines import Line
from effdeg.lab.studies.grokking.course import DEGREE, NORMALIZED, Course
from effdeg.lab.studies.grokking.sentences import OTHERS, courses_of
from effdeg.plots import Theme, open_figure

_PANELS = {DEGREE: "effective degree", **OTHERS}
# In the first steps the learning rate rises, and hardly anything else.
_FIRST_STEP = 10
# How well equations are known by heart whose loss is below this does not matter here.
_LOWEST_LOSS = 1e-4


def plot_courses(lines: Sequence[Line], *, theme: str = "light") -> Figure:
    """Draw what happened along training: a column for each line, its first seed strong and others thin.

    Not the mean over seeds, which generalize at different steps: it would show no peak where each of them has one.

    Args:
        lines: Lines that were run.
        theme: ``"light"`` or ``"dark"``.

    Returns:
        The figure.
    """
    with open_figure(theme, (1.0 + 3.2 * len(lines), 8.6)) as (colours, figure):
        grid = figure.subplots(5, len(lines), sharex="col", squeeze=False, height_ratios=[1.3, 1.3, 1, 1, 1])
        for column, line in zip(grid.T, lines, strict=True):
            courses = courses_of(line)
            for course in reversed(courses):
                _draw_course(column, course, colours, strong=course is courses[0])
            _mark(column, courses[0], colours)
            column[0].set_title(line.row.title, pad=26, fontweight="bold")
            column[-1].set_xlabel("step")
        for axes, name in zip(grid[:, 0], ("loss", *_PANELS.values()), strict=True):
            axes.set_ylabel(name)
        figure.align_ylabels(grid[:, 0])
    return figure


def _draw_course(column: Sequence[Axes], course: Course, colours: Theme, *, strong: bool) -> None:
    top, *below = column
    width, alpha = (1.5, 1.0) if strong else (0.6, 0.6)
    for name, colour, share in (("train", colours.simple, 0.6), ("validation", colours.complex, 1.0)):
        loss = np.maximum(course.values(f"{name}_loss"), _LOWEST_LOSS)
        top.plot(course.steps, loss, color=colour, lw=share * width, alpha=alpha)
    for axes, name in zip(below, _PANELS, strict=True):
        axes.plot(course.steps, course.values(name), color=colours.ink, lw=width, alpha=alpha)


def _mark(column: Sequence[Axes], course: Course, colours: Theme) -> None:
    """Set the axes, and mark where a run memorized and generalized, and its highest effective degree with its error."""
    top, degree, *_ = column
    values, peak = course.values(DEGREE), course.peak(DEGREE)
    margin = student_quantile(0.975, course.paths - 1) * course.errors(DEGREE)
    degree.fill_between(course.steps, values - margin, values + margin, color=colours.ink, alpha=0.2, lw=0)
    degree.plot(course.steps[peak], values[peak], "o", color=colours.complex, ms=5, zorder=4, clip_on=False)
    _draw_normalized(degree, course, colours)
    top.set_yscale("log")
    top.text(0.03, 0.16, "validation", color=colours.complex, fontsize=8, transform=top.transAxes)
    top.text(0.03, 0.05, "training", color=colours.simple, fontsize=8, transform=top.transAxes)
    for axes in column:
        axes.set_xscale("log")
        axes.set_xlim(_FIRST_STEP, max(2 * _FIRST_STEP, float(course.steps[-1])))
        axes.minorticks_off()
        axes.grid(color=colours.faint, lw=0.5)
        axes.set_axisbelow(True)
        if axes is not top:
            axes.set_ylim(bottom=0)
    above = blended_transform_factory(top.transData, top.transAxes)
    if course.memorized is not None:
        step = float(course.steps[course.memorized])
        for axes in column:
            axes.axvline(step, color=colours.simple, ls=":", lw=1)
        top.text(step, 1.02, "memorized", transform=above, color=colours.simple, ha="center", fontsize=8)
    if course.transition is not None:
        start, end = course.steps[list(course.transition)]
        for axes in column:
            axes.axvspan(start, end, color=colours.complex, alpha=0.25, lw=0)
        # Higher than the other name, which may be close.
        top.text(
            math.sqrt(start * end), 1.12, "generalizes", transform=above, color=colours.complex, ha="center", fontsize=8
        )


def _draw_normalized(degree: Axes, course: Course, colours: Theme) -> None:
    """Draw the normalized effective degree behind the raw one, by a scale of its own."""
    axes = degree.twinx()
    axes.plot(course.steps, course.values(NORMALIZED), color=colours.simple, lw=1, ls="--", alpha=0.8)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="y", colors=colours.simple, length=0, labelsize=7)
    degree.set_zorder(axes.get_zorder() + 1)
    degree.patch.set_visible(False)
    degree.text(0.03, 0.9, "raw", color=colours.ink, fontsize=8, transform=degree.transAxes)
    degree.text(0.03, 0.79, "normalized", color=colours.simple, fontsize=8, transform=degree.transAxes)
