"""A cache of large files that take long to make, in ``EFFDEG_CACHE`` or ``~/.cache/effdeg``."""

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from effdeg.io import write_atomically

Notes = dict[str, np.ndarray[Any, Any]]
Buffer = bytes | memoryview


def identify_files(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return a part of a cache key that changes when one of the files is replaced."""
    return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def keep_bytes(
    key: object, what: str, make: Callable[[Notes], Iterator[Buffer]], *, size: int, verify: bool = False
) -> tuple[Path, Notes]:
    """Write bytes into the cache unless they are there; return their file and the arrays that belong to them.

    The file gets its name only when it is complete and on disk. If several processes need the same bytes, one makes
    them and the others wait.

    Args:
        key: What the bytes depend on, as a value for JSON.
        what: A name for the bytes, for errors.
        make: Yields the bytes in parts, and adds the arrays to the dictionary that it is given.
        size: A lower bound on the number of bytes.
        verify: Whether to check the checksum of an existing file, which reads all of it.
    """
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    folder = Path(os.environ.get("EFFDEG_CACHE") or "~/.cache/effdeg").expanduser() / "data"
    file = folder / f"{name}.bytes"
    if (notes := _read_notes(file, verify=verify)) is not None:
        return file, notes

    @contextmanager
    def explain() -> Iterator[None]:
        """Explain the errors of the cache, not those of ``make``."""
        try:
            yield
        except OSError as error:
            full = error.errno in (None, errno.ENOSPC)
            hint = f"It takes {size / 1e9:.3g} GB: free some space, or set" if full else "Set"
            text = f"{what} cannot be kept in {folder}: {error.strerror or error}."
            raise OSError(f"{text} {hint} EFFDEG_CACHE to another folder.") from error

    with ExitStack() as stack:
        with explain():
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(filelock.FileLock(folder / f"{name}.lock"))
        if (notes := _read_notes(file, verify=verify)) is not None:  # another process made it meanwhile
            return file, notes
        with explain():
            if (free := shutil.disk_usage(folder).free) < size:
                raise OSError(f"only {free / 1e9:.3g} GB are free")
        notes, digest, partial = Notes(), hashlib.sha256(), file.with_suffix(".partial")
        try:
            with explain():
                stream = stack.enter_context(partial.open("wb"))
            for part in make(notes):
                with explain():
                    stream.write(part)  # not through a memory map, where a full disk would kill the process
                digest.update(part)
            with explain():
                stream.flush()
                os.fsync(stream.fileno())
                content, facts = io.BytesIO(), {"__size__": stream.tell(), "__sha256__": digest.hexdigest()}
                np.savez(content, **facts, **notes)  # type: ignore[arg-type]
                partial.replace(file)
                write_atomically(file.with_suffix(".npz"), content.getvalue())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return file, notes


def _read_notes(file: Path, *, verify: bool) -> Notes | None:
    """Read the arrays of a file that is complete; None if it is missing or damaged, and has to be made again."""
    with suppress(Exception), file.with_suffix(".npz").open("rb") as stream:
        with np.load(stream, allow_pickle=False) as stored:
            notes = dict(stored)
        size, digest = int(notes.pop("__size__")), str(notes.pop("__sha256__"))
        with file.open("rb") as content:
            whole = file.stat().st_size == size
            if whole and (not verify or hashlib.file_digest(content, "sha256").hexdigest() == digest):
                return notes
    return None
