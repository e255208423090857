"""Tables of strings, a header and then rows: aligned for a terminal, or as HTML for a notebook; and data frames."""

import html
import re
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from effdeg._utils.imports import require

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = list[list[str]]
_GAP = 2  # spaces between columns
_LEAST_NAME = 8  # characters, which a name may be broken to


def align_columns(rows: Rows) -> list[str]:
    """Return the lines of a table with aligned columns; cells may have several lines."""
    return [
        (" " * _GAP).join(f"{part:<{size}}" for part, size in zip(line, _find_widths(rows), strict=True)).rstrip()
        for row in rows
        for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
    ]


def fit_columns(rows: Rows, width: int) -> list[Rows]:
    """Divide a table into some that are no wider than ``width``, as far as possible.

    In a table that is too wide, intervals go below their numbers, then standard errors. If that is not enough, headers
    and names (the first column) are broken between words; the last columns may become a table with the names again.
    """
    for below in "(±":
        if _measure(rows) > width:
            rows = [[cell.replace(f" {below}", f"\n{below}") for cell in row] for row in rows]
    if _measure(rows) > width:
        head = [re.sub(r"(?<!±) (?=\w)(?![^(]*\))|_|(?<=[^\n])(?=@)", "\n", cell) for cell in rows[0]]
        rows = [head, *([cell.replace(" to ", "…") for cell in row] for row in rows[1:])]
        room = width - _measure([row[1:] for row in rows]) - _GAP
        room = room if room >= _LEAST_NAME else width // 3
        rows = [[_break(row[0], room), *row[1:]] for row in rows]
    fitting = [count for count in range(2, len(rows[0])) if _measure([row[:count] for row in rows]) <= width]
    if _measure(rows) <= width or len(rows[0]) == 2:
        return [rows]
    count = max([2, *fitting])
    return [[row[:count] for row in rows], *fit_columns([[row[0], *row[count:]] for row in rows], width)]


def render_tables(tables: Iterable[tuple[str, Rows]], notes: Iterable[str] = ()) -> str:
    """Return tables with their titles, and notes, as HTML in the colors of the notebook, light or dark."""

    def render(kind: str, rows: Rows) -> str:
        lines = ([f'<{kind} style="text-align: left">{_escape(cell)}</{kind}>' for cell in row] for row in rows)
        return "".join(f"<tr>{''.join(line)}</tr>" for line in lines)

    parts = [
        f'<table style="color: inherit"><caption style="text-align: left">{_escape(title)}</caption>'
        f"<thead>{render('th', [head])}</thead><tbody>{render('td', rows)}</tbody></table>"
        for title, (head, *rows) in tables
    ]
    return f"<div>{''.join(parts)}{''.join(f'<p>{_escape(note)}</p>' for note in notes)}</div>"


def make_frame(rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """Return rows as a data frame of pandas, or raise and say how to install it."""
    return require("pandas", extra="pools", purpose="a data frame").DataFrame(list(rows))  # type: ignore[no-any-return]


def _find_widths(rows: Rows) -> list[int]:
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]


def _measure(rows: Rows) -> int:
    """Return the width of a table."""
    widths = _find_widths(rows)
    return sum(widths) + _GAP * (len(widths) - 1)


def _break(name: str, width: int) -> str:
    """Break a long name between its words, and within a word that is longer than a line."""
    lines = [""]
    for word in re.findall(f"[^-_/]{{0,{max(1, width - 1)}}}[-_/]?", name):
        if lines[-1] and len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _escape(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
