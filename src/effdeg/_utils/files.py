"""Files that are written completely or not at all, even if the program is killed while writing."""

import hashlib
import io
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTIAL = ".partial"


def write_atomically(file: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the complete new one is on the disk.

    Raises:
        OSError: If it cannot be written, as on a full disk or because there is no such folder; it names the file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from effdeg.io import write_atomically
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder, "notes.txt"), b"complete")
        ...     Path(folder, "notes.txt").read_text()
        'complete'
    """
    if not file.absolute().parent.is_dir():
        raise FileNotFoundError(f"{file} cannot be written: the folder {file.parent} does not exist.")
    # Another process may be writing the same file.
    partial = file.with_name(f"{file.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(file)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):  # which names no file, as on a full disk, or the partial one
            raise OSError(error.errno, error.strerror, str(file)) from error
        raise
    if os.name == "posix":  # make the new name survive a power cut; on Windows folders cannot be opened for that
        handle = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_target(option: str, file: Path | None, suffixes: set[str]) -> None:
    """Raise, before any work, if a result could not be written; ``option`` says where the file was named.

    Raises:
        ValueError: If the suffix is another, the folder does not exist, or nothing can be written there.

    Example:
        >>> from pathlib import Path
        >>> from effdeg.io import check_target
        >>> check_target("--out", Path("table.csv"), {".csv"})
    """
    if file is None:
        return
    if file.suffix not in suffixes:
        raise ValueError(f"{option} {file}: expected a file that ends in {' or '.join(sorted(suffixes))}.")
    if file.is_dir():
        raise ValueError(f"{option} {file}: this is a folder; expected the name of a file.")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{option} {file}: the folder {file.parent} does not exist.")
    check_writable(option, file.absolute().parent)


def check_writable(option: str, folder: Path) -> None:
    """Raise, before any work, if no file can be written into a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{option}: no file can be written into {folder}: {error.strerror}.") from error


def write_figure(figure: "Figure", file: Path) -> None:
    """Write a figure in the format that the suffix names, such as ``.png`` or ``.svg``, completely or not at all.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from effdeg.io import write_figure
        >>> from effdeg.plots import open_figure
        >>> with tempfile.TemporaryDirectory() as folder, open_figure("light", (2, 1)) as (_, figure):
        ...     write_figure(figure, Path(folder, "empty.svg"))
        ...     Path(folder, "empty.svg").exists()
        True
    """
    write_atomically(file, dump(lambda stream: figure.savefig(stream, format=file.suffix[1:])))


def write_json(file: Path, value: Any) -> None:
    """Write JSON for people and programs: indented, with null for NaN and infinities, completely or not at all.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from effdeg.io import write_json
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_json(Path(folder, "result.json"), {"accuracy": 0.9, "loss": float("nan")})
        ...     print(Path(folder, "result.json").read_text(), end="")
        {
         "accuracy": 0.9,
         "loss": null
        }
    """
    write_atomically(file, json.dumps(replace_nonfinite(value), indent=1, allow_nan=False).encode() + b"\n")


def dump(write: Callable[[io.BytesIO], object]) -> bytes:
    """Return what a function writes into a stream."""
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def checksum(first: Path, *others: Path) -> str:
    """Return the SHA-256 of a file; of several, that of their checksums one after another."""
    if others:
        return hashlib.sha256("".join(map(checksum, (first, *others))).encode()).hexdigest()
    with first.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def list_weights(path: Path) -> list[Path]:
    """Return the files of weights of a Hugging Face model folder, or the path itself if it is a file."""
    return sorted([*path.glob("*.safetensors"), *path.glob("*.bin")]) if path.is_dir() else [path]


def make_folder(folder: Path, what: str) -> None:
    """Make a folder; if that fails, the error names what should be kept there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise OSError(f"{what} cannot be kept in {folder}: {reason}.") from error


def to_json(value: Any) -> str:
    """Return JSON in one line, with null for NaN and infinities, and lists or numbers for tensors and arrays.

    Example:
        >>> from effdeg.io import to_json
        >>> to_json({"losses": (0.5, float("inf"))})
        '{"losses": [0.5, null]}'
    """
    return json.dumps(replace_nonfinite(value), allow_nan=False)


def replace_nonfinite(value: Any) -> Any:
    """Return numbers in dicts and lists with None instead of NaN and infinities; tuples and tensors become lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
