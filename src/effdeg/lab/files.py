"""Files that are written whole or not at all, whatever ends the program meanwhile."""

import json
import math
import os
from pathlib import Path
from typing import Any

PARTIAL = ".partial"


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that at every moment either the former one or the whole new one lies on the disk."""
    # Another process may be writing the same file.
    partial = file.with_name(f"{file.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def make_folder(folder: Path) -> None:
    """Make a folder for runs, or say why they cannot be kept there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise OSError(f"runs cannot be kept in {folder}: {reason}.") from error


def to_json(value: Any) -> str:
    """Write JSON in one line; numbers that it does not know, NaN and infinities, become null."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sync_folder(folder: Path) -> None:
    """Have the new name survive a power cut, where folders can be opened for that (not on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
