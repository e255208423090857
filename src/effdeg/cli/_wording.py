"""Messages of the library, which speak of ``name=value``, in the terms of the command that runs."""

import re
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.markup import escape

_VALUE = r"""'[^']*'|"[^"]*"|torch\.\w+|[-+]?\d[\d.]*(?:e[-+]?\d+)?|…|(?!lambda)[A-Za-z_]\w*"""

_spellings: dict[str, str] = {}
"""How the running command spells the settings of the library: ``batch_size`` is ``--batch-size``."""


def use_spellings(spellings: Mapping[str, str]) -> None:
    """Set the options of the command that runs, by the names that the library gives them."""
    _spellings.clear()
    _spellings.update(spellings)


def in_options(text: str) -> str:
    """Return a message with ``name=value`` written as ``--name value``, for the options that the command has.

    Names inside paths of files (``runs/seed=3/w.pt``) and values that only Python can express stay as they are.
    """
    if not _spellings:
        return text
    names = "|".join(map(re.escape, _spellings))
    return re.sub(rf"(?<![\w/.=-])(?:--)?({names})=({_VALUE})?(?![\w/=]|\.\w)", _spell, text)


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print what a reader should not overlook."""
    for note in notes:
        console.print(f"[yellow]{escape(in_options(note))}[/]")


def print_aside(text: str, prefix: str = "") -> None:
    """Print a message on the error stream, in one line, behind a prefix in the markup of rich."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"{prefix}{escape(in_options(text))}")


def _spell(match: re.Match[str]) -> str:
    option, value = _spellings[match[1]], (match[2] or "").removeprefix("torch.")
    if re.fullmatch(r"""(['"])[^\s'"]+\1""", value):
        value = value[1:-1]
    return f"{option} {value}".rstrip()
