"""The tables of grokking: when it happened, and what the effective degree was then."""

import math
from collections.abc import Callable

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.notes import scale_notes
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.sheets import heading
from effdeg.lab.report.spread import Spread
from effdeg.lab.studies.grokking.course import DEGREE, Course
from effdeg.lab.studies.grokking.sentences import between, courses_of

Moment = Callable[[Course], int | None]
"""Gives an evaluation of a run; None if what it stands for did not happen."""

_STEPS: dict[str, Moment] = {
    "99% in training": lambda course: course.memorized,
    "50% in validation": lambda course: course.reached("validation_accuracy", 0.5),
    "99% in validation": lambda course: course.reached("validation_accuracy", 0.99),
    "loss highest": lambda course: course.transition and course.peak("validation_loss", until=course.transition[1]),
    "loss halved": lambda course: course.drop,
    "ED highest until then": lambda course: course.before,
    "ED highest": lambda course: course.peak(DEGREE),
}
_DEGREES: dict[str, Moment] = {
    "at first": lambda _: 0,
    "memorized": lambda course: course.memorized,
    "highest until the drop": lambda course: course.before,
    "at the drop": lambda course: course.drop,
    "highest": lambda course: course.peak(DEGREE),
    "at the end": lambda course: course.end(DEGREE),
}


def moments(block: Block) -> Sheet:
    """Show after how many steps each line memorized, generalized, and had its highest effective degree."""
    rows = [
        (line.row.title, *(_steps(line, moment) for moment in _STEPS.values()))
        if line.runs
        else (line.row.title, line.state, *[NOTHING] * (len(_STEPS) - 1))
        for line in block.lines
    ]
    notes = [
        "In training and in validation: of these equations so many are answered correctly, for the first time.",
        "Loss: that of validation; its drop is where it has halved since its highest before 90% in validation.",
        *(["Of several seeds the least and the largest."] if any(len(line.runs) > 1 for line in block.lines) else []),
        *scale_notes(block),
    ]
    title = f"After how many of {block.scale['steps']:,} steps: {heading(block)}"
    return Sheet(title, ("", *_STEPS), tuple(rows), tuple(notes))


def degrees(block: Block) -> Sheet:
    """Show the effective degree of each line when it began, memorized, generalized, at its highest and at the end."""
    rows = [(line.row.title, *(_degree(line, moment) for moment in _DEGREES.values())) for line in block.lines]
    notes = (
        "Along paths between validation equations, ± the standard error; of several seeds the mean, and what the "
        "measurements leave of its standard error.",
        "At the end: the highest of the last five evaluations, since a spike of the loss lowers ED for a moment.",
    )
    return Sheet("Effective degree", ("", *_DEGREES), tuple(rows), notes)


def _steps(line: Line, moment: Moment) -> str:
    """Write the steps of a moment, over seeds; how many, where not all came to it."""
    courses = courses_of(line)
    found = [float(course.steps[at]) for course in courses if (at := moment(course)) is not None]
    if not found:
        return "never"
    some = "" if len(found) == len(courses) else f" ({len(found)} of {len(courses)})"
    return between(found, "{:,.0f}".format) + some


def _degree(line: Line, moment: Moment) -> str:
    """Write the effective degree at a moment, over those seeds that came to it."""
    found = [(course, at) for course in courses_of(line) if (at := moment(course)) is not None]
    if not found:
        return NOTHING
    values = [float(course.values(DEGREE)[at]) for course, at in found]
    errors = [float(course.errors(DEGREE)[at]) for course, at in found]
    return f"{Spread.of(values).mean:.3f} ± {math.hypot(*errors) / len(errors):.3f}"
