"""Tables with one row per model, as columns of cells: numbers, strings, or None where a value is missing."""

import csv
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.checks import pluralize
from effdeg.io._data import read_parquet

Array = NDArray[np.float64]
Columns = dict[str, list[Any]]

# Not "none", which may well be the name of a setting.
_MISSING = {"", "na", "n/a", "nan", "null"}


def read_table(path: str | Path) -> Columns:
    r"""Read a table with one row per model.

    Example:
        >>> import pathlib, tempfile
        >>> from effdeg.pools import read_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pool.csv")
        ...     _ = path.write_text("lr,norm,gap\n0.1,batch,0.2\n0.3,layer,\n")
        ...     read_table(path)
        {'lr': [0.1, 0.3], 'norm': ['batch', 'layer'], 'gap': [0.2, None]}

    Args:
        path: A ``.parquet`` file, or a ``.csv`` file: UTF-8, with commas between the columns and their names in the
            first line. A column of a ``.csv`` file holds numbers if every cell is one or is missing (empty, ``NA``,
            ``N/A``, ``NaN`` or ``null``), and text otherwise. A column without a name, such as the index that pandas
            writes, is left out.

    Returns:
        The columns by name; None stands for a missing value.

    Raises:
        ValueError: If the file has another suffix, cannot be parsed, has lines of different lengths, or has two columns
            of the same name.
        FileNotFoundError: If there is no such file.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".parquet"}:
        raise ValueError(f"{path} has the suffix {path.suffix!r}; a table is read from a .csv or .parquet file.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist.")
    return _read_csv(path) if suffix == ".csv" else _frame_columns(read_parquet(path), str(path))


def as_columns(table: Any) -> Columns:
    """Return a path, a mapping of columns, a sequence of rows or a data frame as columns of equal length."""
    if isinstance(table, str | Path):
        columns = read_table(table)
    elif isinstance(table, Mapping):
        columns = {str(name): _read_cells(name, column) for name, column in table.items()}
    elif hasattr(table, "columns"):
        columns = _frame_columns(table, "the table")
    elif isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        names = dict.fromkeys(name for row in table for name in row)
        columns = {str(name): [_simplify(row.get(name)) for row in table] for name in names}
    else:
        raise TypeError(
            f"the table is of type {type(table).__name__}; give a dict of columns, a list of dicts (one per model), a "
            "data frame, or the path of a .csv or .parquet file."
        )
    lengths = {name: len(column) for name, column in columns.items()}
    if not any(lengths.values()):
        raise ValueError("the table is empty: it needs one row per model.")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise ValueError(f"the columns differ in length ({listed}); each needs one value per model.")
    return columns


def as_numbers(column: Sequence[Any]) -> Array | None:
    """Return a column as numbers, nan where one is missing; None if a cell is something else."""
    return as_array(column) if all(is_number(cell) for cell in column) else None


def as_array(column: Sequence[Any]) -> Array:
    """Return a column of numbers as an array, nan where one is missing."""
    return np.array([np.nan if cell is None else float(cell) for cell in column])


def is_number(cell: Any) -> bool:
    """Return whether a cell holds a number or is empty; True and False are names, not numbers."""
    return cell is None or (isinstance(cell, Real) and not isinstance(cell, bool | np.bool_))


def is_missing(cell: Any) -> bool:
    """Return whether a cell is empty; a nan is the only value that differs from itself."""
    return cell is None or bool(cell != cell)


def _read_csv(path: Path) -> Columns:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True)
            lines = [(reader.line_num, cells) for line in reader if any(cells := [cell.strip() for cell in line])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as .csv; save it as UTF-8 text ({error}).") from error
    if not lines:
        raise ValueError(f"{path} is empty; expected a line of column names, then one line per model.")
    (_, names), *rows = lines
    if len(names) == 1:
        raise ValueError(f"{path} has a single column, {names[0]!r}; separate columns by commas.")
    _check_names(str(path), [name for name in names if name])
    for number, cells in rows:
        if len(cells) != len(names):
            raise ValueError(
                f"{path}: line {number} has {pluralize(len(cells), 'cell')}, but the first line names "
                f"{pluralize(len(names), 'column')}. Numbers need a decimal point; put text with commas in quotes."
            )
    return {name: _parse([cells[index] for _, cells in rows]) for index, name in enumerate(names) if name}


def _parse(texts: list[str]) -> list[Any]:
    """Return a column as numbers if every cell is one or is missing, as strings otherwise."""
    try:
        return [None if text.lower() in _MISSING else float(text) for text in texts]
    except ValueError:
        return [text or None for text in texts]


def _frame_columns(frame: Any, where: str) -> Columns:
    """Return the columns of a data frame of pandas, polars or pyarrow."""
    # The `columns` of pyarrow are the columns themselves.
    names = list(frame.column_names if hasattr(frame, "column_names") else frame.columns)
    _check_names(where, names)
    return {str(name): _read_cells(name, frame[name]) for name in names}


def _check_names(where: str, names: list[Any]) -> None:
    duplicates = sorted({str(name) for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"{where} has several columns called {', '.join(map(repr, duplicates))}; names must differ.")


def _read_cells(name: Any, column: Any) -> list[Any]:
    method = next((name for name in ("to_pylist", "tolist", "to_list") if hasattr(column, name)), None)
    column = getattr(column, method)() if method else column
    if isinstance(column, str) or not hasattr(column, "__iter__"):
        raise TypeError(f"the column {name!r} must be a sequence with one value per model, not {column!r}.")
    return [_simplify(cell) for cell in column]


def _simplify(cell: Any) -> Any:
    if hasattr(cell, "item") and getattr(cell, "ndim", None) == 0:
        return cell.item()
    if isinstance(cell, Decimal):
        return float(cell)
    # pandas.NA cannot be compared with anything.
    return None if type(cell).__name__ in {"NAType", "NaTType"} else cell
