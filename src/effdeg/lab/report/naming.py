"""How lines and what was run of them are called within sentences."""

import math

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.wording import percent, seeds


def title(line: Line) -> str:
    """Name a line within a sentence; a title that is a phrase is quoted."""
    return f"“{line.row.title}”" if set(line.row.title) & set(",:(") else line.row.title


def named(line: Line) -> str:
    """Name a line with its accuracy."""
    return f"{title(line)} ({percent(mean(line))})"


def mean(line: Line) -> float:
    """Return the mean accuracy of a line, below everything if it was not run."""
    return line.accuracy.mean if line.accuracy else -math.inf


def seeds_of(block: Block) -> str:
    """Describe how many seeds the lines of a block were run with."""
    counts = sorted({len(line.runs) for line in block.done})
    return seeds(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
