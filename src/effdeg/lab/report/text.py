"""Results in Markdown and in LaTeX."""

import re
import textwrap
from typing import Literal

from effdeg.lab.report.result import RecipeResult
from effdeg.lab.report.sheet import Sheet, bold
from effdeg.lab.report.sheets import block_sheets, further

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


_PACKAGES = r"% Its tables need \usepackage{booktabs}."


def document(result: RecipeResult, language: Literal["markdown", "latex"]) -> str:
    """Write a whole result: what the paper found, what was found here, and its tables."""
    about = result.recipe
    escaped = _markdown if language == "markdown" else _latex
    title = escaped(f"{about.title} ({about.paper})")
    parts = [f"### {title}" if language == "markdown" else f"{_PACKAGES}\n\\subsection*{{{title}}}"]
    parts.append(escaped(f"The paper: {about.expects}"))
    number = 0
    for block in result.blocks:
        parts.append(escaped(str(result.findings[block])))
        for sheet in block_sheets(block):
            number += 1
            label = f"tab:{about.name.replace(':', '-')}-{number}"
            parts.append((markdown(sheet) if language == "markdown" else latex(sheet, label)).rstrip("\n"))
    parts += [escaped(f"Also run: {sentence}.") for sentence in further(result)]
    if about.departs:
        parts.append(escaped(f"Not the paper's: {about.departs}"))
    return "\n\n".join(parts) + "\n"


def markdown(sheet: Sheet) -> str:
    """Set a table in Markdown, its title above and its notes below."""
    lines = [f"**{_markdown(sheet.title)}**", "", _joined([_markdown(name) for name in sheet.head])]
    lines.append("|---|" + "---:|" * (len(sheet.head) - 1))
    for number, row in enumerate(sheet.rows):
        cells = [bold(_markdown(cell), sheet, number, column, "**{}**") for column, cell in enumerate(row)]
        lines.append(_joined(cells))
    for note in sheet.notes:
        lines += ["", _markdown(note)]
    return "\n".join(lines) + "\n"


def latex(sheet: Sheet, label: str) -> str:
    """Set a table in LaTeX with booktabs, its title as the caption and its notes below."""
    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{_latex(sheet.title)}.}}", rf"  \label{{{label}}}"]
    lines += [rf"  \begin{{tabular}}{{l{'r' * (len(sheet.head) - 1)}}}", r"    \toprule"]
    lines += [_row([_latex(name) for name in sheet.head]), r"    \midrule"]
    for number, row in enumerate(sheet.rows):
        cells = [bold(_latex(cell), sheet, number, column, r"\textbf{{{}}}") for column, cell in enumerate(row)]
        lines.append(_row(cells))
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    if sheet.notes:
        wrapper = textwrap.TextWrapper(
            110, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        lines += [r"  \par\medskip", r"  \begin{minipage}{\linewidth}\footnotesize"]
        lines += wrapper.wrap(_latex(" ".join(sheet.notes)))
        lines.append(r"  \end{minipage}")
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _joined(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    parts = text.split("`")
    # Every second part is code, in which Markdown has no other signs.
    parts[::2] = [re.sub(r"([|*_])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _latex(text: str) -> str:
    return text.translate(str.maketrans(_LATEX))
