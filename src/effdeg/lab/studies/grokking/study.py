"""How grokking is told."""

from collections.abc import Sequence

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.drawing import Drawing
from effdeg.lab.report.lines import Line
from effdeg.lab.report.naming import title
from effdeg.lab.report.sheet import Sheet
from effdeg.lab.report.verdicts import Finding
from effdeg.lab.report.wording import listed, percent
from effdeg.lab.store import Record
from effdeg.lab.studies.grokking.claim import verdict
from effdeg.lab.studies.grokking.course import DEGREE, Course
from effdeg.lab.studies.grokking.sentences import at_the_end, courses_of, normalized, others, outcomes
from effdeg.lab.studies.grokking.sheets import degrees, moments


class Tracked:
    """Measures of networks on their way from memorizing to generalizing; the first line is the paper's setting."""

    def finding(self, block: Block) -> Finding:
        """State whether the claim holds in the paper's setting, by the rule of :mod:`.claim`, and what others show."""
        absent = [title(line) for line in block.lines if not line.runs]
        return Finding(
            verdict(courses_of(block.lines[0])),
            (
                *outcomes(block),
                *normalized(block),
                *at_the_end(block),
                *others(block),
                *([f"Not run: {listed(absent)}."] if absent else []),
            ),
        )

    def sheets(self, block: Block) -> list[Sheet]:
        """Return the tables."""
        return [moments(block), degrees(block)]

    def drawings(self, block: Block) -> list[Drawing]:
        """Return a figure of the lines with weight decay and one of those without, the one with most drops first."""
        groups = {
            "with-decay": [line for line in block.done if line.runs[0].settings["weight_decay"] > 0],
            "without-decay": [line for line in block.done if line.runs[0].settings["weight_decay"] == 0],
        }
        shown = {name: lines for name, lines in groups.items() if lines}
        return [_drawing(name, shown[name]) for name in sorted(shown, key=lambda name: -_drops(shown[name]))]

    def score(self, run: Record) -> str:
        """Describe how accurate a run became, spikes aside, and when its effective degree was highest."""
        course = Course.of(run)
        peak = course.peak(DEGREE)
        return (
            f"validation accuracy up to {percent(float(course.values('validation_accuracy').max()))}, highest ED "
            f"{course.values(DEGREE)[peak]:.3f} at step {course.steps[peak]:,.0f}"
        )


def _drops(lines: Sequence[Line]) -> int:
    return sum(course.drop is not None for line in lines for course in courses_of(line))


def _drawing(name: str, lines: Sequence[Line]) -> Drawing:
    from effdeg.lab.studies.grokking.figure import plot_courses

    several = any(len(line.runs) > 1 for line in lines)
    caption = (
        f"Loss and measures along training {name.replace('-', ' weight ')}. Dotted: 99% of the training equations are "
        "answered correctly. Shaded: validation accuracy goes from 10% to 90%. The effective degree is shown with its "
        "95% interval, and a dot at its highest; dashed, by the scale on the right, the normalized one. Losses below "
        "0.0001 are drawn there." + " Strong: the first seed; thin: the others." * several
    )
    return Drawing(name, caption, lambda theme: plot_courses(lines, theme=theme))
