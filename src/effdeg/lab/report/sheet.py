"""A table as heads and cells of text; how it is set is another matter."""

from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Sheet:
    """A table.

    Attributes:
        title: What it shows.
        head: The heads of its columns; the first column names the lines.
        rows: Their cells.
        notes: What a reader should know, in sentences.
        strong: The rows and columns of the cells that stand out.
        spare: The columns whose intervals can be left out where there is little room.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    strong: frozenset[tuple[int, int]] = frozenset()
    spare: frozenset[int] = frozenset()


def bold(text: str, sheet: Sheet, row: int, column: int, around: str) -> str:
    """Set the text of a cell, by a pattern such as ``**{}**`` if it stands out."""
    return around.format(text) if (row, column) in sheet.strong else text
