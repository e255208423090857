"""Print facts, tables and settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Column, Table

from effdeg_lab.core.settings import format_setting

if TYPE_CHECKING:
    from effdeg_lab.show import tables


def print_rich(what: RenderableType) -> None:
    """Print text with rich's markup, without wrapping lines, or a table."""
    Console(highlight=False).print(what, soft_wrap=isinstance(what, str))


def make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in head), box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def print_facts(facts: Mapping[str, str]) -> None:
    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    for label, text in facts.items():
        if text:
            grid.add_row(f"[dim]{label}[/]", escape(text))
    print_rich(grid)


def print_parts(parts: "Iterable[str | tables.Table]") -> None:
    from effdeg_lab.show.tables import to_terminal

    console = Console(highlight=False)
    for part in parts:
        if isinstance(part, str):
            console.print(escape(part), soft_wrap=part.endswith("`"))  # a command stays on one line, to be copied
            continue
        console.print(to_terminal(part, console.width))
        for note in part.notes:
            console.print(f"[dim]{escape(note)}[/]")


def format_settings(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={format_setting(value)}" for key, value in values.items())


def format_number(value: Any) -> str:
    """Return a value of a summary, with its standard error if it has one; nothing if it is neither number nor text."""
    if isinstance(value, Mapping) and value.keys() >= {"value", "stderr"}:
        stderr = value["stderr"]
        return format_number(value["value"]) + ("" if stderr is None else f" ± {format_number(stderr)}")
    if value is None:  # runs record NaN and infinities as null
        return "not finite"
    return f"{value:.4g}" if isinstance(value, float) else str(value) if isinstance(value, int | str) else ""
