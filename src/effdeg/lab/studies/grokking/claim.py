"""The claim: ED rises while a network memorizes, peaks near the drop of the validation loss, and then falls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from effdeg.lab.report.verdicts import Verdict
from effdeg.lab.studies.grokking.course import DEGREE, Course

NEAR = 2.0
"""A peak is near the drop if its step is at most so many times that of the drop, and at least that part of it."""

# A difference counts if it is more than so many times its standard error. The two ends are taken as independent, which
# is cautious: they are measured along the same paths.
_ERRORS = 2.0


@dataclass(frozen=True)
class Judged:
    """What the claim comes to in a run whose validation loss drops.

    Attributes:
        rises: Whether ED, when the training equations are memorized (or at the drop, if that comes first), is above
            that of the first evaluation.
        near: Whether ED within a factor of two of the step of the drop reaches its highest, but for the error bars.
        falls: Whether ED ends below its highest, in all of its last five evaluations.
    """

    rises: bool
    near: bool
    falls: bool

    @property
    def holds(self) -> bool:
        """Whether all of it is so."""
        return self.rises and self.near and self.falls


def judged(course: Course, degree: str = DEGREE) -> Judged | None:
    """Judge a run; None if its validation loss does not drop, so that there is nothing to judge.

    Args:
        course: The run.
        degree: Which effective degree the claim is about.

    Returns:
        What the claim comes to.
    """
    if course.drop is None:
        return None
    peak = course.peak(degree)
    leads = [course.lead(at) for at in range(len(course.steps))]
    around = [at for at, lead in enumerate(leads) if lead is not None and is_near(lead)]
    memorized = course.drop if course.memorized is None else min(course.memorized, course.drop)
    return Judged(
        rises=_above(course, degree, memorized, 0),
        near=not all(_above(course, degree, peak, at) for at in around),
        falls=_above(course, degree, peak, course.end(degree)),
    )


def is_near(lead: float) -> bool:
    """Return whether a peak at so many times the step of the drop is near it."""
    return 1 / NEAR <= lead <= NEAR


def verdict(courses: Sequence[Course]) -> Verdict:
    """State whether the claim holds: in all runs that can be judged, in none of them, or not decided."""
    known = [found.holds for course in courses if (found := judged(course)) is not None]
    if not known or (any(known) and not all(known)):
        return "not decided"
    return "holds" if all(known) else "does not hold"


def _above(course: Course, degree: str, one: int, other: int) -> bool:
    """Whether ED at one evaluation is above that at another, by more than their error bars."""
    values, errors = course.values(degree), course.errors(degree)
    return bool(values[one] - values[other] > _ERRORS * math.hypot(errors[one], errors[other]))
