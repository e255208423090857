"""Runs on disk: one small file each, and a folder of checkpoints next to it from which a killed run continues.

``RUNS/<recipe>/<method>-<seed>….jsonl`` is all that a run gave. Its first line holds the settings and the environment,
every further line what an evaluation found, and the last line of a finished run its summary. The folder of the same name
holds what only this machine needs: checkpoints, weights and the log.
"""

import errno
import hashlib
import io
import json
import os
import platform
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor

import effdeg
from effdeg.io import to_json, write_atomically
from effdeg_lab.settings import Settings, format_setting

FORMAT = 2
REQUEUE = 75
"""The exit code of a run that was asked to stop (``EX_TEMPFAIL``): job schedulers can be told to requeue on it."""

_CHECKPOINTS_KEPT = 2
_CHECKPOINT = re.compile(r"checkpoint-(\d+)-([0-9a-f]{16})\.pt")
_LONGEST_NAME = 120


class BusyError(OSError):
    """Another process works on this run."""


class FinishedError(OSError):
    """This run is finished."""


class StoppedError(Exception):
    """The run was asked to stop; it has saved a checkpoint and continues from there when it is started again."""


@dataclass(frozen=True, eq=False)
class Run:
    """What is known of a run.

    Attributes:
        file: Its file.
        recipe: The recipe it was made for. Other recipes may use it, too.
        method: The method of that recipe.
        kind: The class of its settings.
        settings: Its settings, as JSON has them. Defaults of newer settings are filled in by :mod:`effdeg_lab.results`.
        environment: The device and the versions it ran with.
        metrics: What every evaluation found.
        summary: What came out; None if the run is not finished.
        failure: The error that ended it, if one did.
    """

    file: Path
    recipe: str
    method: str
    kind: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None = None
    failure: str | None = None

    @property
    def name(self) -> str:
        """Its name: recipe, method, seed, and how it differs from the recipe."""
        return f"{self.recipe}/{self.file.stem}"

    @property
    def finished(self) -> bool:
        """Whether it has a summary."""
        return self.summary is not None

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.settings.get("seed", 0))

    @property
    def machine(self) -> str:
        """The device it ran on, with the number of processes if there were several."""
        processes = int(self.environment.get("processes", 1))
        device = self.environment.get("device", "unknown device")
        shared = " (shared)" if self.environment.get("shared") else ""
        return f"{f'{processes} × ' if processes > 1 else ''}{device}{shared}"

    def value(self, key: str) -> float:
        """Return a number of the summary, by a dotted key such as ``effective_degree.value``; nan if there is none."""
        found: Any = self.summary
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return float("nan") if found is None else float(found)


def read_run(file: Path) -> Run:
    """Read a run; a last line that a kill has torn off is left out."""
    try:
        header, *entries = [json.loads(line) for line in _whole_lines(file)]
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']!r}; expected {FORMAT}")
        known = {key: header[key] for key in ("recipe", "method", "kind", "settings", "environment")}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is damaged: {error}.") from error
    ends = {key: entry[key] for entry in entries for key in ("summary", "failure") if entry.keys() == {key}}
    metrics = [entry for entry in entries if entry.keys() not in ({"summary"}, {"failure"})]
    return Run(file, **known, metrics=metrics, **ends)


class RunFolder:
    """A folder of runs, which several processes and machines may share."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def read(self) -> list[Run]:
        """Read all runs, finished or not, by name; damaged ones are reported and left out."""
        found = []
        for file in sorted(self.folder.glob("*/*.jsonl")):
            try:
                found.append(read_run(file))
            except (OSError, ValueError) as error:
                warnings.warn(f"a run is left out: {error}", RuntimeWarning, stacklevel=2)
        return found

    def find(self, settings: Settings, runs: list[Run] | None = None) -> Run | None:
        """Find the run with these settings, whichever recipe it was made for; the finished one if there are several."""
        wanted, kind = settings.to_dict(), type(settings)
        found = [
            run
            for run in (self.read() if runs is None else runs)
            if run.kind == kind.__name__ and kind.complete(run.settings) == wanted
        ]
        return max(found, key=lambda run: run.finished, default=None)

    def name_file(self, recipe: str, method: str, base: Settings, settings: Settings) -> Path:
        """Name the file of a new run by its method, its seed, and how it differs from the method's own settings.

        Args:
            recipe: The name of the recipe.
            method: The name of the method.
            base: The method's own settings.
            settings: The run's settings.

        Returns:
            The file. Where another run has that name already, or it would be too long, the hash makes it unique.
        """
        own, given = base.to_dict(), settings.to_dict()
        changed = [f"{key}={format_setting(given[key])}" for key in given if key != "seed" and given[key] != own[key]]
        name = re.sub(r"[^\w.,=+@-]", "_", "-".join([method, str(settings.seed), *changed]))
        if len(name) > _LONGEST_NAME:
            name = f"{name[:_LONGEST_NAME]}-{settings.hash[:8]}"
        file = self.folder / re.sub(r"[^\w.-]", "_", recipe) / f"{name}.jsonl"
        if file.exists():
            with suppress(ValueError):
                if type(settings).complete(read_run(file).settings) == given:
                    return file
            return file.with_name(f"{name}-{settings.hash[:8]}.jsonl")
        return file

    def lock(self, settings: Settings) -> filelock.FileLock:
        """Return the lock of the run with these settings, whatever it is called."""
        folder = self.folder / ".locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"runs cannot be kept in {self.folder}: {error.strerror or error}.") from error
        return filelock.FileLock(folder / f"{settings.hash}.lock", timeout=0)


@dataclass(eq=False)
class Job:
    """A run being carried out: what it may use, and where its results go.

    A recipe's ``run`` function calls :meth:`start` once, then :meth:`log`, :meth:`save` and :meth:`stop_if_asked` as
    often as it likes, and :meth:`finish` at the end.

    Attributes:
        settings: The settings of the run.
        recipe: The recipe's name.
        method: The method's name.
        base: The method's own settings, from which the run's name tells the differences.
        runs: The folder that the run is kept in.
        device: Where to compute.
        data: The folder that holds the data sets; None if none was given.
        progress: Whether to show progress.
        asked_to_stop: Returns whether the run should save and stop.
    """

    settings: Settings
    recipe: str
    method: str
    base: Settings
    runs: RunFolder
    device: torch.device
    data: Path | None = None
    progress: bool = False
    asked_to_stop: Callable[[], bool] = lambda: False
    file: Path = field(init=False)
    _lock: filelock.FileLock | None = field(default=None, init=False)
    _lines: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        known = self.runs.find(self.settings)
        self.file = known.file if known else self.runs.name_file(self.recipe, self.method, self.base, self.settings)

    @property
    def folder(self) -> Path:
        """The folder of its checkpoints, its weights and its log."""
        return self.file.with_suffix("")

    def start(self, **environment: Any) -> dict[str, Any] | None:
        """Start the run, or continue it; until it ends, no other process can.

        Args:
            environment: What to record besides the device and the versions.

        Returns:
            The state of the newest good checkpoint; None if there is none.
        """
        self._lock = self.runs.lock(self.settings)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            self._lock = None
            raise BusyError(f"another process works on the run {self.file}: wait for it, or end it.") from None
        try:
            return self._restore(environment)
        except BaseException:
            self.close()
            raise

    def log(self, entry: Mapping[str, Any]) -> None:
        """Add what an evaluation found; NaN and infinities are kept as null."""
        _append(self.file, entry)
        self._lines += 1

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint: all that the run needs to continue from here, as tensors and plain values."""
        stream = io.BytesIO()
        torch.save({"lines": self._lines, "state": state}, stream)
        content = stream.getvalue()
        files = _list_checkpoints(self.folder)
        number = _number(files[-1]) + 1 if files else 1
        file = self.folder / f"checkpoint-{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
        try:
            write_atomically(file, content)
        except OSError as error:
            raise OSError(
                f"the checkpoint {file} could not be written: {error.strerror or error}. The run continues from "
                f"{files[-1].name if files else 'its beginning'} when it is started again: make room first."
            ) from error
        for old in _list_checkpoints(self.folder)[:-_CHECKPOINTS_KEPT]:
            old.unlink()

    def stop_if_asked(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save a checkpoint and raise :class:`StoppedError` if the run was asked to stop, as SIGTERM does."""
        if self.asked_to_stop():
            self.save(state())
            raise StoppedError

    def finish(self, summary: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None) -> None:
        """End the run: once the summary is written, it is finished.

        Args:
            summary: What came out.
            weights: The trained weights, for ``weights.pt``.
        """
        if weights is not None:
            stream = io.BytesIO()
            torch.save(dict(weights), stream)
            write_atomically(self.folder / "weights.pt", stream.getvalue())
        _append(self.file, {"summary": summary})
        for file in _list_checkpoints(self.folder):
            file.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
        self.close()

    def fail(self, text: str) -> None:
        """Record the error that ended the run; the next attempt continues from the last checkpoint."""
        if not self.file.exists():
            self._write([])
        _append(self.file, {"failure": text})
        self.close()

    def close(self) -> None:
        """Let other processes work on the run, however it ended."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read(self) -> Run | None:
        """Read what is known of the run so far; None if there is nothing."""
        try:
            return read_run(self.file)
        except (OSError, ValueError):
            return None

    def _restore(self, environment: Mapping[str, Any]) -> dict[str, Any] | None:
        # Only under the lock is it certain that no other process has finished the run, under another name perhaps.
        known = self.runs.find(self.settings)
        if known is not None:
            self.file = known.file
            if known.finished:
                raise FinishedError(f"the run {self.file} is finished; to run it again, delete that file.")
        self.folder.mkdir(parents=True, exist_ok=True)
        for left_over in self.folder.glob("*.partial"):
            left_over.unlink()
        checkpoint = self._load_checkpoint() or {"lines": 0, "state": None}
        metrics = known.metrics[: checkpoint["lines"]] if known else []
        if len(metrics) < checkpoint["lines"]:
            warnings.warn(
                f"{self.file} has lost {checkpoint['lines'] - len(metrics)} of the {checkpoint['lines']} evaluations "
                "that it had at the last checkpoint.",
                RuntimeWarning,
                stacklevel=3,
            )
        self._write(metrics, environment)
        state: dict[str, Any] | None = checkpoint["state"]
        return state

    def _write(self, metrics: list[dict[str, Any]], environment: Mapping[str, Any] | None = None) -> None:
        header = {
            "format": FORMAT,
            "recipe": self.recipe,
            "method": self.method,
            "kind": type(self.settings).__name__,
            "settings": self.settings.to_dict(),
            "environment": describe_environment(self.device) | dict(environment or {}),
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, "".join(f"{to_json(line)}\n" for line in (header, *metrics)).encode())
        self._lines = len(metrics)

    def _load_checkpoint(self) -> dict[str, Any] | None:
        """Read the newest good checkpoint on the CPU; damaged ones are reported, deleted and passed over."""
        for file in reversed(_list_checkpoints(self.folder)):
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest()[:16] in file.name:
                checkpoint: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                return checkpoint
            warnings.warn(f"the checkpoint {file} is damaged and is passed over.", RuntimeWarning, stacklevel=4)
            file.unlink()
        return None


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Describe the device and the versions, to be kept with the results."""
    size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _describe_processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "effdeg": effdeg.__version__,
        "processes": size,
    }


def _describe_processor() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text(errors="replace").splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"CPU ({names[0] if names else platform.machine()}, {torch.get_num_threads()} threads)"


def _whole_lines(file: Path) -> list[bytes]:
    return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _append(file: Path, entry: Mapping[str, Any]) -> None:
    """Add a line, completely or not at all."""
    line = to_json(entry).encode() + b"\n"
    # Unbuffered, so that what a full disk did not take is not written after all when the file is closed.
    with file.open("ab", buffering=0) as stream:
        start = stream.tell()
        try:
            if stream.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(stream.fileno())
        except OSError:
            stream.truncate(start)  # half a line would spoil the next one
            raise


def _list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints, the newest last."""
    return sorted((file for file in folder.glob("checkpoint-*.pt") if _CHECKPOINT.fullmatch(file.name)), key=_number)


def _number(file: Path) -> int:
    return int(file.name.split("-")[1])
