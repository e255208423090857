"""A progress bar that costs nothing when it is off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Update = Callable[..., object]
"""Takes how much is done and, if there is something to say, a note."""


@contextmanager
def progress_bar(description: str, total: int, *, enabled: bool) -> Iterator[Update]:
    """Show progress on the error stream while the block runs."""
    if not enabled:
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    ]
    console = Console(stderr=True)
    # On a terminal the bar goes when the work is done; in a log its last state stays.
    with Progress(*columns, console=console, transient=console.is_terminal) as progress:
        task = progress.add_task(description, total=total, note="")
        yield lambda done, note="": progress.update(task, completed=done, note=note)
