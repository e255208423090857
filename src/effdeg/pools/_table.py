"""A table of a pool that grows row by row: a ``.csv`` file, and next to it the settings that its rows share.

A third file has the classes that the checkpoints predict, for disagreement, and outputs that tell the model again.
"""

import csv
import io
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import filelock
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from effdeg._utils.checks import pluralize
from effdeg._utils.files import dump, to_json, write_atomically, write_json
from effdeg._utils.statistics import format_estimate
from effdeg._utils.tables import Rows, make_frame, render_tables
from effdeg.pools._checkpoint import DISAGREEMENT, OUTPUTS, WEIGHTS

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
FORMAT = 6
"""The version of tables, raised when rows get other columns or settings another form."""
_CHECKSUM_DIGITS = 64  # of SHA-256
_HASHED = {
    "model": "the model has other layers, weights of another shape or precision, or other numbers (a temperature?)",
    "data": "data= are other examples or labels",
    "train": "train= are other examples or labels",
}
"""How settings of which only a hash is kept differ, in words."""


class PoolRows(list[Row]):
    """The rows of a pool, a dict for each checkpoint; :func:`effdeg.measure_pool` returns them.

    Example:
        >>> from effdeg.pools import PoolRows
        >>> rows = PoolRows([{"model": "a", "effective_degree": 0.25, "effective_degree_stderr": 0.01}])
        >>> rows.cells(["model", "effective_degree"])
        [['model', 'effective_degree'], ['a', '0.25 ± 0.01']]
    """

    def cells(self, columns: Sequence[str]) -> Rows:
        """Return some columns as a table of strings, with the standard errors that the rows have."""
        return [list(columns), *([_format(row, name) for name in columns] for row in self)]

    def to_frame(self) -> "DataFrame":
        """Return the rows as a data frame. Needs the extra ``pools``."""
        return make_frame(self)

    def _repr_html_(self) -> str:
        columns = [name for name in (self[0] if self else ()) if "_stderr" not in name and name != "sha256"]
        return render_tables([(f"pool of {pluralize(len(self), 'model')} (±: standard error)", self.cells(columns))])


def _format(row: Row, name: str) -> str:
    kind, at, variant = name.partition("@")
    cell = row[name]
    return cell if isinstance(cell, str) else format_estimate(cell, row.get(f"{kind}_stderr{at}{variant}"))


class _Known(NamedTuple):
    """What is kept of a checkpoint next to its row."""

    weights: str  # a hash, since several files may hold the same weights
    outputs: NDArray[np.floating]  # at a few examples
    classes: NDArray[np.integer] | None  # the predicted ones


class PoolTable:
    """Rows by the names of their models. With a file, every new row is on the disk before the next is measured."""

    def __init__(self, file: Path | None, settings: Mapping[str, Any], columns: Iterable[str]) -> None:
        self.file, self._numbers = file, list(columns)
        self.rows: dict[str, Row] = {}
        self._added: dict[str, Row] = {}  # what others have added to rows that were dropped or replaced
        self._settings = to_json(settings)
        self._known: dict[str, _Known] = {}  # by checksum
        if file is not None and file.exists():
            _check_settings(file, json.loads(self._settings))
            self.rows = self._read(file)
            self._known = self._read_known(file)
        elif file is not None:
            write_json(settings_file(file), json.loads(self._settings))

    def find(self, checksum: str) -> dict[str, Row]:
        return {name: row for name, row in self.rows.items() if row["sha256"] == checksum}

    def has(self, checksum: str) -> bool:
        """Return whether all that a checkpoint with this checksum adds to the table is there."""
        return bool(self.find(checksum)) and checksum in self._known

    def read_outputs(self, checksum: str) -> Tensor:
        return torch.from_numpy(self._known[checksum].outputs)

    def add(self, names: Iterable[str], checksum: str, measures: Mapping[str, Any]) -> None:
        """Add or replace the row of a checkpoint, under each of its names, and write the table."""
        numbers = {column: measures[column] for column in self._numbers}
        classes = numbers.get(DISAGREEMENT)
        small = None if classes is None else classes.numpy().astype(np.min_scalar_type(int(classes.max())))
        self._known[checksum] = _Known(measures[WEIGHTS], measures[OUTPUTS].float().numpy(), small)
        self._write_known()
        for name in names:
            self._keep_added(name)
            self.rows[name] = {"model": name, **numbers, "sha256": checksum, **self._added.get(name, {})}
        self.write()

    def rename(self, name: str, new: str) -> None:
        """Rename a row, with all that others have added to it, and write the table."""
        self.rows = {new if key == name else key: row for key, row in self.rows.items()}
        self.rows[new]["model"] = new
        self.write()

    def copy(self, name: str, others: Iterable[str]) -> None:
        """Add rows of other files with the same weights, each with what others had added to it, and write the table."""
        measured = {key: self.rows[name][key] for key in (*self._numbers, "sha256")}
        self.rows |= {other: {"model": other, **measured, **self._added.get(other, {})} for other in others}
        self.write()

    def drop(self, name: str) -> None:
        """Remove a row, on the disk only when the table is next written; columns of others come back with the name."""
        self._keep_added(name)
        del self.rows[name]

    def write(self) -> None:
        """Compare the predictions of all rows, and write the table, if it has a file."""
        self._fill_disagreement()
        if self.file is None:
            return
        columns = dict.fromkeys(["model", *self._numbers, *(name for row in self.rows.values() for name in row)])
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows.values())
        write_atomically(self.file, stream.getvalue().encode())

    def _keep_added(self, name: str) -> None:
        own = {"model", "sha256", *self._numbers}
        if name in self.rows:
            self._added[name] = {key: cell for key, cell in self.rows[name].items() if key not in own}

    def _fill_disagreement(self) -> None:
        if DISAGREEMENT not in self._numbers:
            return
        known = {row["sha256"]: self._known.get(row["sha256"]) for row in self.rows.values()}
        models = {each.weights: each.classes for each in known.values() if each and each.classes is not None}
        shares = dict(zip(models, compute_disagreement(list(models.values())), strict=True))
        for row in self.rows.values():
            each = known[row["sha256"]]
            row[DISAGREEMENT] = shares.get(each.weights, math.nan) if each else math.nan

    def _write_known(self) -> None:
        if self.file is None:
            return
        every = list(self._known.values())
        # Without disagreement there are several predictions per example.
        names = ("weights", "outputs", "classes") if DISAGREEMENT in self._numbers else ("weights", "outputs")
        arrays: dict[str, Any] = {name: np.stack([getattr(each, name) for each in every]) for name in names}
        arrays |= {"settings": self._settings, "sha256": list(self._known)}
        write_atomically(predictions_file(self.file), dump(lambda to: np.savez(to, **arrays)))

    def _read_known(self, file: Path) -> dict[str, "_Known"]:
        try:
            with predictions_file(file).open("rb") as stream, np.load(stream) as kept:
                if str(kept["settings"]) != self._settings:  # those of an earlier table in the same place
                    return {}
                classes = kept["classes"] if DISAGREEMENT in self._numbers else [None] * len(kept["sha256"])
                columns = zip(kept["weights"].tolist(), kept["outputs"], classes, strict=True)
                return dict(zip(kept["sha256"].tolist(), (_Known(*each) for each in columns), strict=True))
        except Exception:  # missing or damaged in any way
            return {}

    def _read(self, file: Path) -> dict[str, Row]:
        try:
            with file.open(encoding="utf-8", newline="") as stream:
                reader = csv.DictReader(stream, strict=True)
                columns, read = reader.fieldnames or (), list(reader)
            # Columns that someone has added, such as hyperparameters, are kept as they are.
            parsed = [name for name in self._numbers if name != DISAGREEMENT]
            if lacking := [name for name in ("model", *parsed, "sha256") if name not in columns]:
                raise ValueError(f"it has no column {lacking[0]}")
            # The last cells of a row that is cut short are missing, or its checksum is too short.
            cut = [row for row in read if None in row.values() or len(row["sha256"]) < _CHECKSUM_DIGITS]
            if cut:
                listed = ", ".join(row["model"] for row in cut)
                again = "checkpoints that are given are measured again"
                warnings.warn(f"{file} has rows that are cut short, of {listed}: {again}", stacklevel=5)
            return {row["model"]: row | {name: float(row[name]) for name in parsed} for row in read if row not in cut}
        except (ValueError, TypeError, csv.Error) as error:
            raise ValueError(
                f"{file} cannot be continued: it is not a table that this version wrote ({error}). Move it away, or "
                "choose another file with out=."
            ) from error


@contextmanager
def lock_table(file: Path | None) -> Iterator[None]:
    """Keep other processes from writing a table; the system releases the lock of a process that is killed."""
    if file is None:
        yield
        return
    lock = filelock.FileLock(file.with_suffix(".csv.lock"))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ValueError(
            f"{file} is being written by another command. Wait until it has ended, or choose another file with out=."
        ) from None
    try:
        yield
    finally:
        with suppress(OSError):  # on Windows it can only be removed once it is released, which does so
            Path(lock.lock_file).unlink()
        lock.release()


def compute_disagreement(classes: Sequence[NDArray[np.integer]]) -> list[float]:
    """Return the share of examples that each model classifies otherwise than the others do, averaged over these."""
    if len(classes) < 2:
        return [math.nan] * len(classes)
    predicted = np.stack(classes)
    models, examples = predicted.shape
    # Votes are counted instead of comparing all pairs; each model also agrees with itself.
    agreeing = sum(np.bincount(votes)[votes] for votes in predicted.T)
    shares: list[float] = ((models * examples - agreeing) / ((models - 1) * examples)).tolist()
    return shares


def predictions_file(file: Path) -> Path:
    return file.with_suffix(".predictions.npz")


def settings_file(file: Path) -> Path:
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
    if before.get("format") != settings.get("format"):
        raise ValueError(
            f"{file} was written by another version of effdeg, with other columns. Measure again, and choose another "
            "file with out=."
        )
    pairs = {name: (before.get(name), settings.get(name)) for name in [*before, *settings]}
    changed = {name: f"{name}= was {one} then and is {two} now" for name, (one, two) in pairs.items() if one != two}
    if changed:
        differing = [_HASHED.get(name, words) for name, words in changed.items()]
        raise ValueError(
            f"{file} holds rows that were measured with other settings: {'; '.join(differing)}. A table has one kind "
            "of rows: use the same settings, or choose another file with out=."
        )
