"""Which rows of a table count: a model that is listed twice counts once, and strata need models to correlate."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.checks import pluralize
from effdeg.pools._reading import is_numeric

if TYPE_CHECKING:
    from pandas import DataFrame

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


def find_duplicates(
    table: "DataFrame", ranked: Sequence[str], settings: Sequence[str], model: str | None
) -> list[list[int]]:
    """Return the groups of rows that are one model.

    Rows are if they agree in the model's name, in all columns of numbers and in all that have a role; text without a
    role, such as the name of a file, does not count. With the same checksum it is enough to agree in what is ranked,
    whatever names they have and whatever settings are said to have led to them.
    """
    roles = {*ranked, *settings, model}
    compared = [str(name) for name in table if name in roles or is_numeric(table[name])]
    checksums = _read_rows(table, [CHECKSUM]) if CHECKSUM in table else [(None,)] * len(table)
    groups: dict[object, list[int]] = {}
    rows = zip(_read_rows(table, compared), checksums, _read_rows(table, ranked), strict=True)
    for row, (cells, (checksum,), measured) in enumerate(rows):
        keys: list[object] = [("all", *cells), *([(checksum, *measured)] if checksum is not None else [])]
        group = next((groups[key] for key in keys if key in groups), [])
        group.append(row)
        groups |= dict.fromkeys(keys, group)
    return [rows for rows in {rows[0]: rows for rows in groups.values()}.values() if len(rows) > 1]


def _read_rows(table: "DataFrame", names: Sequence[str]) -> list[tuple[object, ...]]:
    """Return the cells of some columns, None where one is missing: this equals itself, which NaN does not."""
    columns = ([None if cell != cell else cell for cell in table[name].tolist()] for name in names)
    return list(zip(*columns, strict=True))


def group_rows(table: "DataFrame", names: Sequence[str]) -> dict[str, Indices]:
    """Return the rows of each stratum, a combination of values, by its name and in order of appearance."""
    groups: dict[str, list[int]] = {}
    for row, cells in enumerate(zip(*(table[name].tolist() for name in names), strict=True)):
        # Whole numbers are read from a file as floats.
        texts = (str(cell).removesuffix(".0") if isinstance(cell, float) else str(cell) for cell in cells)
        groups.setdefault(", ".join(texts), []).append(row)
    return {name: np.array(rows, dtype=np.int64) for name, rows in groups.items()}


def find_unfit(table: "DataFrame", target: str, strata: Sequence[str], clusters: Sequence[str]) -> dict[str, str]:
    """Return why some strata cannot be ranked; without ``clusters`` each model is resampled by itself."""
    reasons = {}
    for name, rows in group_rows(table, strata).items():
        inside, models = table.iloc[rows], pluralize(len(rows), "model")
        count = len(inside[list(clusters)].drop_duplicates()) if clusters else len(rows)
        if len(rows) < MIN_STRATUM:
            reasons[name] = f"{models}, fewer than {MIN_STRATUM}"
        elif count < MIN_CLUSTERS:
            reasons[name] = f"{models} of {pluralize(count, 'configuration')}, fewer than {MIN_CLUSTERS}"
        elif inside[target].nunique() == 1:
            reasons[name] = f"{target} is {inside[target].iloc[0]:g} for all of its {models}"
    return reasons
