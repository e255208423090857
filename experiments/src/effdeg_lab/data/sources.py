"""Errors that say where missing files are published."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HUB = "on the Hugging Face hub"


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
