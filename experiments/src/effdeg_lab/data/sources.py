"""Where data sets are published, how large they are, and errors that say so."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HUB = "on the Hugging Face hub"


class Size(NamedTuple):
    """The size of a published data set."""

    train: int  # examples
    test: int
    shape: tuple[int, ...]  # of an example
    classes: int

    def __str__(self) -> str:
        shape = " × ".join(map(str, self.shape))
        return f"{self.train:,} training and {self.test:,} test examples of {shape} in {self.classes} classes"


class DataSet(NamedTuple):
    """A published data set."""

    # Checks that its files are in the data folder. Images of many sizes are decoded to this many pixels a side.
    find: Callable[[Path, int | None], Callable[[], Any]]
    source: str  # where it is published
    size: Size | None = None  # None if it is not checked


@contextmanager
def explain_missing(name: str, folder: Path | None, source: str = "") -> Iterator[None]:
    """Add to an error that files were not found, or that no folder was given, where they are published, if known."""
    try:
        yield
    except (FileNotFoundError, ValueError) as error:
        if folder is None or isinstance(error, FileNotFoundError):
            error.missing = name  # type: ignore[union-attr]  # for effdeg-lab list
            if source:
                error.add_note(f"{name} is published: {source}. Nothing is downloaded for you; DIR is --data.")
            error.add_note("To try the recipe without these files, on tiny made-up ones: --smoke")
        raise


def require_folder(name: str, folder: Path | None, hint: str = "") -> Path:
    """Return the folder that holds a data set; raise if none was given."""
    if folder is None:
        raise ValueError(f"data={name!r} needs the folder that holds it: give --data DIR or set EFFDEG_DATA.{hint}")
    return folder
