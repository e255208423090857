"""Fill the tables and numbers of the pages from ``results/``, and draw their figures.

    python docs/make_figures.py                  # everything; trains the demo's networks
    python docs/make_figures.py tables           # tables and numbers alone, in a minute
    python docs/make_figures.py meaning grokking # some figures, by name or by recipe, and all tables

A page marks where: ``<!-- table NAME -->``, a new line, the table, ``<!-- end -->``; within a sentence
``<!-- number NAME -->1.23<!-- end -->``. ``tables.py`` and ``findings.py`` make them. All else is written by hand.
"""

import re
import sys
from pathlib import Path

import figures
import findings
import records
import tables

ROOT = Path(__file__).parent.parent
MARK = re.compile(r"(<!-- (table|number) (.+?) -->\n?).*?(<!-- end -->)", re.DOTALL)


def list_pages() -> list[Path]:
    """List the pages that may have marks."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "results").glob("*.md")),
    ]


def fill(kind: str, name: str) -> str:
    """Return what belongs between a mark and its end; the table ``about RECIPE`` is the evidence of a recipe."""
    if kind == "number":
        return records.shorten(tables.NUMBERS[name]())
    if name.startswith("about "):
        return records.describe(name.removeprefix("about "))
    return findings.make_table() if name == "findings" else tables.TABLES[name]()


def render_pages() -> dict[Path, str]:
    """Return the text of every page with what is made from ``results/`` between its marks."""

    def replace(mark: re.Match[str]) -> str:
        return mark[1] + fill(mark[2], mark[3]) + mark[4]

    return {page: MARK.sub(replace, page.read_text()) for page in list_pages()}


def main(names: list[str]) -> None:
    """Draw the named figures, or all of them, and fill the tables."""
    figures.draw([name for name in names if name != "tables"] if names else figures.list_names())
    for page, text in render_pages().items():
        page.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
