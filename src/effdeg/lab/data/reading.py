"""Errors that name the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Name the file, and what it should be, in whatever goes wrong while it is read."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}, {what}, is missing.")
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        if isinstance(error, ValueError | OSError) and str(file) in str(error):
            raise  # it says more
        raise ValueError(f"{file} cannot be read as {what}, it may be damaged or cut short: {error}") from error
