"""The options that the commands of the lab share, and how they write settings."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import HEAVY_HEAD
from rich.markup import escape
from rich.table import Table

from effdeg.lab import Record, Store

RUNS = Path("effdeg-runs")
# A number and its spread are one word.
_WORDS = re.compile("(?<!±) (?!±)")

Name = Annotated[
    str,
    typer.Argument(
        help="A recipe of [bold]effdeg lab list[/], or your own as [bold]package.module:RECIPE[/].", show_default=False
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; once for each.", show_default=False),
]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="EFFDEG_DATA", help="The folder that holds the data sets.", show_default=False),
]
Runs = Annotated[Path, typer.Option(metavar="DIR", envvar="EFFDEG_RUNS", help="The folder where runs are kept.")]
Device = Annotated[str | None, typer.Option(help="Where to run; a GPU if there is one.", show_default=False)]


def records_in(runs: Path) -> list[Record]:
    """Read the runs in a folder; raise if there is no such folder, or no run in it."""
    found = Store(runs).records() if runs.is_dir() else []
    if not found:
        why = "it holds no runs" if runs.is_dir() else "it is no folder" if runs.exists() else "there is no such folder"
        raise ValueError(
            f"--runs {runs}: {why}. Name the folder that effdeg lab run or effdeg lab sweep kept runs in "
            f"({RUNS} where you started them, unless you named another)."
        )
    return found


def word_table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> Table:
    """Set a table whose cells are broken between words only, as far as the terminal's width allows.

    Args:
        title: What it shows.
        head: The names of its columns.
        rows: Their cells.
        width: The characters of a line of the terminal.

    Returns:
        The table: without lines between its columns where these would take the room that words need.
    """
    rows = list(rows)
    columns = list(zip(head, *rows, strict=True))
    words = [max(len(word) for cell in column for word in _WORDS.split(cell)) for column in columns]
    framed = sum(words) + 3 * len(head) + 1 <= width
    room = max(0, width - sum(words) - (3 * len(head) + 1 if framed else len(head)))
    # Every column has room for its longest word; what is left goes to those whose cells are longest.
    wishes = [max(map(len, column)) - size for column, size in zip(columns, words, strict=True)]
    share = min(1.0, room / max(1, sum(wishes)))
    frame: dict[str, Any] = {"box": HEAVY_HEAD} if framed else {"box": None, "padding": (0, 1, 0, 0)}
    table = Table(title=escape(title), title_justify="left", **frame)
    for name, size, wish in zip(head, words, wishes, strict=True):
        table.add_column(escape(name), width=size + int(share * wish), overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def assignments(values: Mapping[str, Any]) -> str:
    """Write settings side by side."""
    return ", ".join(f"{key}={shown(value)}" for key, value in values.items())


def shown(value: Any) -> str:
    """Write a value as --set takes it, exactly."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
