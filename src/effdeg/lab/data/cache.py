"""Decoded images, kept between runs: in ``EFFDEG_CACHE``, or else in ``~/.cache/effdeg``."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from effdeg._utils.files import dump, write_atomically
from effdeg.lab.data.labelled import RawSplit

_VERSION = 1
"""Goes up when the same files are decoded in another way."""


def cached(files: Sequence[Path], build: Callable[[], tuple[RawSplit, RawSplit]]) -> tuple[RawSplit, RawSplit]:
    """Return what was built from these files before, or build and keep it.

    Args:
        files: The files; by their names, sizes and times of change it is known whether they are the same.
        build: Reads them.

    Returns:
        The training and the test examples.
    """
    kept = _file(files)
    if kept is not None:
        # Whatever is wrong with it, from a missing file to a damaged one: it can be built again.
        with suppress(Exception), kept.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            train, test = (RawSplit(stored[f"{name}_inputs"], stored[f"{name}_labels"]) for name in ("train", "test"))
            return train, test
    train, test = build()
    if kept is not None:
        with suppress(OSError):
            _write(kept, train, test)
    return train, test


def _file(files: Sequence[Path]) -> Path | None:
    """Name the file in which these are kept; None where there is no place for it."""
    found = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = hashlib.sha256(json.dumps([_VERSION, found]).encode()).hexdigest()[:32]
    try:
        folder = Path(os.environ.get("EFFDEG_CACHE") or Path.home() / ".cache" / "effdeg")
    except RuntimeError:  # there is no home
        return None
    return folder / "data" / f"{name}.npz"


def _write(file: Path, train: RawSplit, test: RawSplit) -> None:
    named = {"train": train, "test": test}.items()
    arrays = {f"{name}_{part}": getattr(split, part) for name, split in named for part in ("inputs", "labels")}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, dump(lambda stream: np.savez(stream, **arrays)))
