"""Checkpoints that survive a kill, a full disk and a damaged file: the two newest, each known by its hash."""

import hashlib
import io
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from effdeg.io import write_atomically

_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{16})\.pt")


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints in a folder, the newest last."""
    return sorted((file for file in folder.glob("checkpoint-*.pt") if _NAME.fullmatch(file.name)), key=_get_number)


def save_checkpoint(folder: Path, run: str, state: dict[str, Any]) -> None:
    """Write a checkpoint, then delete all but the two newest.

    Args:
        folder: Where to write it.
        run: The hash of the run's settings.
        state: Tensors and plain values.
    """
    # Serialized in memory first, because torch reports a full disk as something other than an OSError.
    stream = io.BytesIO()
    torch.save({"run": run, **state}, stream)
    content = stream.getvalue()
    files = list_checkpoints(folder)
    number = _get_number(files[-1]) + 1 if files else 1
    file = folder / f"checkpoint-{number:06d}-{_hash(content)}.pt"
    try:
        write_atomically(file, content)
    except OSError as error:
        raise OSError(
            f"the checkpoint {file} could not be written: {error.strerror or error}. The run continues from "
            f"{files[-1].name if files else 'its beginning'} when it is started again: make room first."
        ) from error
    for old in list_checkpoints(folder)[:-_KEPT]:
        old.unlink()


def load_checkpoint(folder: Path, run: str) -> dict[str, Any] | None:
    """Read the newest good checkpoint of a run on the CPU; damaged ones are reported, deleted and passed over."""
    for file in reversed(list_checkpoints(folder)):
        content = file.read_bytes()  # if this fails, the file may still be good another time
        try:
            if _hash(content) not in file.name:
                raise ValueError("its content does not have the hash in its name")
            state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            if state["run"] != run:
                raise ValueError("it belongs to a run with other settings")
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error).split(". ")[0]  # torch adds advice that does not apply here
            warnings.warn(f"the checkpoint {file} is passed over: {reason}.", RuntimeWarning, stacklevel=2)
            file.unlink()
        else:
            return state
    return None


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _get_number(file: Path) -> int:
    return int(file.name.split("-")[1])
