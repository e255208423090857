"""Tables of models, and the pool that one is: its columns with their roles, checked and ready to be ranked."""

import csv
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from itertools import combinations
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from effdeg import proxies
from effdeg._utils.checks import check_number, pluralize, suggest
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
            first line. There a column holds numbers if every cell is one or is missing (empty, ``NA``, ``N/A``,
            ``NaN`` or ``null``), and text otherwise. A column without a name, such as an index, is left out.

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
    if isinstance(table, Mapping):
        names = list(table)
    elif hasattr(table, "columns"):
        # The `columns` of pyarrow are the columns themselves.
        names = list(getattr(table, "column_names", table.columns))
        _check_names(where, names)
    elif isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        table = {name: [row.get(name) for row in table] for name in names}
    else:
        raise TypeError(
            f"the table is of type {type(table).__name__}; give a dict of columns, a list of dicts (one per model), a "
            "data frame, or the path of a .csv or .parquet file."
        )
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
    if any(map(_is_number, column)):
        column = column.map(_read_number)
    if all(cell is None or _is_number(cell) for cell in column):
        numbers = column.infer_objects()
        return numbers if numbers.dtype.kind == "i" else column.astype(float)
    return column.where(column.notna(), None)


def _is_number(cell: object) -> bool:
    return isinstance(cell, Real) and not isinstance(cell, bool)


def _read_number(cell: Any) -> Any:
    """Return the number that a text among numbers holds; anything else as it is."""
    for read in (int, float) if isinstance(cell, str) and "_" not in cell else ():  # Python reads 1_0 as 10
        with suppress(ValueError):
            return read(cell) if math.isfinite(read(cell)) else cell
    return cell


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
    with suppress(ValueError):
        if not any("_" in text for text in texts):  # Python reads 1_0 as 10
            return [None if text.lower() in _MISSING else float(text) for text in texts]
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


Indices = NDArray[np.int64]

FITTED, TESTED = "train_accuracy", "test_accuracy"
"""The columns with the accuracies on the training examples and on others."""
FITS = 0.99
"""The training accuracy from which on a model counts as one that fits, unless another is given."""
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


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Models with their generalization gaps, measures and hyperparameters: the ``pool`` of a :class:`Ranking`.

    Example:
        >>> from effdeg.pools import rank
        >>> table = {"lr": [0.1, 0.1, 0.3], "degree": [1.0, 2.0, 3.0], "gap": [0.1, 0.3, 0.2]}
        >>> pool = rank(table, hyperparameters=["lr"], resamples=100).pool
        >>> len(pool), pool.cluster_count, list(pool.measures), pool.levels["lr"]
        (3, 2, ['degree'], [0.1, 0.3])

    Attributes:
        table: The rows that are ranked, by the models' names or the numbers of their rows; hyperparameters are
            categories: numbers in increasing order, anything else by name.
        target: The name of the column that measures should predict, perhaps with a leading minus.
        sources: The column of each measure; measures with a leading minus are negated.
        hyperparameters: The columns that say how a model was trained.
        clustered_by: The hyperparameters whose combinations are resampled together, if they were named.
        strata_by: The columns whose combinations are the strata.
        stratum: The name of the stratum that all models are in, where there are others.
        left_out: If no measures were named, columns that cannot be any, with what they hold instead of numbers.
        guessed: If no measures were named, those that effdeg does not compute: other columns of numbers.
        duplicates: The names of models whose rows are the same; the first of each group is in the pool.
        fit: The training accuracy that a model needs to be in the pool, if one was given.
        below_fit: The models that do not reach it, or without ``fit`` those of the pool that do not reach 0.99.
        left_out_strata: Why the models of other strata are not in the pool.
    """

    table: "DataFrame"
    target: str
    sources: Mapping[str, str]
    hyperparameters: Sequence[str] = ()
    clustered_by: Sequence[str] = ()
    strata_by: Sequence[str] = ()
    stratum: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    guessed: Sequence[str] = ()
    duplicates: Sequence[Sequence[str]] = ()
    fit: float | None = None
    below_fit: Sequence[str] = ()
    left_out_strata: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def names(self) -> list[str]:
        """The models' names, or the numbers of their rows."""
        return self.table.index.tolist()

    def _read(self, name: str, column: str) -> Array:
        values = self.table[column].to_numpy(dtype=np.float64)
        return values if name == column else -values

    @cached_property
    def gaps(self) -> Array:
        """The target for each model."""
        return self._read(self.target, _find_column(self.target, self.table))

    @cached_property
    def values(self) -> dict[str, Array]:
        """The values of each measure, NaN where one is missing."""
        return {name: self._read(name, column) for name, column in self.sources.items()}

    @cached_property
    def undefined(self) -> dict[str, str]:
        """Why some of the measures cannot be ranked."""
        reasons = {name: self._explain_undefined(values) for name, values in self.values.items()}
        return {name: f"{reason}: correlation undefined" for name, reason in reasons.items() if reason}

    @property
    def measures(self) -> dict[str, Array]:
        """The values of each measure that can be ranked, finite for all models and not constant."""
        return {name: values for name, values in self.values.items() if name not in self.undefined}

    @cached_property
    def codes(self) -> dict[str, Indices]:
        """The number 0, 1, … of each model's value of each hyperparameter, among its ``levels``."""
        return {name: self.table[name].cat.codes.to_numpy().astype(np.int64) for name in self.hyperparameters}

    @property
    def levels(self) -> dict[str, list[Any]]:
        """The values of each hyperparameter, in order."""
        return {name: self.table[name].cat.categories.tolist() for name in self.hyperparameters}

    @cached_property
    def clusters(self) -> Indices:
        """The cluster 0, 1, … of each model; models of one cluster are resampled together."""
        if not (by := list(self.clustered_by or self.hyperparameters)):
            return np.arange(len(self))
        by = list(dict.fromkeys([*by, *self.strata_by]))
        return self.table.groupby(by, sort=False, observed=True).ngroup().to_numpy().astype(np.int64)

    @property
    def cluster_count(self) -> int:
        """The number of clusters, as many as models if each is a cluster of its own."""
        return int(self.clusters.max()) + 1

    @cached_property
    def strata(self) -> dict[str, Indices]:
        """The models of each stratum, by its name; empty without strata, and within one."""
        return group_rows(self.table, self.strata_by) if self.strata_by and self.stratum is None else {}

    @property
    def least_clusters(self) -> int:
        """The number of clusters in the stratum that has the fewest; without strata the number of all."""
        return min([len(np.unique(self.clusters[rows])) for rows in self.strata.values()], default=self.cluster_count)

    @property
    def clustered(self) -> bool:
        """Whether some models are resampled together."""
        return self.cluster_count < len(self)

    def describe_stratum(self) -> str:
        """Describe the stratum that all models are in: ``recipe mixup``, or by several settings ``mixup, 4``."""
        return f"{self.strata_by[0]} {self.stratum}" if len(self.strata_by) == 1 else str(self.stratum)

    def describe_clusters(self) -> str:
        """Describe the clusters and how many there are."""
        if not self.clustered_by:
            return pluralize(self.cluster_count, "configuration")
        names = [name for name in self.clustered_by if name not in self.strata_by]
        within = f" within {join(self.strata_by)}" if self.strata else ""
        return f"{pluralize(self.cluster_count, 'combination')} of {join(names)}{within}"

    def select(self, stratum: str) -> "Pool":
        """Return the pool of the models of one stratum; measures constant or not finite there are undefined."""
        inside = self.table.iloc[self.strata[stratum]]
        inside = inside.assign(**{name: inside[name].cat.remove_unused_categories() for name in self.hyperparameters})
        described: Any = {"left_out": {}, "guessed": (), "duplicates": (), "below_fit": (), "left_out_strata": {}}
        return replace(self, table=inside, stratum=stratum, **described)

    def _explain_undefined(self, values: Array) -> str | None:
        if missing := [name for name, value in zip(self.names, values, strict=True) if not np.isfinite(value)]:
            return f"not finite for {_list_models(missing) if len(missing) < len(self) else f'all {len(self)} models'}"
        if np.all(values == values[0]):
            return "constant"
        inside = [bool(np.all(values[rows] == values[rows[0]])) for rows in self.strata.values()]
        return "constant within each stratum" if inside and all(inside) else None

    @classmethod
    def from_table(
        cls,
        table: "DataFrame",
        target: str,
        measures: Sequence[str] | None = None,
        hyperparameters: Sequence[str] = (),
        clusters: Sequence[str] | None = None,
        strata: Sequence[str] = (),
        fit: float | None = None,
    ) -> "Pool":
        """Choose from the columns of a table and check them; see :func:`effdeg.pools.rank`."""
        known = [str(name) for name in table]
        if target == "gap" and target not in known and CHECKSUM in known:
            raise ValueError(
                "the table has no column 'gap' for the target: a pool has one if both its data and its training "
                "examples have labels. To rank by another column, name it: target=…."
            )
        _check_known("target", [target], known, may_be_negated=True)
        _check_known("hyperparameter", hyperparameters, known)
        _check_known("stratum", strata, known)
        _check_clusters(clusters, hyperparameters)
        gap, settings = _find_column(target, table), dict.fromkeys([*hyperparameters, *strata])
        model = "model" if "model" in table and "model" not in {gap, *settings, *(measures or ())} else None
        guessed: list[str] = []
        left_out: list[str] = []
        if measures is None:
            measures, guessed, left_out = _choose_measures(table, gap, {gap, model, *settings})
        _check_known("measure", measures, known, may_be_negated=True)
        sources = {name: _find_column(name, table) for name in measures}
        _check_roles(gap, hyperparameters, strata, sources.values())
        names = list(range(1, len(table) + 1)) if model is None else table[model].tolist()
        table = table.set_axis([format_cell(name) for name in names])
        if not measures:
            for name in left_out:
                if any(map(_reads_as_number, table[name])):  # a single text makes a column of texts
                    _check_numbers("column", name, table)
            text = "; ".join(f"{name!r} holds {table[name].iloc[0]!r}" for name in left_out[:3])
            text = f" ({text})" if text else ""
            raise ValueError(f"the table has no column of numbers besides the target {gap!r} to rank it by{text}.")
        table = round_settings(table, settings)
        groups = find_duplicates(table, [gap, *sources.values()], list(settings), model)
        duplicates = [table.index[rows].tolist() for rows in groups]
        table = table.iloc[np.setdiff1d(np.arange(len(table)), [row for rows in groups for row in rows[1:]])]
        if len(table) < 3:
            once = "; rows of the same model count once" if groups else ""
            raise ValueError(f"a ranking needs at least 3 models; the table has {len(table)}{once}.")
        below_fit: list[str] = []
        if fit is not None:
            _check_fit(fit, table)
            below = _find_below(table, fit)
            below_fit, table = table.index[below].tolist(), table[~below]
        _check_numbers("target", gap, table)
        _check_gaps(table[gap], gap)
        for name in sources.values():
            _check_numbers("measure", name, table)
        for name in (*hyperparameters, *strata):
            if missing := table.index[table[name].isna()].tolist():
                kind, example = ("hyperparameter", "0 or 'off'") if name in hyperparameters else ("stratum", "'plain'")
                which = _list_models(missing)
                raise ValueError(f"the {kind} {name!r} is missing for {which}; write a value, such as {example}.")
        described = {name: _describe_content(table[name]) for name in left_out}
        unfit: dict[str, str] = {}
        if strata:
            inside = group_rows(table, strata)
            unfit = _find_unfit(table, gap, inside, clusters or hyperparameters)
            _check_strata(strata, len(inside), unfit, fit)
            table = table.iloc[np.sort(np.concatenate([rows for name, rows in inside.items() if name not in unfit]))]
        return cls(
            table=table.assign(**{name: _as_categories(table[name]) for name in hyperparameters}),
            target=target,
            sources=sources,
            hyperparameters=list(hyperparameters),
            clustered_by=list(clusters or ()),
            strata_by=list(strata),
            left_out=described,
            guessed=guessed,
            duplicates=duplicates,
            fit=fit,
            below_fit=table.index[_find_below(table, find_least_fit(table))].tolist() if fit is None else below_fit,
            left_out_strata=unfit,
        )


def format_cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _find_column(name: str, table: "DataFrame") -> str:
    return name if name in table else name[1:]


def _choose_measures(
    table: "DataFrame", target: str, taken: Iterable[str | None]
) -> tuple[list[str], list[str], list[str]]:
    """Return the columns without a role: measures, those among them that effdeg does not compute, and no numbers."""
    # A gap is the difference of the accuracies, so none of the three is a prediction of the others.
    parts = {"gap": {FITTED, TESTED}, FITTED: {"gap"}, TESTED: {"gap"}}.get(target, set())
    free = [str(name) for name in table if name not in {*taken, *parts}]
    free = [name for name in free if not name.partition("@")[0].endswith("_stderr")]  # error bars of others
    larger = {name.partition("@")[0]: proxies.larger_is_better(name) for name in proxies.names()}
    larger |= {"gap": False, FITTED: True, TESTED: True}
    # Less a number and the examples: ``margin`` for ``margin@10_test``.
    kinds = {name: name.partition("@")[0].removesuffix("_test").removesuffix("_random_pixels") for name in free}
    numbers = {name: kind for name, kind in kinds.items() if is_numeric(table[name])}
    measures = [f"-{name}" if larger.get(family) else name for name, family in numbers.items()]
    guessed = [name for name, family in numbers.items() if family not in larger]
    return measures, guessed, [name for name in free if name not in numbers]


def find_duplicates(
    table: "DataFrame", ranked: Sequence[str], settings: Sequence[str], model: str | None
) -> list[list[int]]:
    """Return the groups of rows that are one model; text without a role, such as the name of a file, does not count.

    With the same checksum it is enough to agree in what is ranked.
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
    groups: dict[tuple[str, ...], list[int]] = {}
    for row, cells in enumerate(zip(*(table[name].tolist() for name in names), strict=True)):
        # Whole numbers are read from a file as floats.
        texts = (str(cell).removesuffix(".0") if isinstance(cell, float) else str(cell) for cell in cells)
        groups.setdefault(tuple(texts), []).append(row)
    joined = Counter(", ".join(cells) for cells in groups)
    return {
        ", ".join(cells if joined[", ".join(cells)] == 1 else map(repr, cells)): np.array(rows, dtype=np.int64)
        for cells, rows in groups.items()
    }


def round_settings(table: "DataFrame", names: Iterable[str]) -> "DataFrame":
    """Return a table in which settings that are equal up to rounding are equal: 0.3, 3 * 0.1 and numpy.float32(0.3)."""

    def round_cell(cell: float) -> float:
        if cell.is_integer():
            return cell
        with np.errstate(over="ignore", under="ignore"):
            short = np.float32(cell)
        return float(str(short)) if float(short) == cell else float(f"{cell:.12g}")

    return table.assign(**{name: table[name].map(round_cell) for name in names if table[name].dtype == float})


def _find_unfit(
    table: "DataFrame", target: str, strata: Mapping[str, Indices], clusters: Sequence[str]
) -> dict[str, str]:
    """Return why some strata cannot be ranked; without ``clusters`` each model is resampled by itself."""
    reasons = {}
    for name, rows in strata.items():
        inside, models = table.iloc[rows], pluralize(len(rows), "model")
        count = len(inside[list(clusters)].drop_duplicates()) if clusters else len(rows)
        if len(rows) < MIN_STRATUM:
            reasons[name] = f"{models}, fewer than {MIN_STRATUM}"
        elif count < MIN_CLUSTERS:
            reasons[name] = f"{models} of {pluralize(count, 'configuration')}, fewer than {MIN_CLUSTERS}"
        elif inside[target].nunique() == 1:
            reasons[name] = f"{target} is {inside[target].iloc[0]:g} for all of its {models}"
    return reasons


def _as_categories(column: "Series[Any]") -> "Series[Any]":
    """Return a hyperparameter as categories: numbers in their order, anything else without one, by name."""
    ordered = is_numeric(column)
    levels = sorted(column.unique(), key=None if ordered else lambda level: (str(level), type(level).__name__))
    pandas = require("pandas", extra="pools", purpose="a ranking")
    return column.astype(pandas.CategoricalDtype(levels, ordered=ordered))


def _check_list(kind: str, names: Sequence[str]) -> None:
    if isinstance(names, str):
        kinds = "strata" if kind == "stratum" else f"{kind}s"
        raise TypeError(f"{kinds} must be a list of names, such as [{names!r}], not a single string.")


def _check_known(kind: str, names: Sequence[str], known: Sequence[str], *, may_be_negated: bool = False) -> None:
    _check_list(kind, names)
    for index, name in enumerate(names):
        if name not in known and not (may_be_negated and name[:1] == "-" and name[1:] in known):
            hint = suggest(name.removeprefix("-") if may_be_negated else name, known)
            raise ValueError(f"the table has no column {name!r} for the {kind}. {hint}")
        if name in names[:index]:
            raise ValueError(f"the {kind} {name!r} was given twice.")


def _check_clusters(clusters: Sequence[str] | None, hyperparameters: Sequence[str]) -> None:
    _check_list("cluster", clusters or ())
    if clusters is not None and not clusters:
        raise ValueError("clusters=[] is empty: leave it out, or name hyperparameters.")
    if unknown := [name for name in clusters or () if name not in hyperparameters]:
        hint = suggest(unknown[0], hyperparameters) if hyperparameters else "Name it with hyperparameters=… too."
        raise ValueError(f"clusters are combinations of hyperparameters, and {unknown[0]!r} is not one of them. {hint}")


def _check_strata(strata: Sequence[str], count: int, unfit: Mapping[str, str], fit: float | None) -> None:
    if len(unfit) < count:
        return
    reasons = "; ".join([f"{name}: {reason}" for name, reason in unfit.items()][:3] + ["…"] * (len(unfit) > 3))
    advice = "Name a column with few values, such as the recipe that a model was trained by."
    if any("configuration" in reason for reason in unfit.values()):
        advice = "Name every hyperparameter in which models differ: hyperparameters=…."
    elif fit is not None:
        advice = f"Models with a {FITTED} below fit={fit:g} are left out: choose a lower one, or rank without strata=…."
    raise ValueError(f"no stratum of {join(strata)} can be ranked ({reasons}). {advice}")


def _check_roles(target: str, hyperparameters: Sequence[str], strata: Sequence[str], measures: Collection[str]) -> None:
    """Raise if a column has two roles: a measure that is the target itself would rank it perfectly."""
    roles: dict[str, Collection[str]] = {
        "the target": [target],
        "a hyperparameter": hyperparameters,
        "a stratum": [name for name in strata if name not in hyperparameters],  # which may well define the strata
        "a measure": measures,
    }
    for (role, names), (other, others) in combinations(roles.items(), 2):
        if shared := [name for name in names if name in others]:
            raise ValueError(f"the column {shared[0]!r} is given as {role} and as {other}; it can be only one.")


def _check_numbers(kind: str, name: str, table: "DataFrame") -> None:
    if (row := _find_text(table[name])) is not None:
        raise ValueError(
            f"the {kind} {name!r} must be numbers, but model {table.index[row]} has {table[name].iloc[row]!r}; write a "
            "number with a decimal point, or leave the cell empty if there is none."
        )


def _find_text(column: "Series[Any]") -> int | None:
    """Return the first row that does not hold a number; in a column of texts, rather one that does not read as one."""
    wrong = [row for row, cell in enumerate(column) if type(cell) not in {int, float, type(None)}]
    wrong = [] if is_numeric(column) else wrong
    return next((row for row in wrong if not _reads_as_number(column.iloc[row])), wrong[0] if wrong else None)


def _describe_content(column: "Series[Any]") -> str:
    if set(column.dropna().map(str)) <= {"True", "False"}:
        return "True and False"
    row = _find_text(column)
    if row is None or not any(map(_reads_as_number, column)):
        return "text"
    return f"{column.iloc[row]!r} (model {column.index[row]}) among numbers"


def _reads_as_number(cell: Any) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _check_fit(fit: float, table: "DataFrame") -> None:
    check_number("fit", fit, "it is the least training accuracy, such as 0.99")
    if FITTED not in table:
        raise ValueError(f"fit={fit:g} needs a column {FITTED!r} in the table; a pool has one if train=… had labels.")
    _check_numbers("column", FITTED, table)
    if fit <= 1 and bool((table[FITTED] > 1).any()):
        raise ValueError(
            f"fit={fit:g} is a share, but {FITTED!r} goes above 1, as percentages do: give fit={100 * fit:g}."
        )
    if (count := len(table) - int(_find_below(table, fit).sum())) < 3:
        raise ValueError(
            f"a ranking needs at least 3 models; with fit={fit:g}, {count} of {len(table)} are left, the others have a "
            f"lower {FITTED}."
        )


def find_least_fit(table: "DataFrame") -> float:
    """Return the least training accuracy of a model that fits, as a percentage if the table has percentages."""
    percentages = FITTED in table and is_numeric(table[FITTED]) and bool((table[FITTED] > 1).any())
    return 100 * FITS if percentages else FITS


def _find_below(table: "DataFrame", fit: float) -> NDArray[np.bool_]:
    """Return which training accuracies are below ``fit`` or missing; none if the table has no such column."""
    known = FITTED in table and is_numeric(table[FITTED])
    return ~(table[FITTED] >= fit).to_numpy() if known else np.zeros(len(table), dtype=bool)


def _check_gaps(gaps: "Series[Any]", target: str) -> None:
    if missing := gaps.index[~np.isfinite(gaps)].tolist():
        which = _list_models(missing)
        raise ValueError(f"the target {target!r} is missing or not finite for {which}: fill it in or drop the row.")
    if gaps.nunique() == 1:
        advice = " Were all accuracies measured on the same examples?" if target == "gap" and not gaps.any() else ""
        raise ValueError(
            f"the target {target!r} is {gaps.iloc[0]:g} for all {len(gaps)} models: nothing to rank.{advice}"
        )


def _list_models(models: Sequence[str]) -> str:
    if len(models) == 1:
        return f"model {models[0]}"
    return f"models {join([*models[:4], f'{len(models) - 4} more'] if len(models) > 5 else models)}"


def join(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
