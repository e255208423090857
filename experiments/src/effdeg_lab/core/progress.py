"""A progress bar that costs nothing when it is off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(title: str, total: int, *, enabled: bool) -> Iterator[Callable[..., object]]:
    """Show progress on the error stream, if it is a terminal: give what is done, and a note to show next to the bar."""
    console = Console(stderr=True)
    if not (enabled and (console.is_terminal or console.is_jupyter)):
        yield lambda *_: None
        return
    before, after = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = [before, BarColumn(), MofNCompleteColumn(), after, TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(escape(title), total=total, note="")
        yield lambda done, note="": progress.update(task, completed=done, note=escape(note))
