"""The paper's claim that networks rely on the simple half almost entirely, and whether an idea lessens that.

The rule: a run that has learned (95% of the test images or more) shows the claim if it is within 5 points of chance
with MNIST randomized, and loses no more than a point with CIFAR randomized. The claim holds if all runs of all lines
that the paper reports show it, and does not hold if of one of these lines no run does; in between, with a line missing,
with a single seed, or with a run that has not learned, nothing is decided. An idea lessens the reliance if with MNIST
randomized its accuracy is above the first line's beyond the noise of the seeds, and more than those 5 points above
chance.
"""

from collections.abc import Mapping, Sequence

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.naming import seeds_of, title
from effdeg.lab.report.verdicts import Finding, Verdict
from effdeg.lab.report.wording import listed, percent
from effdeg.lab.store import Record
from effdeg.lab.studies.halves.reliance import (
    CHANCE,
    COMPLEX,
    SIMPLE,
    TEST,
    Papers,
    accuracies,
    difference,
    spread,
)

_LEARNED, _NEAR, _LOSS = 0.95, 0.05, 0.01


def found(block: Block, paper: Mapping[str, Papers]) -> Finding:
    """State whether the paper's claim holds, by the rule above, and what the ideas change.

    Args:
        block: What was run at one scale.
        paper: What the paper reports, by the names of the lines.

    Returns:
        The verdict, and what was found.
    """
    reported = [line for line in block.lines if line.row.name in paper]
    absent = [title(line) for line in block.lines if not line.runs]
    return Finding(
        _verdict(reported),
        (
            *(_reliance(line, paper[line.row.name]) for line in reported if line.runs),
            *_ideas(block, [line for line in block.done if line.row.name not in paper]),
            *([f"Not run: {listed(absent)}."] if absent else []),
            f"All of it at {block.epochs} epochs, {seeds_of(block)}.",
        ),
    )


def _verdict(reported: Sequence[Line]) -> Verdict:
    shown = [[_shows(run) for run in line.runs] for line in reported]
    if any(len(runs) < 2 for runs in shown) or not all(_learned(run) for line in reported for run in line.runs):
        return "not decided"
    if all(all(runs) for runs in shown):
        return "holds"
    return "not decided" if all(any(runs) for runs in shown) else "does not hold"


def _learned(run: Record) -> bool:
    return accuracies(run)[TEST] >= _LEARNED


def _shows(run: Record) -> bool:
    reached = accuracies(run)
    close = abs(reached[SIMPLE] - CHANCE) <= _NEAR and reached[TEST] - reached[COMPLEX] <= _LOSS
    return _learned(run) and close


def _reliance(line: Line, paper: Papers) -> str:
    simple, complex_, test = (spread(line, name).mean for name in (SIMPLE, COMPLEX, TEST))
    runs = [_shows(run) for run in line.runs]
    how = "relies on MNIST almost entirely" if all(runs) else "does not rely on MNIST alone"
    if any(runs) and not all(runs):
        how = f"relies on MNIST almost entirely with {sum(runs)} of {len(runs)} seeds"
    if not all(map(_learned, line.runs)):
        how = f"has not learned (less than {_LEARNED:.0%}) with every seed"
    return (
        f"{title(line)} {how}: {percent(simple)} with MNIST randomized (paper: {paper.simple:.2f}), "
        f"{percent(complex_)} with CIFAR randomized (paper: {paper.complex:.2f}), {percent(test)} with neither."
    )


def _ideas(block: Block, lines: Sequence[Line]) -> list[str]:
    """State which lines rely on the simple half less than the first, and at what cost, and which do not."""
    first = block.lines[0]
    if not lines or not first.runs:
        return []
    less = [line for line in lines if _lessens(line, first)]
    near = [line for line in lines if line not in less and spread(line, SIMPLE).mean <= CHANCE + _NEAR]
    unsure = [line for line in lines if line not in less and line not in near]
    sentences = []
    if less:
        are = "is" if len(less) == 1 else "are"
        changes = listed([_change(line, first) for line in less])
        sentences.append(f"With MNIST randomized, {changes} {are} above {title(first)}, beyond the noise.")
    if unsure:
        sentences.append(f"Above chance, but not beyond the noise of the seeds, or with one seed: {_reached(unsure)}.")
    if near:
        sentences.append(f"Within {100 * _NEAR:.0f} points of chance with MNIST randomized: {_reached(near)}.")
    return sentences


def _reached(lines: Sequence[Line]) -> str:
    return listed([f"{title(line)} ({percent(spread(line, SIMPLE).mean)})" for line in lines])


def _lessens(line: Line, first: Line) -> bool:
    gained = difference(line, first, SIMPLE)
    return bool(gained.beyond_noise) and gained.value > 0 and spread(line, SIMPLE).mean > CHANCE + _NEAR


def _change(line: Line, first: Line) -> str:
    gained, lost = difference(line, first, SIMPLE).value, -difference(line, first, TEST).value
    price = f"{100 * lost:.2f} points of test accuracy" if lost > 0 else "no test accuracy"
    return f"{title(line)} ({percent(spread(line, SIMPLE).mean)}, {100 * gained:+.2f} points, for {price})"
