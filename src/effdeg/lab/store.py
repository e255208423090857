"""Where runs are kept: a folder each, named by the hash of its settings, from which a killed run goes on."""

import errno
import os
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from effdeg._utils.files import PARTIAL, dump, make_folder, to_json, write_atomically, write_json
from effdeg.lab.checkpoints import Checkpoints
from effdeg.lab.locks import Lock
from effdeg.lab.records import FORMAT, Record, read_json, read_record, read_settings, whole_lines
from effdeg.lab.settings import RunSettings, digest, identity

__all__ = ["Record", "RefusedError", "Run", "Store"]


class RefusedError(OSError):
    """A run that must not be worked on, or not now; its folder is left as it is."""


class Store:
    """A folder of runs."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def run(self, settings: RunSettings) -> "Run":
        """Return the run with these settings, whether or not it was begun yet; nothing is written."""
        return Run(self.folder / digest(settings), settings)

    def records(self) -> list[Record]:
        """Read all runs, finished or not, by the names of their folders; damaged ones are reported and left out."""
        found = []
        for file in sorted(self.folder.glob("*/settings.json")):
            try:
                found.append(read_record(file.parent))
            except (OSError, ValueError) as error:
                warnings.warn(f"the run {file.parent} is left out: {error}", RuntimeWarning, stacklevel=2)
        return found


class Run:
    """One run: its settings, and a folder that holds its results and what it needs to go on after a kill."""

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        self.folder = folder
        self.settings = settings
        self._checkpoints = Checkpoints(folder)
        self._lock: Lock | None = None
        self._lines = 0

    @property
    def finished(self) -> bool:
        """Whether its summary lies in its folder."""
        try:
            self.check_settings()
            read_json(self.folder / "summary.json")
        except (OSError, ValueError):
            return False
        return True

    def record(self) -> Record | None:
        """Read what is known of it so far; None if it was not begun or cannot be read."""
        try:
            return read_record(self.folder)
        except (OSError, ValueError):
            return None

    def begin(self, environment: Mapping[str, Any]) -> dict[str, Any] | None:
        """Begin the run or go on with it; until it ends, no other process can.

        Args:
            environment: The device and the versions it runs with.

        Returns:
            The state of the newest good checkpoint; None if there is none.
        """
        make_folder(self.folder)
        self._take_lock()
        try:
            return self._restore(environment)
        except BaseException:
            self.close()
            raise

    def log(self, entry: Mapping[str, Any]) -> None:
        """Add what an evaluation found; NaN and infinities are kept as null."""
        line = to_json(entry).encode() + b"\n"
        # Unbuffered, so that what a full disk did not take is not written after all when the file is closed.
        with (self.folder / "metrics.jsonl").open("ab", buffering=0) as stream:
            start = stream.tell()
            try:
                if stream.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(start)  # half a line would spoil the next one
                raise
        self._lines += 1

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint: all the run needs to go on from here (tensors and plain values)."""
        self._checkpoints.save({"lines": self._lines, "state": state})

    def finish(self, summary: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None) -> None:
        """End the run.

        Args:
            summary: What came out; once it is written, the run is finished.
            weights: The trained weights, for ``weights.pt``.
        """
        if weights is not None:
            write_atomically(self.folder / "weights.pt", dump(partial(torch.save, dict(weights))))
        write_json(self.folder / "summary.json", summary)
        (self.folder / "failure.txt").unlink(missing_ok=True)
        self._checkpoints.delete()
        if self._lock is not None:
            self._lock.delete()
        self.close()

    def fail(self, text: str) -> None:
        """Keep the error that ended the run; the next attempt goes on from the last checkpoint."""
        make_folder(self.folder)
        if not (self.folder / "settings.json").exists():
            self._write_settings()
        write_atomically(self.folder / "failure.txt", text.encode())
        self.close()

    def close(self) -> None:
        """Let others go on with the run, however it ended here; done again, it does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _restore(self, environment: Mapping[str, Any]) -> dict[str, Any] | None:
        self.check_settings()
        if self.finished:
            raise RefusedError(f"the run {self.folder} is finished; to run it again, delete that folder.")
        for left_over in self.folder.glob(f"*{PARTIAL}"):
            left_over.unlink()
        self._write_settings()
        write_json(self.folder / "environment.json", environment)
        (self.folder / "failure.txt").unlink(missing_ok=True)
        checkpoint = self._checkpoints.load() or {"lines": 0, "state": None}
        self._cut_metrics(checkpoint["lines"])
        state: dict[str, Any] | None = checkpoint["state"]
        return state

    def _take_lock(self) -> None:
        self.close()
        self._lock = Lock(self.folder / "lock")
        if self._lock.taken:
            self.close()
            raise RefusedError(f"this process or another works on the run {self.folder}: wait for it, or end it.")

    def check_settings(self) -> None:
        """Raise if the folder is not this run's, whatever it is called."""
        file = self.folder / "settings.json"
        if not file.exists():
            return
        try:
            written = read_settings(file)
        except ValueError as error:
            raise RefusedError(f"{error} Move or delete the folder {self.folder}.") from error
        if written != (type(self.settings).__name__, identity(self.settings)):
            raise RefusedError(
                f"{file} does not hold the settings that its folder's name stands for: it was edited, or the folder "
                f"renamed. Move or delete the folder {self.folder}."
            )

    def _write_settings(self) -> None:
        described = {"format": FORMAT, "kind": type(self.settings).__name__, "settings": identity(self.settings)}
        write_json(self.folder / "settings.json", described)

    def _cut_metrics(self, lines: int) -> None:
        """Go back to the lines that there were at the checkpoint; the run writes the later ones again."""
        file = self.folder / "metrics.jsonl"
        kept = whole_lines(file)[:lines]
        if len(kept) < lines:
            warnings.warn(
                f"{file} has lost {lines - len(kept)} of the {lines} lines it had at the last checkpoint.",
                RuntimeWarning,
                stacklevel=3,
            )
        write_atomically(file, b"".join(kept))
        self._lines = len(kept)
