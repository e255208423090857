"""Which rows of a table count: a model that is listed twice counts once, and strata need models to correlate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.checks import pluralize
from effdeg.pools._reading import Columns, as_numbers, is_missing

Indices = NDArray[np.int64]

CHECKSUM = "sha256"
"""The column in which :func:`effdeg.measure_pool` writes the checksum of a model's weights."""
# The correlation of fewer models says nothing: for 4, 95% of its null distribution reach from -0.95 to 0.95.
MIN_STRATUM = 5
# Half of the resamples of two configurations are copies of one of them.
MIN_CLUSTERS = 3
# Intervals from resamples of fewer exclude 0 too often: for an unrelated measure those of τ (and ρ) do, by enumeration,
# in 33% of pools of 3 models and 8% of 4; those of ρ in 13% of 5; and 3% of 6.
MIN_RESAMPLED = 6
# With fewer, intervals are rough, and a resample leaves too few that it does not draw.
FEW_CLUSTERS = 8


def keep_rows(columns: Columns, rows: Sequence[int] | Indices) -> Columns:
    """Return a table of some rows."""
    return {name: [column[row] for row in rows] for name, column in columns.items()}


def find_duplicates(
    columns: Columns, ranked: Sequence[str], settings: Sequence[str], model: str | None
) -> list[list[int]]:
    """Return the groups of rows that are one model.

    Rows are if they agree in the model's name, in all columns of numbers and in all that have a role; text without a
    role, such as the name of a file, does not count. With the same checksum it is enough to agree in what is ranked,
    whatever names they have and whatever settings are said to have led to them.
    """
    roles = {*ranked, *settings, model}
    compared = [name for name in columns if name in roles or as_numbers(columns[name]) is not None]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in range(len(columns[ranked[0]])):
        # A missing value equals a missing value, which nan does not.
        cells = {name: None if is_missing(column[row]) else column[row] for name, column in columns.items()}
        keys = [tuple(cells[name] for name in compared)]
        if (checksum := cells.get(CHECKSUM)) is not None:
            keys.append((CHECKSUM, checksum, *(cells[name] for name in ranked)))
        group = next((groups[key] for key in keys if key in groups), [])
        group.append(row)
        groups |= dict.fromkeys(keys, group)
    return [rows for rows in {rows[0]: rows for rows in groups.values()}.values() if len(rows) > 1]


def group_rows(columns: Columns, names: Sequence[str]) -> dict[str, list[int]]:
    """Return the rows of each stratum, a combination of values, by its name and in order of appearance."""
    groups: dict[str, list[int]] = {}
    for row, cells in enumerate(zip(*(columns[name] for name in names), strict=True)):
        # Whole numbers are read from a file as floats.
        texts = (str(cell).removesuffix(".0") if isinstance(cell, float) else str(cell) for cell in cells)
        groups.setdefault(", ".join(texts), []).append(row)
    return groups


def find_unfit(columns: Columns, target: str, strata: Sequence[str], clusters: Sequence[str]) -> dict[str, str]:
    """Return why some strata cannot be ranked; without ``clusters`` each model is resampled by itself."""
    found = {}
    for name, rows in group_rows(columns, strata).items():
        models, gaps = pluralize(len(rows), "model"), {columns[target][row] for row in rows}
        count = len(group_rows(keep_rows(columns, rows), clusters)) if clusters else len(rows)
        if len(rows) < MIN_STRATUM:
            found[name] = f"{models}, fewer than {MIN_STRATUM}"
        elif count < MIN_CLUSTERS:
            found[name] = f"{models} of {pluralize(count, 'configuration')}, fewer than {MIN_CLUSTERS}"
        elif len(gaps) == 1:
            found[name] = f"{target} is {gaps.pop():g} for all of its {models}"
    return found
