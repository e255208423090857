"""Tables for a terminal, for Markdown and for LaTeX."""

import textwrap
from typing import Literal

from rich.markup import escape
from rich.table import Table

from effdeg.lab.report.findings import finding
from effdeg.lab.report.result import Result
from effdeg.lab.report.sheets import Sheet, block_sheets, further

_LATEX: dict[str, str | int | None] = {
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


def document(result: Result, language: Literal["markdown", "latex"]) -> str:
    """Write a whole result: what the paper found, what was found here, and its tables."""
    about = result.recipe
    write, escaped = (markdown, _markdown) if language == "markdown" else (latex, _latex)
    title = escaped(f"{about.title} ({about.paper})")
    parts = [f"### {title}" if language == "markdown" else rf"\subsection*{{{title}}}"]
    parts.append(escaped(f"The paper: {about.expects}"))
    for block in result.blocks:
        parts += [escaped(str(finding(block))), *(write(sheet).rstrip("\n") for sheet in block_sheets(block))]
    parts += [escaped(f"Also run: {sentence}.") for sentence in further(result)]
    if about.departs:
        parts.append(escaped(f"Not the paper's: {about.departs}"))
    return "\n\n".join(parts) + "\n"


def terminal(sheet: Sheet) -> Table:
    """Set a table for a terminal; its notes are the caller's."""
    table = Table(title=escape(sheet.title), title_justify="left")
    for index, name in enumerate(sheet.head):
        table.add_column(escape(name), justify="left" if index == 0 else "right", overflow="fold")
    for number, row in enumerate(sheet.rows):
        cells = (_bold(escape(cell), sheet, number, column, "[bold]{}[/]") for column, cell in enumerate(row))
        table.add_row(*cells)
    return table


def markdown(sheet: Sheet) -> str:
    """Set a table in Markdown, its title above and its notes below."""
    lines = [f"**{_markdown(sheet.title)}**", "", _joined([_markdown(name) for name in sheet.head])]
    lines.append("|---|" + "---:|" * (len(sheet.head) - 1))
    for number, row in enumerate(sheet.rows):
        cells = [_bold(_markdown(cell), sheet, number, column, "**{}**") for column, cell in enumerate(row)]
        lines.append(_joined(cells))
    for note in sheet.notes:
        lines += ["", _markdown(note)]
    return "\n".join(lines) + "\n"


def latex(sheet: Sheet) -> str:
    """Set a table in LaTeX with booktabs, its title and notes as the caption."""
    lines = [r"\begin{table}", r"  \centering"]
    caption = " ".join([f"{sheet.title}.", *sheet.notes])
    wrapper = textwrap.TextWrapper(110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    lines += wrapper.wrap(rf"  \caption{{{_latex(caption)}}}")
    lines += [rf"  \begin{{tabular}}{{l{'r' * (len(sheet.head) - 1)}}}", r"    \toprule"]
    lines += [_row([_latex(name) for name in sheet.head]), r"    \midrule"]
    for number, row in enumerate(sheet.rows):
        cells = [_bold(_latex(cell), sheet, number, column, r"\textbf{{{}}}") for column, cell in enumerate(row)]
        lines.append(_row(cells))
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _joined(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bold(text: str, sheet: Sheet, row: int, column: int, around: str) -> str:
    return around.format(text) if (row, column) in sheet.strong else text


def _markdown(text: str) -> str:
    for sign in "|*_":
        text = text.replace(sign, f"\\{sign}")
    return text


def _latex(text: str) -> str:
    return text.translate(str.maketrans(_LATEX))
