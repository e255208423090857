"""The tables: every line with either half randomized, beside the paper's, and what it gains and costs."""

from collections.abc import Mapping

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.notes import scale_notes
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.sheets import heading
from effdeg.lab.report.time_notes import rough_notes
from effdeg.lab.report.wording import degree, gain, points
from effdeg.lab.studies.halves.reliance import SIMPLE, TEST, TESTS, Papers, difference, spread


def accuracies_table(block: Block, paper: Mapping[str, Papers]) -> Sheet:
    """Show every line in the three tests.

    Args:
        block: What was run at one scale.
        paper: What the paper reports, by the names of the lines.

    Returns:
        The table.
    """
    head = ("", *(f"{test}, %" for test in TESTS), "paper, %")
    rows = tuple(
        (
            line.row.title,
            *((points(spread(line, test)) for test in TESTS) if line.runs else (line.state, NOTHING, NOTHING)),
            _reported(paper.get(line.row.name)),
        )
        for line in block.lines
    )
    notes = (
        "The paper's three numbers are those of the three columns before.",
        *(["±: standard deviation over seeds."] if any(len(line.runs) > 1 for line in block.lines) else []),
        "Whoever looks at one half alone is at chance, 50%, when it is randomized. Whoever weighs both alike is right "
        "where they agree and in half of the other cases: 75% with either randomized.",
        *scale_notes(block),
    )
    return Sheet(f"Test accuracy with either half randomized: {heading(block)}", head, rows, notes)


def gains_table(block: Block) -> Sheet:
    """Show what every line gains where the simple half is randomized, and what that costs."""
    first = block.lines[0]
    head = ("", f"{SIMPLE}: against {first.row.title}", f"{TEST}: against {first.row.title}", "ED", "step")
    rows = tuple(
        (
            line.row.title,
            *(_against(line, first, test) for test in (SIMPLE, TEST)),
            NOTHING if line.effective_degree is None else degree(line.effective_degree),
            NOTHING if (price := block.price(line)) is None else f"{price:.2f}×",
        )
        for line in block.lines
    )
    notes = (
        "Points of accuracy with 95% intervals; * leaves out zero.",
        "ED is measured along paths between test images, ± its standard error.",
        *rough_notes(block),
    )
    return Sheet("What that gains and costs", head, rows, notes)


def _against(line: Line, first: Line, test: str) -> str:
    if line is first or not line.runs or not first.runs:
        return NOTHING
    return gain(difference(line, first, test))


def _reported(paper: Papers | None) -> str:
    return NOTHING if paper is None else " / ".join(f"{each:.2f}" for each in paper.by_test().values())
