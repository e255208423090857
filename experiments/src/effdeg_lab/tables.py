"""A table of text, and its four forms: terminal, Markdown, LaTeX and HTML."""

from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        columns: The heads of its columns; the first column names the rows.
        rows: The cells.
        notes: What a reader must know, a short fixed sentence each.
        bold: The cells that stand out, by row and column.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    bold: frozenset[tuple[int, int]] = frozenset()
