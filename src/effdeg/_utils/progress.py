"""A progress bar that costs nothing when it is off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[..., object]
"""Takes how much is done (None: as much as before) and, if it changes, a note that is shown next to the bar."""


def ignore(done: float | None = None, note: str | None = None) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(description: str, total: int, *, enabled: bool) -> Iterator[Update]:
    """Show progress on the error stream while the block runs, if that is a terminal or a notebook."""
    if not enabled:
        yield ignore
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    before, after = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = [before, BarColumn(), MofNCompleteColumn(), after, TimeRemainingColumn()]
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield ignore
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(escape(description), total=total, note="")

        def update(done: float | None = None, note: str | None = None) -> None:
            if note is not None:
                progress.update(task, note=escape(note))
            progress.update(task, completed=done)

        yield update
