"""Where data sets are published, how large they are, and errors that name their files."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HUB = "on the Hugging Face hub"
Array = np.ndarray[Any, Any]
Arrays = tuple[Array, Array]  # inputs and labels as they were read, not yet checked
Scale = tuple[tuple[float, ...], tuple[float, ...]]  # the mean and the standard deviation of pixels


class Size(NamedTuple):
    train: int  # examples
    test: int
    shape: tuple[int, ...]  # of an example
    classes: int

    def __str__(self) -> str:
        shape = " × ".join(map(str, self.shape))
        return f"{self.train:,} training and {self.test:,} test examples of {shape} in {self.classes} classes"


class DataSet(NamedTuple):
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


def require_folder(name: str, folder: Path | None, hint: str = "", *, what: str = "data") -> Path:
    """Return the folder that holds a data set or a model; raise if none was given."""
    if folder is None:
        raise ValueError(f"{what}={name!r} needs the folder that holds it: give --data DIR or set EFFDEG_DATA.{hint}")
    return folder


def find_shards(folder: Path, name: str) -> list[Path]:
    """Find ``NAME-*.parquet``, and check that none is missing if names are like ``train-00000-of-00003.parquet``."""
    files = sorted(folder.glob(f"{name}-*.parquet"))
    parts = re.search(r"-of-0*(\d+)\.parquet$", files[0].name) if files else None
    expected = int(parts[1]) if parts else 1
    if len(files) < expected:
        raise FileNotFoundError(f"{folder} is incomplete: found {len(files)} of {expected} {name}-*.parquet.")
    return files


@contextmanager
def explain_errors(file: Path, what: str) -> Iterator[None]:
    """Add the name of a file, and what it should be, to any error while it is read."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{file} cannot be read as {what}: {error}") from error
