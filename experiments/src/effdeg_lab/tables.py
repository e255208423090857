"""A table of text, for a terminal, in Markdown and in LaTeX; the report has it in HTML."""

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import rich.table
from rich.markup import escape

NOTHING = "–"

_LATEX: dict[str, str] = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "½": r"$\frac{1}{2}$",
    "¼": r"$\frac{1}{4}$",
    "⅛": r"$\frac{1}{8}$",
    "−": "$-$",
    "α": r"$\alpha$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
    "Ψ": r"$\Psi$",
    "★": r"$\star$",
    "–": "--",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
}
# How to gain room, the least first: where cells may be broken, and the spaces next to them.
_TIGHTER = (
    (None, 1),
    (re.compile("(?!)"), 1),
    (re.compile(r" (?=\()|(?<=,) "), 1),
    (re.compile(r" (?=\()|(?<=,) "), 0),
    (re.compile(r" (?=[(±])|(?<=,) "), 0),
)
_LEAST_NAME = 13
_TO_LATEX = str.maketrans(_LATEX)


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


def bold_largest(values: Sequence[float | None], column: int) -> frozenset[tuple[int, int]]:
    """Return the cells of a column that hold the largest of several values; none if there is only one value."""
    known = [value for value in values if value is not None]
    return frozenset((row, column) for row, value in enumerate(values) if len(known) > 1 and value == max(known))


def to_terminal(table: Table, width: int) -> rich.table.Table:
    """Format a table for a terminal, without its notes.

    No number is broken. Where there is little room, heads are wrapped, intervals go below their numbers, and names are
    broken at spaces and underscores.
    """
    for breaks, padding in _TIGHTER:
        rows = [[cell if breaks is None else breaks.sub("\n", cell) for cell in row[1:]] for row in table.rows]
        heads = [head if breaks is None else head.replace(" ", "\n") for head in table.columns[1:]]
        widths = [max(_width(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
        room = width - sum(widths) - (2 * padding + 1) * len(table.columns) - 1
        if room >= max((len(row[0]) if breaks is None else _LEAST_NAME) for row in table.rows):
            break
    found = rich.table.Table(title=escape(table.title), title_justify="left", padding=(0, padding))
    found.add_column(escape(table.columns[0]), overflow="fold")
    for head, size in zip(table.columns[1:], widths, strict=True):
        found.add_column(escape(head), justify="right", width=size, overflow="fold")
    for number, row in enumerate(rows):
        cells = map(escape, [_wrap_name(table.rows[number][0], max(room, _LEAST_NAME)), *row])
        found.add_row(*(_emphasize(cell, table, number, column, "[bold]{}[/]") for column, cell in enumerate(cells)))
    return found


def to_markdown(table: Table) -> str:
    """Format a table in Markdown, its title above and its notes below."""
    lines = [f"**{escape_markdown(table.title)}**", ""]
    lines.append(f"| {' | '.join(map(escape_markdown, table.columns))} |")
    lines.append("|---|" + "---:|" * (len(table.columns) - 1))
    lines += [f"| {' | '.join(cells)} |" for cells in _format_cells(table, escape_markdown, "**{}**")]
    for note in table.notes:
        lines += ["", escape_markdown(note)]
    return "\n".join(lines) + "\n"


def to_latex(table: Table, label: str) -> str:
    """Format a table in LaTeX with booktabs, its title as the caption and its notes below."""
    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{escape_latex(table.title)}.}}", rf"  \label{{{label}}}"]
    lines += [rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", r"    \toprule"]
    lines += [rf"    {' & '.join(map(escape_latex, table.columns))} \\", r"    \midrule"]
    lines += [rf"    {' & '.join(cells)} \\" for cells in _format_cells(table, escape_latex, r"\textbf{{{}}}")]
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    if table.notes:
        lines += [r"  \par\medskip", r"  \begin{minipage}{\linewidth}\footnotesize"]
        lines += [f"    {escape_latex(note)}" for note in table.notes]
        lines.append(r"  \end{minipage}")
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape_markdown(text: str) -> str:
    """Escape what Markdown would take for its own, except within backquotes."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([|*_])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def escape_latex(text: str) -> str:
    """Escape what LaTeX would take for its own, and write signs as its commands."""
    return text.translate(_TO_LATEX)


def _format_cells(table: Table, escape_cell: Callable[[str], str], bold: str) -> list[list[str]]:
    return [
        [_emphasize(escape_cell(cell), table, number, column, bold) for column, cell in enumerate(row)]
        for number, row in enumerate(table.rows)
    ]


def _emphasize(text: str, table: Table, row: int, column: int, pattern: str) -> str:
    return pattern.format(text) if (row, column) in table.bold else text


def _width(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _wrap_name(name: str, width: int) -> str:
    """Break a name at spaces and after underscores and ``@``."""
    lines = textwrap.wrap(re.sub(r"([_@])", r"\1 ", name), width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(re.sub(r"([_@]) ", r"\1", line) for line in lines)
