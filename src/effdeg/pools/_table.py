"""A table of a pool that grows row by row: a ``.csv`` file, and next to it the settings that its rows share."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from effdeg._utils.files import to_json, write_atomically, write_json

Row = dict[str, Any]


class PoolTable:
    """Rows by the names of their models. With a file, every new row is on the disk before the next is measured."""

    def __init__(self, file: Path | None, settings: Mapping[str, Any], columns: Iterable[str]) -> None:
        self.file, self._numbers = file, list(columns)
        self.rows: dict[str, Row] = {}
        self._added: dict[str, Row] = {}  # what others have added to rows that were dropped
        if file is None:
            return
        settings = json.loads(to_json(settings))
        if file.exists():
            _check_settings(file, settings)
            self.rows = self._read(file)
        else:
            write_json(settings_file(file), settings)

    def find(self, checksum: str) -> dict[str, Row]:
        """Return the rows of a checkpoint with this checksum, by name."""
        return {name: row for name, row in self.rows.items() if row["sha256"] == checksum}

    def is_stale(self, name: str, checksum: str) -> bool:
        """Return whether the row of this name is that of another checkpoint."""
        return name in self.rows and self.rows[name]["sha256"] != checksum

    def add(self, names: Iterable[str], checksum: str, measures: Mapping[str, float]) -> None:
        """Add the row of a checkpoint, under each of its names, and write the table."""
        numbers = {column: measures[column] for column in self._numbers}
        for name in names:
            self.rows[name] = {"model": name, **numbers, "sha256": checksum, **self._added.get(name, {})}
        self.write()

    def rename(self, name: str, new: str) -> None:
        """Rename a row, with all that others have added to it, and write the table."""
        self.rows = {
            new if key == name else key: row | {"model": new} if key == name else row for key, row in self.rows.items()
        }
        self.write()

    def drop(self, name: str) -> None:
        """Remove a row, on the disk only when the table is next written; columns of others come back with the name."""
        row = self.rows.pop(name)
        self._added[name] = {key: cell for key, cell in row.items() if key not in {"model", "sha256", *self._numbers}}

    def write(self) -> None:
        """Write the table, if it has a file."""
        if self.file is None:
            return
        columns = dict.fromkeys(["model", *self._numbers, *(name for row in self.rows.values() for name in row)])
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows.values())
        write_atomically(self.file, stream.getvalue().encode())

    def _read(self, file: Path) -> dict[str, Row]:
        try:
            with file.open(encoding="utf-8", newline="") as stream:
                read = list(csv.DictReader(stream, strict=True))
            # Columns that someone has added, such as hyperparameters, are kept as they are.
            numbers = [{name: float(row[name]) for name in self._numbers} for row in read]
            return {
                row["model"]: row | found | {"sha256": row["sha256"]} for row, found in zip(read, numbers, strict=True)
            }
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            raise ValueError(
                f"{file} cannot be continued: it is not the table that was written here ({error!r}). Move it away, or "
                "choose another file with out=."
            ) from error


def settings_file(file: Path) -> Path:
    """Return the file with the settings of a table: ``pool.csv`` has ``pool.settings.json``."""
    return file.with_suffix(".settings.json")


def _check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Raise unless the rows of a table were measured with these settings."""
    other = settings_file(file)
    try:
        before = json.loads(other.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{file} exists, but {other.name}, which has its settings, is missing or damaged. Choose another file with "
            "out=."
        ) from error
    names = dict.fromkeys([*before, *settings])
    differing = [name for name in names if before.get(name) != settings.get(name)]
    if differing:
        listed = "; ".join(f"{name}: {_show(before, name)} there, {_show(settings, name)} now" for name in differing)
        raise ValueError(
            f"{file} holds rows that were measured with other settings ({listed}). A table has one kind of rows: use "
            "the same settings, or choose another file with out=."
        )


def _show(settings: Mapping[str, Any], name: str) -> str:
    return json.dumps(settings.get(name))
