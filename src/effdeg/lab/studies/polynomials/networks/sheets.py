"""The tables of the polynomial networks."""

from collections.abc import Sequence

from effdeg.lab.report.blocks import Block
from effdeg.lab.report.lines import Line
from effdeg.lab.report.notes import scale_notes
from effdeg.lab.report.sheet import NOTHING, Sheet
from effdeg.lab.report.sheets import heading
from effdeg.lab.report.wording import duration
from effdeg.lab.studies.polynomials.networks.columns import COLUMNS, Column
from effdeg.lab.studies.polynomials.networks.exact import closed_forms
from effdeg.lab.studies.polynomials.networks.findings import paper_value
from effdeg.lab.studies.polynomials.networks.targets import DEGREES
from effdeg.lab.studies.polynomials.networks.values import (
    exact_value,
    fit_error,
    network_value,
    off_the_map,
    task_of,
)

_NOTES = (
    "±: standard error over the paths of all seeds; every seed draws its own networks, inputs and paths.",
    "Exact: the map's own value over all pairs of inputs; * in closed form, else integrated, to within 0.001.",
)


def sheets(block: Block) -> list[Sheet]:
    """Return the tables: how well the networks fit, then the columns of the paper's table, two or three at a time."""
    return [
        _fits(block),
        _compared(block, COLUMNS[:2], "Raw and normalized: the paper's, the exact map's, the network's", _NOTES),
        _compared(block, COLUMNS[2:], "In another basis, and of principal components of the outputs", ()),
    ]


def _fits(block: Block) -> Sheet:
    head = ("", "degree", "relative error of the fit", "ED off the map's by at most", "training")
    rows = tuple((line.row.title, str(DEGREES[task_of(line)]), *_fit(line)) for line in block.lines)
    notes = (
        "The error is that on fresh inputs, in units of the outputs' standard deviation: the worst output and seed.",
        "ED is compared along the same paths, in the column where it differs most.",
        *scale_notes(block),
    )
    return Sheet(f"How well the networks fit: {heading(block)}", head, rows, notes)


def _fit(line: Line) -> tuple[str, ...]:
    if not line.runs:
        return line.state, NOTHING, NOTHING
    most = max(off_the_map(line, column) for column in COLUMNS)
    return f"{fit_error(line):.1e}", f"{most:.3%}", duration(line.seconds or 0.0)


def _compared(block: Block, columns: Sequence[Column], title: str, notes: tuple[str, ...]) -> Sheet:
    head = ["", *(name for column in columns for name in (f"{column.title}: paper", "exact", "network"))]
    rows = []
    for line in block.lines:
        cells = [cell for column in columns for cell in _cells(line, column)]
        rows.append((line.row.title, *cells))
    return Sheet(title, tuple(head), tuple(rows), notes)


def _cells(line: Line, column: Column) -> tuple[str, str, str]:
    paper = f"{paper_value(line, column):.2f}"
    if not line.runs:
        return paper, NOTHING, line.state
    star = "*" if column.name in closed_forms(task_of(line)) else ""
    found = network_value(line, column)
    return paper, f"{exact_value(line, column).value:.3f}{star}", f"{found.value:.3f} ± {found.stderr:.3f}"
