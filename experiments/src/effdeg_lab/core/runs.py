"""Runs on disk: ``RUNS/<recipe>/<method>-<seed>….jsonl`` each, and a folder of checkpoints to continue from.

The first line of a run's file has the settings and the environment. Every further line has one key: ``metrics`` for an
evaluation, and on the last line ``summary`` if the run is finished, ``failure`` or ``stopped``. The folder of the same
name holds what only this machine needs: checkpoints, weights and the log.
"""

import errno
import hashlib
import io
import json
import os
import pickle
import platform
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor

import effdeg
from effdeg.io import to_json, write_atomically
from effdeg_lab.core.settings import Settings, format_setting

FORMAT = 3
_ENDS = ({"summary"}, {"failure"}, {"stopped"})  # the keys of last lines
_LONGEST_VALUE, _LONGEST_NAME = 24, 150
_LOOKING = "looking"  # the lock held while testing whether the locks of runs are free


class BusyError(OSError):
    """Another process is working on this run."""


class FinishedError(OSError):
    """This run is already finished."""


class CannotStackError(Exception):
    """These runs cannot be trained together."""


class StoppedError(Exception):
    """The run was asked to stop and has saved a checkpoint, from which it continues when started again."""


@dataclass(frozen=True, eq=False)
class Run:
    """What is known of a run."""

    file: Path
    recipe: str  # the recipe it was made for; other recipes may use it, too
    method: str
    kind: str  # the kind_name of its settings' class
    settings: dict[str, Any]  # as in JSON, without settings that are newer than the run
    environment: dict[str, Any]  # the device and the versions
    metrics: list[dict[str, Any]]  # one entry per evaluation
    summary: dict[str, Any] | None = None  # None if it is not finished
    failure: str | None = None  # the error that ended its last attempt
    stopped: bool = False  # whether its last attempt was asked to stop
    code: str | None = None  # Recipe.code when it was made; None if it is not known

    @property
    def name(self) -> str:
        """The recipe and the file name."""
        return f"{self.recipe}/{self.file.stem}"

    @property
    def finished(self) -> bool:
        """Whether the run has a summary."""
        return self.summary is not None

    @property
    def error(self) -> str:
        """The type of the error that ended its last attempt, with the first line of its message; empty if none did."""
        lines = (self.failure or "").strip().splitlines() or [""]
        starts = [number for number, line in enumerate(lines) if line == "Traceback (most recent call last):"]
        after = lines[starts[-1] + 1 :] if starts else []
        return next((line for line in after if not line.startswith(" ")), lines[-1])

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.settings.get("seed", 0))

    @property
    def machine(self) -> str:
        """The device it ran on, with the number of processes if there were several."""
        count, device = self.environment.get("processes", 1), self.environment.get("device", "unknown device")
        return f"{f'{count} × ' if count > 1 else ''}{device}"

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        """Return some of the settings."""
        return {name: self.settings[name] for name in names}

    def value(self, key: str) -> float:
        """Return a number from the summary by a dotted key such as ``effective_degree.value``; nan if missing."""
        number = self._look_up(key)
        return float("nan") if number in (None, MISSING) else float(number)

    def is_nan(self, key: str) -> bool:
        """Return whether a number of the summary is NaN or infinite, which is not the same as missing."""
        return self._look_up(key) is None

    def _look_up(self, key: str) -> Any:
        entry: Any = self.summary
        for part in key.split("."):
            if entry is not None:
                entry = entry.get(part, MISSING) if isinstance(entry, Mapping) else MISSING
        return entry


def read_run(file: Path, *, brief: bool = False) -> Run:
    """Read a run without a last line that was cut off by a kill; if ``brief``, return only its last evaluation."""
    lines = _read_lines(file)
    try:
        if not lines:
            raise ValueError("it is empty, or its first line is not complete")
        header, *entries = (_parse(number, line) for number, line in enumerate(lines, start=1))
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']!r}; expected {FORMAT}")
        known = {key: header[key] for key in ("recipe", "method", "kind", "settings", "environment")}
        if unknown := [entry for entry in entries if entry.keys() not in ({"metrics"}, *_ENDS)]:
            raise ValueError(f"a line has the keys {', '.join(unknown[0])}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error}. Move or delete it.") from error
    end = entries[-1] if entries and "metrics" not in entries[-1] else {}
    metrics = [entry["metrics"] for entry in (entries[-1:] if brief else entries) if "metrics" in entry]
    return Run(file, **known, metrics=metrics, code=header.get("code"), **end)


class RunFolder:
    """A folder of runs; several processes and machines may share it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def read(self, *, brief: bool = False, report: bool = True) -> list[Run]:
        """Read all runs, finished or not, sorted by name; warn of damaged ones and leave them out."""
        runs = []
        for file in sorted(self.folder.glob("*/*.jsonl")):
            try:
                status = file.stat()
                runs.append(_read_briefly(file, status.st_mtime_ns, status.st_size) if brief else read_run(file))
            except (OSError, ValueError) as error:
                if report:
                    warnings.warn(f"a run is left out: {error}", RuntimeWarning, stacklevel=2)
        return runs

    def find(self, settings: Settings) -> Run | None:
        """Find the run with these settings, made for any recipe; if there are several, a finished one."""
        (run,) = self.find_all([settings])
        return run and read_run(run.file)

    def find_all(self, wanted: Sequence[Settings]) -> list[Run | None]:
        """Find the runs with these settings in one pass over the folder; each is read in brief."""
        kinds = {settings.kind_name(): type(settings) for settings in wanted}
        known: dict[str, Run] = {}
        for run in self.read(brief=True, report=False):
            if run.kind in kinds:
                key = kinds[run.kind].hash_values(run.settings)
                known[key] = run if run.finished else known.get(key, run)
        return [known.get(settings.hash) for settings in wanted]

    def name_file(self, recipe: str, method: str, base: Settings, settings: Settings) -> Path:
        """Name the file of a new run by its method, its seed, and its differences from the method's own settings.

        Settings with ``named=False`` and long values are left out. A hash is added if the name is taken.
        """
        own, given, name = base.to_dict(), settings.to_dict(), f"{method}-{settings.seed}"
        for each in fields(settings):
            if each.name != "seed" and each.metadata.get("named", True) and given[each.name] != own[each.name]:
                value = _format_briefly(given[each.name])
                longer = f"{name}-{each.name}={value}"
                name = longer if len(value) <= _LONGEST_VALUE and len(longer) <= _LONGEST_NAME else name
        name = re.sub(r"[^\w.,=+@-]", "_", name, flags=re.ASCII).rstrip(".")  # Windows forbids many characters
        file = self.locate(recipe) / f"{name}.jsonl"
        return file.with_name(f"{name}-{settings.hash[:8]}.jsonl") if file.exists() else file

    def locate(self, recipe: str) -> Path:
        """Return the folder of a recipe's runs."""
        return self.folder / re.sub(r"[^\w.-]", "_", recipe, flags=re.ASCII)

    def is_running(self, run: Run) -> bool | None:
        """Return whether a process is working on a run, by its lock; None if another machine has claimed it.

        Some network file systems do not show locks to other machines.
        """
        try:
            machine, lock = self.name_claim(run.file).read_text().split()
            if machine != _identify_machine():
                return None
            with self.lock(_LOOKING), self.lock(lock).acquire(timeout=0):
                return False
        except filelock.Timeout:
            return True
        except FileNotFoundError:  # never claimed, or finished and then cut off
            return False
        except (OSError, ValueError):  # locks do not work in this folder
            return None

    def name_claim(self, file: Path) -> Path:
        """Return the file that records which machine claimed a run last, and under which lock."""
        return self.folder / ".locks" / f"{file.parent.name}@{file.stem}.txt"

    def lock(self, name: str) -> filelock.FileLock:
        """Return a lock, which is released when its process ends; a run's lock is named by the hash of its settings."""
        file = self.folder / ".locks" / f"{name}.lock"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()  # fails in a read-only folder
        except OSError as error:
            raise OSError(f"runs cannot be kept in {self.folder}: {error.strerror}.") from error
        return filelock.FileLock(file)


@dataclass(eq=False)
class Job:
    """A run in progress: what it may use, and where its results go.

    A recipe's ``run`` function calls :meth:`start` once, then :meth:`log`, :meth:`save` and :meth:`stop_if_asked` any
    number of times, and :meth:`finish` at the end.
    """

    settings: Settings
    recipe: str
    method: str
    base: Settings  # the method's own; the run's name shows the differences
    runs: RunFolder
    device: torch.device
    data: Path | None = None  # the folder that holds the data sets
    progress: bool = False  # whether to show a progress bar
    asked_to_stop: Callable[[], bool] = lambda: False
    code: str | None = None  # Recipe.code
    file: Path = field(init=False)
    _lock: filelock.FileLock | None = field(default=None, init=False)
    _lines: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._find()

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints, the weights and the log."""
        return self.file.with_suffix("")

    @property
    def claimed(self) -> bool:
        """Whether this process is working on the run, which is then not finished."""
        return self._lock is not None

    def claim(self) -> None:
        """Keep other processes from working on the run until :meth:`close`; raise BusyError if one already is."""
        if self.claimed:
            return
        self._acquire()
        known = self._find()  # again, under the lock: another process may have finished the run
        if known is not None and known.finished:
            self.close()
            raise FinishedError(f"the run {self.file} is finished; effdeg-lab run --again runs it again.")
        if known is None:
            with self.runs.lock("names"):  # another run may be about to take the same name
                self._find()
                self._write([], {})
            self._delete_checkpoints()  # of a run whose file was deleted
        claim = f"{_identify_machine()} {self.settings.hash}\n"
        write_atomically(self.runs.name_claim(self.file), claim.encode())

    def set_aside(self) -> None:
        """Rename the run's file to ``.jsonl.old``, so that it starts anew; raise BusyError if a process works on it.

        If that name is taken, it becomes ``.jsonl.old2``, and so on.
        """
        with closing(self):
            self._acquire()
            if self._find() is not None:
                names = (self.file.with_name(f"{self.file.name}.old{number}") for number in chain([""], count(2)))
                self.file.rename(next(name for name in names if not name.exists()))
                self._delete_checkpoints()
            self._find()

    def start(self, **environment: Any) -> dict[str, Any] | None:
        """Start or continue the run; return the state in the newest valid checkpoint, None if there is none."""
        self.claim()
        self.folder.mkdir(exist_ok=True)
        for file in [*self.file.parent.glob(f"{self.file.name}.*.partial"), *self.folder.glob("*.partial")]:
            file.unlink(missing_ok=True)
        known, (lines, state) = read_run(self.file), self._load()
        if len(known.metrics) < lines:  # the user deleted some of its lines
            lines, state = 0, None
        if state is not None and known.environment.get("shared"):  # the time so far was measured on a shared device
            environment["shared"] = True
        self._write(known.metrics[:lines], describe_environment(self.device) | environment)
        return state

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append the metrics of an evaluation; NaN and infinities are written as null, tensors and arrays as lists."""
        self._append("metrics", dict(entry))
        self._lines += 1

    def save(self, state: dict[str, Any]) -> None:
        """Write a checkpoint: all that the run needs to continue, as tensors and plain values."""
        content = _to_bytes({"run": self.settings.hash, "lines": self._lines, "state": state})
        files = self._list_checkpoints()
        number = int(files[-1].name.split("-")[1]) + 1 if files else 1
        file = self.folder / f"checkpoint-{number:06d}-{_hash(content)}.pt"
        try:
            write_atomically(file, content)
        except OSError as error:
            raise OSError(
                f"{file} could not be written: {error.strerror}. Free some space, and start the run again."
            ) from error
        for old in files[:-1]:  # keep the previous one, too
            old.unlink()
        with suppress(OSError):
            os.utime(self.file)  # shows that the run is alive

    def stop_if_asked(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save a checkpoint and raise :class:`StoppedError` if the run was asked to stop, for example by SIGTERM."""
        if self.asked_to_stop():
            self.save(state())
            raise StoppedError

    def finish(self, summary: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the summary, which finishes the run, after the trained weights in ``weights.pt`` if given."""
        if weights is not None and self.claimed:
            write_atomically(self.folder / "weights.pt", _to_bytes(dict(weights)))
        self._append("summary", dict(summary))
        with suppress(OSError):  # the run is finished, even if cleaning up fails
            self._delete_checkpoints()
            self.runs.name_claim(self.file).unlink(missing_ok=True)
            if self._lock is not None:  # no longer needed: the run is seen to be finished
                Path(self._lock.lock_file).unlink(missing_ok=True)
            self.folder.rmdir()  # fails unless empty
        self.close()

    def fail(self, text: str | None, *, after_finish: bool = False) -> None:
        """Record the error that ended the run (None if it was asked to stop), unless another process took it over.

        A finished run stays finished, except if the error came ``after_finish`` in the run itself.
        """
        with suppress(BusyError, FinishedError), closing(self):
            if after_finish:
                self._acquire()
            else:
                self.claim()
            end = to_json({"stopped": True} if text is None else {"failure": text}).encode() + b"\n"
            # Rewritten, not appended: a kill may have cut off the last line.
            write_atomically(self.file, b"".join([*_read_lines(self.file), end]))

    def close(self) -> None:
        """Release the run, so that other processes may work on it."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def read(self) -> Run | None:
        """Read the run so far; None if there is nothing."""
        try:
            return read_run(self.file)
        except (OSError, ValueError):
            return None

    def _acquire(self) -> None:
        lock = self.runs.lock(self.settings.hash)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            try:
                with self.runs.lock(_LOOKING):  # the lock may only have been tested by is_running
                    lock.acquire(timeout=0)
            except filelock.Timeout:
                raise BusyError(f"another process is working on the run {self.file}: wait for it, or end it.") from None
        self._lock = lock

    def _find(self) -> Run | None:
        (known,) = self.runs.find_all([self.settings])
        name = self.runs.name_file(self.recipe, self.method, self.base, self.settings)
        self.file = name if known is None else known.file
        return known

    def _write(self, metrics: list[dict[str, Any]], environment: Mapping[str, Any]) -> None:
        who = {"format": FORMAT, "recipe": self.recipe, "method": self.method, "kind": self.settings.kind_name()}
        header = {**who, "code": self.code, "settings": self.settings.to_dict(), "environment": environment}
        lines = [header, *({"metrics": entry} for entry in metrics)]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.file, "".join(f"{to_json(line)}\n" for line in lines).encode())
        self._lines = len(metrics)

    def _append(self, key: str, value: dict[str, Any]) -> None:
        if not self.claimed:
            raise ValueError(f"nothing can be added to the run {self.file}: it was not started, or it is finished.")
        try:
            line = to_json({key: value}).encode() + b"\n"
        except TypeError as error:
            raise TypeError(f"{error}: log numbers, text, tensors, lists and dicts.") from error
        _append(self.file, line)

    def _list_checkpoints(self) -> list[Path]:
        return sorted(self.folder.glob("checkpoint-*.pt"))

    def _delete_checkpoints(self) -> None:
        for file in self._list_checkpoints():
            file.unlink()

    def _load(self) -> tuple[int, dict[str, Any] | None]:
        """Read the newest valid checkpoint, onto the CPU; warn of damaged ones and delete them."""
        for file in reversed(self._list_checkpoints()):
            content = file.read_bytes()  # outside of try: if reading fails, the file may still be valid
            try:
                if _hash(content) not in file.name:
                    raise ValueError("its content does not match the hash in its name")
                checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
                if checkpoint["run"] != self.settings.hash:
                    raise ValueError("it belongs to a run with other settings")
                return checkpoint["lines"], checkpoint["state"]
            except (ValueError, pickle.UnpicklingError) as error:
                reason = str(error).split(". ")[0]  # torch adds advice that does not apply here
                warnings.warn(f"the checkpoint {file} is skipped: {reason}.", RuntimeWarning, stacklevel=3)
                file.unlink()
        return 0, None


def get_rank_and_size() -> tuple[int, int]:
    """Return the rank of this process under ``torchrun``, and the number of processes."""
    joined = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if joined else (0, 1)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return the device and the versions, to be stored with the results."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        known = Path("/proc/cpuinfo")
        models = re.findall(r"model name\s*: (.*)", known.read_text(errors="replace")) if known.exists() else []
        name = f"CPU ({models[0] if models else platform.machine()}, {torch.get_num_threads()} threads)"
    versions = {"torch": torch.__version__, "python": platform.python_version(), "effdeg": effdeg.__version__}
    return {"device": name, **versions, "processes": get_rank_and_size()[1]}


@cache
def _identify_machine() -> str:
    """Return an identifier that differs between machines and containers, and after a reboot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return _hash(f"{platform.node()} {boot.read_text() if boot.exists() else ''}".encode())


def _read_lines(file: Path) -> list[bytes]:
    return [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def _parse(number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error


@lru_cache(maxsize=10_000)
def _read_briefly(file: Path, *_: int) -> Run:
    """Read a run in brief, cached by the time and size of its file: sweeps read whole folders again and again."""
    return read_run(file, brief=True)


def _append(file: Path, line: bytes) -> None:
    """Append a line, completely or not at all."""
    # Unbuffered: a buffer that a full disk rejected would be written again when the file is closed.
    with file.open("ab", buffering=0) as stream:
        start = stream.tell()
        try:
            if stream.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(stream.fileno())
        except OSError as error:
            stream.truncate(start)  # half a line would corrupt the next one
            error.filename = str(file)
            raise


def _format_briefly(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_format_briefly, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else format_setting(value)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _to_bytes(value: object) -> bytes:
    """Serialize in memory, because torch reports a full disk as something other than an OSError."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()
