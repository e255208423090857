"""Tables for a terminal, however narrow."""

import re

from rich.markup import escape
from rich.table import Table

from effdeg.lab.report.sheet import Sheet, bold

_NOWHERE, _SPACES = re.compile("(?!)"), re.compile(" ")
# Intervals and further strengths may stand below what they follow; only where nothing else helps, spreads too.
_INTERVALS, _SPREADS = re.compile(r" (?=\()|(?<=,) "), re.compile(r" (?=[(±])|(?<=,) ")
# How to gain room, the least first: the spaces beside cells, and where heads and cells may be broken.
_TIGHTER = (
    (1, _NOWHERE, _NOWHERE),
    (1, _SPACES, _NOWHERE),
    (1, _SPACES, _INTERVALS),
    (0, _SPACES, _INTERVALS),
    (0, _SPACES, _SPREADS),
)


def terminal(sheet: Sheet, width: int) -> Table:
    """Set a table for a terminal; its notes are the caller's.

    No number is broken. Where there is little room, intervals stand below their numbers, and names are broken at spaces
    and underscores.

    Args:
        sheet: The table.
        width: The characters of a line of the terminal.

    Returns:
        The table.
    """
    names = [row[0] for row in sheet.rows]
    whole, longest = max(map(len, names)), max(len(part) for name in names for part in _parts(name))
    for padding, head_breaks, cell_breaks in _TIGHTER:
        columns = [
            [cell_breaks.sub("\n", _spared(row[column], sheet, column)) for row in sheet.rows]
            for column in range(1, len(sheet.head))
        ]
        widths = [
            max(_width(head_breaks.sub("\n", head)), *map(_width, cells))
            for head, cells in zip(sheet.head[1:], columns, strict=True)
        ]
        room = width - sum(widths) - (2 * padding + 1) * len(sheet.head) - 1
        if room >= (whole if head_breaks is _NOWHERE else longest):
            break
    table = Table(title=escape(sheet.title), title_justify="left", padding=(0, padding))
    table.add_column(escape(sheet.head[0]))
    for head, size in zip(sheet.head[1:], widths, strict=True):
        table.add_column(escape(_filled(head, size)), justify="right", overflow="fold")
    for number, cells in enumerate(zip([_filled(name, room) for name in names], *columns, strict=True)):
        table.add_row(*(bold(escape(cell), sheet, number, column, "[bold]{}[/]") for column, cell in enumerate(cells)))
    return table


def _spared(cell: str, sheet: Sheet, column: int) -> str:
    return cell.partition(" (")[0] if column in sheet.spare else cell


def _width(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _parts(name: str) -> list[str]:
    """Part a name behind its spaces and underscores."""
    return re.findall(r"[^ _]*[ _]+|[^ _]+", name)


def _filled(name: str, width: int) -> str:
    """Break a name into lines of some width, at spaces and underscores alone."""
    lines = [""]
    for part in _parts(name):
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
