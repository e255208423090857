"""A table of text, for a terminal, in Markdown and in LaTeX; the report has it in HTML."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import rich.table
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

NOTHING = "–"

_MATH = {"±": "pm", "×": "times", "≤": "le", "★": "star", "α": "alpha", "η": "eta", "λ": "lambda", "ρ": "rho"}
_MATH |= {"†": "dagger", "τ": "tau", "Ψ": "Psi", "½": "frac{1}{2}", "¼": "frac{1}{4}", "⅛": "frac{1}{8}"}
_NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_LATEX = str.maketrans(
    {sign: f"$\\{name}$" for sign, name in _MATH.items()}
    | {sign: rf"\text{name}{{}}" for sign, name in _NAMED.items()}
    | {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"−": "$-$", "–": "--", "…": r"\dots{}", "“": "``", "”": "''"}
)


@dataclass(frozen=True)
class Table:
    """A table of text, as a study returns it."""

    title: str
    columns: tuple[str, ...]  # the heads; the first column names the rows
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # what a reader must know, a short fixed sentence each
    bold: frozenset[tuple[int, int]] = frozenset()  # the cells that stand out, by row and column


def bold_largest(spreads: Sequence[Any], column: int) -> frozenset[tuple[int, int]]:
    """Return the cells of a column that hold the largest of several means; none if there is only one."""
    means = {row: spread.mean for row, spread in enumerate(spreads) if spread}
    return frozenset((row, column) for row, mean in means.items() if len(means) > 1 and mean == max(means.values()))


def to_terminal(table: Table, width: int) -> RenderableType:
    """Format a table for a terminal, without its notes; no number is broken, and names get the room that is left.

    A table that is too wide even so is divided: the columns that have no room follow, with the names again. One without
    rows has a title only.
    """
    if not table.rows:
        return Text(table.title, style="table.title")
    # Where there is little room, intervals go below their numbers, and then everything is broken at spaces.
    for breaks, padding in (("(?!)", 1), (r" (?=\()", 0), (" ", 0)):
        rows = tuple((name, *(re.sub(breaks, "\n", cell) for cell in cells)) for name, *cells in table.rows)
        heads = [head if padding else head.replace(" ", "\n") for head in table.columns]
        columns = list(zip(heads, *rows, strict=True))
        widths = [max(len(line) for cell in cells for line in cell.split("\n")) for cells in columns]
        names = widths[0] if padding else min(widths[0], 12)
        ends = [names + sum(widths[1:last]) + (2 * padding + 1) * last for last in range(len(widths) + 1)]
        if ends[-1] < width:
            break
    else:
        last = max(2, sum(end < width for end in ends[2:]) + 1)
        if last < len(widths):
            rest = replace(_take_columns(table, last, None), title=f"{table.title} (continued)")
            return Group(to_terminal(_take_columns(table, 1, last), width), to_terminal(rest, width))
    drawn = rich.table.Table(title=escape(table.title), title_justify="left", padding=(0, padding))
    for number, head in enumerate(table.columns):
        fixed = widths[number] if number else None
        drawn.add_column(escape(head), justify="right" if number else "left", overflow="fold", width=fixed)
    for row in _format_cells(replace(table, rows=rows), escape, "[bold]{}[/]"):
        drawn.add_row(*row)
    return drawn


def _take_columns(table: Table, first: int, last: int | None) -> Table:
    """Return the column of names, and some of the others."""
    columns, *rows = ((row[0], *row[first:last]) for row in (table.columns, *table.rows))
    bold = {(row, column - first + 1) for row, column in table.bold if first <= column < len(columns) + first - 1}
    names = {(row, column) for row, column in table.bold if column == 0}
    return replace(table, columns=columns, rows=tuple(rows), bold=frozenset(bold | names))


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
    lines += [rf"  \par\footnotesize {escape_latex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def to_sentence(text: str) -> str:
    """Return a message as a sentence, as notes are."""
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def escape_markdown(text: str) -> str:
    """Escape what Markdown would take for its own, except within backquotes."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([|*_])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def escape_latex(text: str) -> str:
    """Escape what LaTeX would take for its own, and write signs as its commands."""
    return text.translate(_LATEX)


def _format_cells(table: Table, escape_cell: Callable[[str], str], bold: str) -> list[list[str]]:
    rows = [[escape_cell(cell) for cell in row] for row in table.rows]
    for row, column in table.bold:
        rows[row][column] = bold.format(rows[row][column])
    return rows
