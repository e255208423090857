"""Tables with one row per model, as data frames.

A column of numbers has a numeric dtype, with NaN where one is missing; any other has the dtype object, with None.
"""

import csv
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.checks import pluralize
from effdeg._utils.imports import require
from effdeg.io._data import read_parquet

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Array = NDArray[np.float64]

# Not "none", which may well be the name of a setting.
_MISSING = {"", "na", "n/a", "nan", "null"}


def read_table(path: str | Path) -> "DataFrame":
    r"""Read a table with one row per model. Needs the extra ``pools``.

    Example:
        >>> import pathlib, tempfile
        >>> from effdeg.pools import read_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pool.csv")
        ...     _ = path.write_text("lr,norm,gap\n0.1,batch,0.2\n0.3,layer,\n")
        ...     read_table(path).to_dict("list")
        {'lr': [0.1, 0.3], 'norm': ['batch', 'layer'], 'gap': [0.2, nan]}

    Args:
        path: A ``.parquet`` file, or a ``.csv`` file: UTF-8, with commas between the columns and their names in the
            first line. A column of a ``.csv`` file holds numbers if every cell is one or is missing (empty, ``NA``,
            ``N/A``, ``NaN`` or ``null``), and text otherwise. A column without a name, such as the index that pandas
            writes, is left out.

    Returns:
        The table; a missing value is NaN among numbers and None among texts.

    Raises:
        ValueError: If the file has another suffix, cannot be parsed, has lines of different lengths, or has two columns
            of the same name.
        FileNotFoundError: If there is no such file.
        ImportError: If pandas is not installed, or pyarrow for a ``.parquet`` file.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".parquet"}:
        raise ValueError(f"{path} has the suffix {path.suffix!r}; a table is read from a .csv or .parquet file.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist.")
    return as_frame(_read_csv(path) if suffix == ".csv" else read_parquet(path), str(path))


def as_frame(table: Any, where: str = "the table") -> "DataFrame":
    """Return a path, a mapping of columns, a sequence of rows or a data frame of any library as one of pandas."""
    pandas = require("pandas", extra="pools", purpose="a table of models")
    if isinstance(table, str | Path):
        return read_table(table)
    if not isinstance(table, Mapping) and hasattr(table, "columns"):
        # The `columns` of pyarrow are the columns themselves.
        names = list(table.column_names if hasattr(table, "column_names") else table.columns)
        _check_names(where, names)
    elif isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        table = {name: [row.get(name) for row in table] for name in names}
    elif not isinstance(table, Mapping):
        raise TypeError(
            f"the table is of type {type(table).__name__}; give a dict of columns, a list of dicts (one per model), a "
            "data frame, or the path of a .csv or .parquet file."
        )
    else:
        names = list(table)
    columns = {str(name): pandas.Series(_read_cells(name, table[name]), dtype=object) for name in names}
    lengths = {name: len(column) for name, column in columns.items()}
    if not any(lengths.values()):
        raise ValueError("the table is empty: it needs one row per model.")
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise ValueError(f"the columns differ in length ({listed}); each needs one value per model.")
    return pandas.DataFrame({name: _as_numbers(column) for name, column in columns.items()})  # type: ignore[no-any-return]


def is_numeric(column: "Series[Any]") -> bool:
    """Return whether a column holds numbers; True and False are names, not numbers."""
    return column.dtype.kind in "iuf"


def _as_numbers(column: "Series[Any]") -> "Series[Any]":
    if all(cell is None or (isinstance(cell, Real) and not isinstance(cell, bool)) for cell in column):
        numbers = column.infer_objects()
        return numbers if numbers.dtype.kind == "i" else column.astype(float)
    return column.where(column.notna(), None)


def _read_csv(path: Path) -> dict[str, list[Any]]:
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
    if any("_" in text for text in texts):  # Python reads 1_0 as 10
        return [text or None for text in texts]
    try:
        return [None if text.lower() in _MISSING else float(text) for text in texts]
    except ValueError:
        return [text or None for text in texts]


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
