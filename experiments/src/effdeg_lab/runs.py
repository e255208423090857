"""Runs on disk: one small file each, and a folder of checkpoints next to it from which a killed run continues.

``RUNS/<recipe>/<method>-<seed>….jsonl`` is all that a run gave. Its first line holds the settings and the environment,
every further line what an evaluation found, and the last line of a finished run its summary. The folder of the same
name holds what only this machine needs: checkpoints, weights and the log.
"""

import errno
import io
import itertools
import json
import os
import platform
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor

import effdeg
from effdeg.io import to_json, write_atomically
from effdeg_lab.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from effdeg_lab.settings import Settings, format_setting

FORMAT = 2
REQUEUE = 75
"""The exit code of a run that was asked to stop (``EX_TEMPFAIL``): job schedulers can be told to requeue on it."""

_ENDS = ({"summary"}, {"failure"}, {"stopped"})
"""The keys of the lines that end a run or an attempt; all other lines are evaluations."""
_LONGEST_NAME = 120
_TAIL = 8192
"""More bytes than most last lines have."""


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
        failure: The error that ended its last attempt, if one did.
        stopped: Whether its last attempt was asked to stop.
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
    stopped: bool = False

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


def read_run(file: Path, *, brief: bool = False) -> Run:
    """Read a run; a last line that a kill has torn off is left out.

    Args:
        file: Its file.
        brief: Read only its beginning and its end: of the evaluations, the last ones.
    """
    try:
        header, *entries = [json.loads(line) for line in (_read_ends(file) if brief else _read_lines(file))]
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']!r}; expected {FORMAT}")
        known = {key: header[key] for key in ("recipe", "method", "kind", "settings", "environment")}
        metrics = [entry for entry in entries if entry.keys() not in _ENDS]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error}. Move or delete it.") from error
    # A failure or a stop that was not the end is history.
    ends = [entry for entry in entries if entry.keys() == {"summary"}] or entries[-1:]
    end = ends[-1] if ends and ends[-1].keys() in _ENDS else {}
    return Run(file, **known, metrics=metrics, **end)


class RunFolder:
    """A folder of runs, which several processes and machines may share."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._headers: dict[Path, tuple[tuple[int, int], dict[str, Any] | None]] = {}

    def read(self, *, brief: bool = False) -> list[Run]:
        """Read all runs, finished or not, by name; damaged ones are reported and left out.

        Args:
            brief: Read only the beginning and the end of each, as :func:`read_run` does.
        """
        found = []
        for file in self._list_files():
            try:
                found.append(read_run(file, brief=brief))
            except (OSError, ValueError) as error:
                warnings.warn(f"a run is left out: {error}", RuntimeWarning, stacklevel=2)
        return found

    def find(self, settings: Settings) -> Run | None:
        """Find the run with these settings, whichever recipe it was made for; the finished one if there are several."""
        (found,) = self.find_all([settings])
        return None if found is None else read_run(found.file)

    def find_all(self, wanted: Sequence[Settings]) -> list[Run | None]:
        """Find the runs with these settings, each read briefly, in one pass over the folder."""
        kinds = {type(settings).__name__: type(settings) for settings in wanted}
        files: dict[str, list[Path]] = {}
        for file in self._list_files():
            header = self._read_header(file)
            if header is not None and header["kind"] in kinds:
                complete = kinds[header["kind"]].complete(header["settings"])
                files.setdefault(_identify(header["kind"], complete), []).append(file)
        found = []
        for settings in wanted:
            runs = []
            for file in files.get(_identify(type(settings).__name__, settings.to_dict()), []):
                with suppress(OSError, ValueError):  # a damaged run is none; reading all of them reports it
                    runs.append(read_run(file, brief=True))
            found.append(max(runs, key=lambda run: run.finished, default=None))
        return found

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
        # In ASCII, so that 120 characters are 120 bytes; no character that Windows forbids.
        name = re.sub(r"[^\w.,=+@-]", "_", "-".join([method, str(settings.seed), *changed]), flags=re.ASCII).rstrip(".")
        unique = f"{name[:_LONGEST_NAME]}-{settings.hash[:8]}"
        names = itertools.chain([name, unique], (f"{unique}-{number}" for number in itertools.count(2)))
        folder = self.folder / re.sub(r"[^\w.-]", "_", recipe, flags=re.ASCII)
        files = (folder / f"{each}.jsonl" for each in names if each != name or len(name) <= _LONGEST_NAME)
        return next(file for file in files if not file.exists())

    def lock(self, settings: Settings) -> filelock.FileLock:
        """Return the lock of the run with these settings, whatever it is called; it ends with its process."""
        return filelock.FileLock(self.make() / f"{settings.hash}.lock", timeout=0, thread_local=False)

    def make(self) -> Path:
        """Make the folder and the one of its locks, and return the latter."""
        locks = self.folder / ".locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _explain(self.folder, error) from error
        return locks

    def _list_files(self) -> list[Path]:
        return sorted(self.folder.glob("*/*.jsonl"))

    def _read_header(self, file: Path) -> dict[str, Any] | None:
        """Read the first line of a file, unless it is known already; None if it is damaged or gone."""
        try:
            status = file.stat()
            stamp = status.st_mtime_ns, status.st_size
            if file in self._headers and self._headers[file][0] == stamp:
                return self._headers[file][1]
            with file.open("rb") as stream:
                header = json.loads(stream.readline())
            good = header["format"] == FORMAT and isinstance(header["kind"], str)
            self._headers[file] = stamp, header if good and isinstance(header["settings"], dict) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return self._headers[file][1]


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
        self._find()

    @property
    def folder(self) -> Path:
        """The folder of its checkpoints, its weights and its log."""
        return self.file.with_suffix("")

    def claim(self) -> None:
        """Keep other processes from working on the run until it is closed.

        Raises:
            BusyError: If another process works on it.
            FinishedError: If it is finished.
        """
        if self._lock is not None:
            return
        lock = self.runs.lock(self.settings)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise BusyError(f"another process works on the run {self.file}: wait for it, or end it.") from None
        except OSError as error:
            raise _explain(self.runs.folder, error) from error
        self._lock = lock
        # Only under the lock is it certain that no other process has finished the run, under another name perhaps.
        if self._find():
            self.close()
            raise FinishedError(f"the run {self.file} is finished; to run it again, delete that file.")

    def start(self, **environment: Any) -> dict[str, Any] | None:
        """Start the run, or continue it; until it ends, no other process can.

        Args:
            environment: What to record besides the device and the versions.

        Returns:
            The state of the newest good checkpoint; None if there is none.
        """
        self.claim()
        try:
            return self._restore(describe_environment(self.device) | environment)
        except BaseException:
            self.close()
            raise

    def log(self, entry: Mapping[str, Any]) -> None:
        """Add what an evaluation found; NaN and infinities are kept as null."""
        _append(self.file, entry)
        self._lines += 1

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint: all that the run needs to continue from here, as tensors and plain values."""
        save_checkpoint(self.folder, self.settings.hash, {"lines": self._lines, "state": state})
        with suppress(OSError):
            os.utime(self.file)  # shows others that the run is alive

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
        with suppress(OSError):  # the run is finished, whether or not its traces can be removed
            for file in list_checkpoints(self.folder):
                file.unlink()
            if self._lock is not None:  # whoever waits for this lock finds the run finished
                Path(self._lock.lock_file).unlink(missing_ok=True)
            self.folder.rmdir()  # if it is empty
        self.close()

    def fail(self, text: str) -> None:
        """Record the error that ended the run; the next attempt continues from the last checkpoint.

        Nothing is recorded if the run is finished, or if another process works on it by now.
        """
        try:
            self.claim()
        except (BusyError, FinishedError):
            return
        try:
            if self.file.exists():
                write_atomically(self.file, b"".join(_read_lines(self.file)))  # without a line that a kill has torn off
            else:
                self._write([], {})
            _append(self.file, {"failure": text})
        finally:
            self.close()

    def record_stop(self) -> None:
        """Record that the run was asked to stop, so that nobody takes it for running."""
        if self._lock is not None and self.file.exists():
            _append(self.file, {"stopped": True})

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

    def _find(self) -> bool:
        """Find the file of the run, or name it; return whether the run is finished."""
        (known,) = self.runs.find_all([self.settings])
        if known is None:
            self.file = self.runs.name_file(self.recipe, self.method, self.base, self.settings)
            return False
        self.file = known.file
        return known.finished

    def _restore(self, environment: Mapping[str, Any]) -> dict[str, Any] | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        left_over = [file for file in self.file.parent.glob("*.partial") if file.name.startswith(f"{self.file.name}.")]
        for file in [*left_over, *self.folder.glob("*.partial")]:
            file.unlink(missing_ok=True)
        known = read_run(self.file).metrics if self.file.exists() else []
        checkpoint = load_checkpoint(self.folder, self.settings.hash) or {"lines": 0, "state": None}
        lines = checkpoint["lines"]
        if len(known) < lines:
            warnings.warn(
                f"{self.file} has lost {lines - len(known)} of the {lines} evaluations that it had at the last "
                "checkpoint.",
                RuntimeWarning,
                stacklevel=3,
            )
        self._write(known[:lines], environment)
        state: dict[str, Any] | None = checkpoint["state"]
        return state

    def _write(self, metrics: list[dict[str, Any]], environment: Mapping[str, Any]) -> None:
        header = {
            "format": FORMAT,
            "recipe": self.recipe,
            "method": self.method,
            "kind": type(self.settings).__name__,
            "settings": self.settings.to_dict(),
            "environment": environment,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, "".join(f"{to_json(line)}\n" for line in (header, *metrics)).encode())
        self._lines = len(metrics)


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


def _explain(folder: Path, error: OSError) -> OSError:
    reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
    return OSError(f"runs cannot be kept in {folder}: {reason}.")


def _identify(kind: str, settings: Mapping[str, Any]) -> str:
    return f"{kind} {json.dumps(settings, sort_keys=True)}"


def _read_lines(file: Path) -> list[bytes]:
    """Read the lines of a file, except for a last one that a kill has torn off."""
    return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _read_ends(file: Path) -> list[bytes]:
    """Read the first line of a file and its last ones."""
    with file.open("rb") as stream:
        first = stream.readline()
        start = stream.tell()
        tail = max(start, stream.seek(0, os.SEEK_END) - _TAIL)
        stream.seek(tail)
        content = stream.read()
    lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    if tail > start:
        lines = lines[1:]  # it begins somewhere within a line
        if not lines:
            return _read_lines(file)
    return [line for line in (first, *lines) if line.endswith(b"\n")]


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
