"""What a run's folder says of it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
# More bytes than any line of metrics.jsonl has.
_TAIL = 65_536


@dataclass(frozen=True)
class Record:
    """What is known of a run.

    Attributes:
        folder: Where it lies.
        settings: Its settings, as JSON knows them.
        environment: The device and the versions it ran with.
        metrics: What every evaluation found.
        summary: What came out at the end; None if it has not ended.
        failure: The traceback of the error that ended it, if one did.
        kind: The type of its settings.
    """

    folder: Path
    settings: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None
    failure: str | None
    kind: str

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.summary is not None


def read_record(folder: Path) -> Record:
    """Read the run in a folder; what is not there yet is left out."""
    kind, settings = read_settings(folder / "settings.json")
    environment, summary = (
        read_json(folder / name) if (folder / name).exists() else None for name in ("environment.json", "summary.json")
    )
    metrics = folder / "metrics.jsonl"
    try:
        entries = [json.loads(line) for line in whole_lines(metrics)]
    except ValueError as error:
        raise ValueError(f"{metrics} is damaged ({error}).") from error
    return Record(folder, settings, environment or {}, entries, summary, _read_text(folder / "failure.txt"), kind)


def read_settings(file: Path) -> tuple[str, dict[str, Any]]:
    """Read the kind of settings and the settings."""
    described = read_json(file)
    if described.get("format") != FORMAT:
        raise ValueError(
            f"{file} is of format {described.get('format')!r}, this version of effdeg reads format {FORMAT}."
        )
    kind, settings = described.get("kind"), described.get("settings")
    if not isinstance(kind, str) or not isinstance(settings, dict):
        raise ValueError(f"{file} is damaged (it holds no kind and settings).")
    return kind, settings


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}).") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file} is damaged (it holds no JSON object).")
    return value


def whole_lines(file: Path) -> list[bytes]:
    """Read the lines of a file, but for a last one that a kill tore off."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def last_entry(folder: Path) -> dict[str, Any]:
    """Return what the last evaluation of a run found, empty if there was none, from the end of its file alone."""
    try:
        with (folder / "metrics.jsonl").open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL))
            *_, last, _ = [b"", *stream.read().split(b"\n")]
        entry = json.loads(last)
    except (OSError, ValueError):
        return {}
    return entry if isinstance(entry, dict) else {}


def _read_text(file: Path) -> str | None:
    return file.read_text(errors="replace") if file.exists() else None
