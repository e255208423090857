"""Checkpoints that survive a kill, a full disk and a damaged file: the two newest, each known by its hash."""

import hashlib
import io
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from effdeg._utils.files import dump, write_atomically

KEPT = 2
_NAME = re.compile(r"checkpoint-(\d+)-([0-9a-f]{16})\.pt")


class Checkpoints:
    """The checkpoints in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._damaged: set[Path] = set()

    def save(self, state: dict[str, Any]) -> Path:
        """Write a checkpoint, then remove all but the two newest good ones."""
        # Serialized in memory first, because torch reports a full disk as something other than an OSError.
        content = dump(partial(torch.save, state))
        files = self.files()
        file = self._folder / f"checkpoint-{_number(files[-1]) + 1 if files else 1:06d}-{_hash(content)}.pt"
        try:
            write_atomically(file, content)
        except OSError as error:
            good = [each for each in self.files() if each not in self._damaged]
            survives = f"The last good one survives, {good[-1]}" if good else "There is no earlier one"
            raise OSError(
                f"the checkpoint {file} could not be written: {error.strerror or error}. {survives}: make room, start "
                f"the run again, and it goes on from {'there' if good else 'the beginning'}."
            ) from error
        self._prune()
        return file

    def load(self) -> dict[str, Any] | None:
        """Read the newest good checkpoint, on the CPU; damaged ones are reported and passed over."""
        files = self.files()
        for index, file in reversed(list(enumerate(files))):
            try:
                return _read(file)
            except (OSError, MemoryError):
                raise  # it may be good, and be read another time
            except Exception as error:
                self._damaged.add(file)
                reason = str(error).split(". ")[0]  # torch adds advice that does not apply here
                instead = f"{files[index - 1].name} is used instead" if index else "the run starts again"
                warnings.warn(f"the checkpoint {file} is damaged ({reason}); {instead}.", RuntimeWarning, stacklevel=2)
        return None

    def files(self) -> list[Path]:
        """List the checkpoints, the newest last."""
        return sorted((file for file in self._folder.iterdir() if _NAME.fullmatch(file.name)), key=_number)

    def delete(self) -> None:
        """Delete all checkpoints."""
        for file in self.files():
            file.unlink()

    def _prune(self) -> None:
        good = [file for file in self.files() if file not in self._damaged]
        for file in self.files():
            if file not in good[-KEPT:]:
                file.unlink()


def _read(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    if f"-{_hash(content)}.pt" not in file.name:
        raise ValueError("its content does not have the hash in its name")
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _number(file: Path) -> int:
    return int(file.name.split("-")[1])
