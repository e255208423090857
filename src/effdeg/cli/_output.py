"""Print and write results, notes and messages, with settings spelled as the options of the running command."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from effdeg._utils.files import check_target, write_figure
from effdeg._utils.tables import Rows, align_columns, fit_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VALUE = r"""'[^']*'|"[^"]*"|torch\.\w+|[-+]?\d[\d.]*(?:e[-+]?\d+)?|…|(?!lambda)[A-Za-z_]\w*"""

_spellings: dict[str, str] = {}
"""How the running command spells the settings of the library: ``batch_size`` is ``--batch-size``."""


def use_spellings(spellings: Mapping[str, str]) -> None:
    """Set how the running command spells its options, by their names in the library."""
    _spellings.clear()
    _spellings.update(spellings)


def spell_as_options(text: str) -> str:
    """Return a message with ``name=value`` written as ``--name value``, for the options that the command has.

    Names inside paths of files (``runs/seed=3/w.pt``) and values that only Python can express stay as they are.
    """
    if not _spellings:
        return text
    names = "|".join(map(re.escape, _spellings))
    return re.sub(rf"(?<![\w/.=-])(?:--)?({names})=({_VALUE})?(?![\w/=]|\.\w)", _spell, text)


def print_json(value: Any) -> None:
    print(json.dumps(value))


def print_table(console: Console, title: str, rows: Rows) -> None:
    """Print a table; what is too wide for the screen is broken or goes below, and nothing is cut off."""
    console.print(f"[italic]{escape(title)}[/]", soft_wrap=True, highlight=False)
    for part in fit_columns(rows, console.width):
        lines = align_columns(part)
        head = max(cell.count("\n") for cell in part[0]) + 1
        for number, line in enumerate(lines):
            console.print(escape(line), style="bold" if number < head else None, soft_wrap=True, highlight=False)
        console.print()


def print_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(f"[yellow]{escape(spell_as_options(note))}[/]")


def print_to_stderr(text: str, prefix: str = "") -> None:
    """Print a message on the error stream, in one line, after a prefix in the markup of rich."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"{prefix}{escape(spell_as_options(text))}")


def check_plot(file: Path | None) -> None:
    """Raise, before any work, if a figure cannot be drawn or written."""
    check_target("--plot", file, {".png", ".pdf", ".svg"})
    if file is not None:
        check_figures()


def check_figures() -> None:
    """Raise if matplotlib is missing, saying how to install it."""
    import effdeg.plots  # noqa: F401


def write(file: Path, writer: Callable[[Path], object], console: Console) -> None:
    """Write a result that has been printed already; an error names the file."""
    try:
        writer(file)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"{file} could not be written: {reason}. The result above is complete.") from error
    console.print(escape(f"written: {file}"))


def write_plot(file: Path | None, plot: Callable[[], "Figure"], console: Console) -> None:
    """Draw and write a figure, if a file is given for it."""
    if file is not None:
        figure = plot()
        write(file, lambda to: write_figure(figure, to), console)


def _spell(match: re.Match[str]) -> str:
    option, value = _spellings[match[1]], (match[2] or "").removeprefix("torch.")
    if re.fullmatch(r"""(['"])[^\s'"]+\1""", value):
        value = value[1:-1]
    return f"{option} {value}".rstrip()
