"""What was found of grokking, in sentences."""

from collections.abc import Callable, Iterable, Sequence

from effdeg._utils.checks import pluralize
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.naming import title
from effdeg.lab.report.wording import listed, percent, seeds
from effdeg.lab.studies.grokking.claim import is_near, judged, verdict
from effdeg.lab.studies.grokking.course import DEGREE, NORMALIZED, Course

OTHERS = {"parameter_norm": "parameter norm", "sharpness": "sharpness", "adaptive_sharpness": "adaptive sharpness"}
"""The measures that the paper puts beside the effective degree."""

# What falls by no more than this share of its highest so far is called monotone.
_LEVEL = 0.01


def outcomes(block: Block) -> list[str]:
    """Describe what the claim comes to: in short, then line by line where it can be tested, then where it cannot."""
    testable = [line for line in block.done if any(judged(course) for course in courses_of(line))]
    rest = [line for line in block.done if line not in testable]
    failing = sum(verdict(courses_of(line)) == "does not hold" for line in testable)
    first = block.lines[0]
    short = []
    if first in rest and testable:
        short.append(
            "In the paper's setting the network does not generalize in the steps that it was given; where it does, the "
            f"claim fails in {failing} of {pluralize(len(testable), 'line')}."
        )
    return [*short, *map(_outcome, testable), *_untested(rest)]


def _untested(lines: Sequence[Line]) -> list[str]:
    if not lines:
        return []
    best = {
        line: max(float(course.values("validation_accuracy").max()) for course in courses_of(line)) for line in lines
    }
    names = listed([f"{title(line)} ({seeds(len(line.runs))}; {percent(best[line])})" for line in lines])
    steps = courses_of(lines[0])[0].steps[-1]
    return [
        f"The validation loss does not drop within {steps:,.0f} steps, so that the claim cannot be tested, in {names}: "
        "in brackets the highest validation accuracy."
    ]


def _outcome(line: Line) -> str:
    """Describe what the claim comes to in the runs of a line of which some can be judged."""
    courses = courses_of(line)
    known = [(course, found) for course in courses if (found := judged(course)) is not None]
    failing = [(course, found) for course, found in known if not found.holds]
    runs = seeds(len(known)) if len(known) == len(courses) else f"{len(known)} of {seeds(len(courses))}"
    if not failing:
        return (
            f"{title(line)} ({runs}): ED rises while the network memorizes, is highest near the drop of the validation "
            "loss, and falls."
        )
    at = _leads((course, course.peak(DEGREE)) for course, _ in failing)
    before = _leads((course, course.before) for course, _ in failing)
    words = {
        "does not rise while the network memorizes": any(not found.rises for _, found in failing),
        f"is highest not near the drop of the validation loss, but at {at} times its step (until the drop, at {before} "
        "times)": any(not found.near for _, found in failing),
        "does not end below its highest": any(not found.falls for _, found in failing),
    }
    some = "" if len(failing) == len(known) else f" in {len(failing)} of {len(known)}"
    said = listed([each for each, so in words.items() if so])
    return f"{title(line)} ({runs}): the claim fails{some}: ED {said}."


def normalized(block: Block) -> list[str]:
    """Describe what the claim comes to for the normalized ED, since the paper does not say which it follows."""
    found = []
    for line in block.done:
        courses = [course for course in courses_of(line) if course.drop is not None]
        if not courses:
            continue
        holding = sum(each.holds for course in courses if (each := judged(course, NORMALIZED)) is not None)
        highest = [course.peak(NORMALIZED, until=course.drop) for course in courses]
        both = list(zip(courses, highest, strict=True))
        drops = [(course, course.drop) for course in courses if course.drop is not None]
        ends = [(course, course.end(NORMALIZED)) for course in courses]
        before, after, end = (
            between((float(course.values(NORMALIZED)[at]) for course, at in moments), "{:.2f}".format)
            for moments in (both, drops, ends)
        )
        found.append(
            f"{title(line)}: {before} at its highest until the drop ({_leads(both)} times its step), {after} at the "
            f"drop, {end} at the end; the claim holds in {holding} of {pluralize(len(courses), 'run')}"
        )
    return [f"Normalized ED, of the logits: {'; '.join(found)}."] if found else []


def others(block: Block) -> list[str]:
    """Describe what the other measures do, of which the paper says that only ED peaks at the transition."""
    falls = {
        title(line): max(course.largest_fall("parameter_norm") for course in courses_of(line)) for line in block.done
    }
    rising = [name for name, fall in falls.items() if fall <= _LEVEL]
    falling = [f"{name} (by {fall:.0%} of its highest)" for name, fall in falls.items() if fall > _LEVEL]
    norm = [f"rises throughout, as in the paper, in {listed(rising)}"] if rising else []
    norm += [f"falls in {listed(falling)}"] if falling else []
    found = [f"The parameter norm {', and '.join(norm)}."]
    generalized = [line for line in block.done if any(course.drop is not None for course in courses_of(line))]
    if generalized:
        peaks = [
            f"{word} in {title(line)}"
            for name, word in OTHERS.items()
            for line in generalized
            if all(is_near(lead) for course in courses_of(line) if (lead := course.lead(course.peak(name))) is not None)
        ]
        found.append(
            f"Of the other measures these are highest near the drop: {listed(peaks)}."
            if peaks
            else "None of the other measures is highest near the drop."
        )
    return found


def at_the_end(block: Block) -> list[str]:
    """Compare the effective degrees at the end of runs that generalized and of runs that did not, if there are both."""
    ends: dict[bool, list[float]] = {True: [], False: []}
    for course in (course for line in block.done for course in courses_of(line)):
        ends[course.transition is not None].append(float(course.values(DEGREE)[course.end(DEGREE)]))
    if not all(ends.values()):
        return []
    generalized, memorized = (between(ends[so], "{:.2f}".format) for so in (True, False))
    decayed = [
        {line.runs[0].settings["weight_decay"] > 0 for line in block.done if _generalized(line) is so}
        for so in (True, False)
    ]
    confounded = decayed == [{True}, {False}]
    apart = " (the former all with weight decay, the latter without, which may be why)" * confounded
    return [f"At the end ED is {generalized} where the network generalized and {memorized} where it did not{apart}."]


def _generalized(line: Line) -> bool:
    return any(course.transition is not None for course in courses_of(line))


def _leads(moments: Iterable[tuple[Course, int | None]]) -> str:
    """Write the steps of evaluations as multiples of that of the drop."""
    leads = [course.lead(at) for course, at in moments if at is not None]
    return between([lead for lead in leads if lead is not None], "{:.2g}".format)


def courses_of(line: Line) -> list[Course]:
    """Read what the runs of a line did, by seed."""
    return [Course.of(run) for run in line.runs]


def between(values: Iterable[float], write: Callable[[float], str]) -> str:
    """Write a value, or the least and the largest of several."""
    ends: Sequence[float] = sorted(values)
    return " to ".join(dict.fromkeys([write(ends[0]), write(ends[-1])]))
