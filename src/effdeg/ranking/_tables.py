"""Tables as people have them, as columns of cells: numbers, texts, None where there is nothing."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.imports import require

Array = NDArray[np.float64]
Columns = dict[str, list[Any]]

# Python's float() also takes 1_000, which in a table is a text.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?|nan", re.ASCII | re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_MISSING = {"na", "n/a", "nan", "null"}
_SEPARATORS = (",", ";", "\t")


def read_table(path: str | Path) -> Columns:
    """Read a table with one row per model.

    Args:
        path: A ``.csv`` file with a first line of names, or a ``.parquet`` file. The columns of a ``.csv`` file are
            separated by commas, semicolons or tabs. A column holds numbers if every cell does, or is missing: empty,
            ``NA``, ``N/A``, ``NaN``, ``null`` or ``None``; else it holds text. A column without a name, as pandas
            writes its index, is left out.

    Returns:
        The columns by name.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".parquet"}:
        raise ValueError(f"{path} has the suffix {path.suffix!r}; a table is read from a .csv or .parquet file.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist.")
    return _csv(path) if suffix == ".csv" else _parquet(path)


def as_columns(table: Any) -> Columns:
    """Take a path, a mapping of columns, a sequence of rows or a data frame as columns of equal length."""
    if isinstance(table, str | Path):
        columns = read_table(table)
    elif isinstance(table, Mapping):
        columns = {str(name): _cells(name, column) for name, column in table.items()}
    elif hasattr(table, "column_names") or hasattr(table, "columns"):
        # A data frame of pandas, polars or pyarrow.
        names = list(table.column_names if hasattr(table, "column_names") else table.columns)
        _check_names("the table", names)
        columns = {str(name): _cells(name, table[name]) for name in names}
    elif isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        columns = {str(name): [_plain(row.get(name)) for row in table] for name in names}
    else:
        raise TypeError(
            f"a table cannot be made of a {type(table).__name__}; give a dict of columns, a list of dicts (one per "
            "model), a data frame, or a path to a .csv or .parquet file."
        )
    lengths = {name: len(column) for name, column in columns.items()}
    if not any(lengths.values()):
        raise ValueError("the table is empty: it needs one row per model.")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise ValueError(f"the columns differ in length ({listed}); each needs one value per model.")
    return columns


def numbers(column: Sequence[Any]) -> Array | None:
    """Return a column as numbers, nan where there is none; None if a cell is something else."""
    if not all(is_number(cell) for cell in column):
        return None
    return np.array([np.nan if cell is None else float(cell) for cell in column])


def is_number(cell: Any) -> bool:
    """Return whether a cell holds a number or nothing; True and False are names, not numbers."""
    return cell is None or (isinstance(cell, Real) and not isinstance(cell, bool | np.bool_))


def is_written_number(cell: Any) -> bool:
    """Return whether a cell is a text that reads as a number."""
    return isinstance(cell, str) and _NUMBER.fullmatch(cell) is not None


def has_decimal_commas(column: Sequence[Any]) -> bool:
    """Return whether a column would hold numbers if they were not written with decimal commas."""
    commas = [isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell) is not None for cell in column]
    rest = (cell for cell, comma in zip(column, commas, strict=True) if not comma)
    return any(commas) and all(is_number(cell) or is_written_number(cell) or _is_missing(cell) for cell in rest)


def counted(number: int, noun: str) -> str:
    """Write how many there are of something."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _csv(path: Path) -> Columns:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} cannot be read as .csv: save it as UTF-8 ({error}).") from error
    try:
        (_, header), *rows = _lines(text)
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as .csv: {error}.") from error
    except ValueError as error:
        raise ValueError(f"{path} is empty; expected a line of names, then one line per model.") from error
    names = [name.strip() for name in header]
    if len(names) == 1:
        raise ValueError(
            f"{path} has a single column, {names[0]!r}; the separator must be a comma, a semicolon or a tab."
        )
    _check_names(str(path), [name for name in names if name])
    for number, cells in rows:
        if len(cells) != len(names):
            hint = " Numbers need a decimal point, and texts with a separator need quotes." * (len(cells) > len(names))
            raise ValueError(
                f"{path}: line {number} has {counted(len(cells), 'cell')}, the first line names "
                f"{counted(len(names), 'column')}.{hint}"
            )
    return {name: _parsed([cells[index] for _, cells in rows]) for index, name in enumerate(names) if name}


def _lines(text: str) -> list[tuple[int, list[str]]]:
    """Split into cells at the first separator that gives all lines as many, or else that gives most names."""
    found = []
    for separator in _SEPARATORS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
        sizes = {len(cells) for _, cells in lines}
        if len(sizes) == 1 and sizes != {1}:
            return lines
        found.append(lines)
    return max(found, key=lambda lines: len(lines[0][1]) if lines else 0)


def _parsed(cells: list[str]) -> list[Any]:
    texts = [cell.strip() or None for cell in cells]
    known = [text for text in texts if not _is_missing(text)]
    # Where there is no number at all, "none" may well be a name.
    numeric = all(map(is_written_number, known)) and (known or not any(map(_is_none, texts)))
    return [None if text is None or _is_missing(text) else float(text) for text in texts] if numeric else list(texts)


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.lower() in _MISSING) or _is_none(cell)


def _is_none(cell: Any) -> bool:
    return isinstance(cell, str) and cell.lower() == "none"


def _parquet(path: Path) -> Columns:
    reader = require("pyarrow.parquet", extra="files", purpose="a .parquet file")
    try:
        table = reader.read_table(path)
    except Exception as error:
        raise ValueError(f"{path} cannot be read as .parquet: {error}") from error
    _check_names(str(path), table.column_names)
    return {name: _cells(name, table.column(name)) for name in table.column_names}


def _check_names(where: str, names: list[Any]) -> None:
    twice = sorted({str(name) for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{where} has several columns called {', '.join(map(repr, twice))}; names must differ.")


def _cells(name: Any, column: Any) -> list[Any]:
    for listing in ("to_pylist", "tolist", "to_list"):
        if hasattr(column, listing):
            column = getattr(column, listing)()
            break
    if isinstance(column, str) or not hasattr(column, "__iter__"):
        raise TypeError(f"the column {name!r} must be a sequence with one value per model, not {column!r}.")
    return [_plain(cell) for cell in column]


def _plain(cell: Any) -> Any:
    if hasattr(cell, "item") and getattr(cell, "ndim", None) == 0:
        cell = cell.item()
    if isinstance(cell, Decimal):
        cell = float(cell)
    # pandas.NA, which cannot be compared with anything.
    return None if type(cell).__name__ in {"NAType", "NaTType"} else cell
