"""A pool of models: what was measured on each, checked and ready to be ranked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.checks import pluralize, suggest
from effdeg.ranking._tables import Array, Columns, as_numbers, is_number

Indices = NDArray[np.int64]

# Half of the resamples of two configurations are copies of one of them.
MIN_CLUSTERS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Models with their generalization gaps, measures and hyperparameters: the ``pool`` of a :class:`Ranking`.

    Example:
        >>> from effdeg.ranking import rank
        >>> table = {"lr": [0.1, 0.1, 0.3], "degree": [1.0, 2.0, 3.0], "gap": [0.1, 0.3, 0.2]}
        >>> pool = rank(table, hyperparameters=["lr"], resamples=100).pool
        >>> len(pool), pool.cluster_count, list(pool.measures), pool.levels["lr"]
        (3, 2, ['degree'], [0.1, 0.3])

    Attributes:
        names: The models' names, or the numbers of their rows.
        target: The name of the column that measures should predict.
        gaps: Its value for each model.
        measures: The values of each measure that can be ranked: finite for all models and not constant.
        undefined: Why each of the other measures cannot be ranked.
        hyperparameters: The codes 0, 1, … of each hyperparameter: numbers in increasing order, anything else by name.
        levels: The value behind each code.
        clusters: The cluster 0, 1, … of each model; models of one cluster are resampled together.
        clustered_by: The hyperparameters whose combinations are the clusters, if they were named.
        negated: Measures that were named with a leading minus.
        left_out: Columns of text, which cannot be measures, if no measures were named.
    """

    names: Sequence[str]
    target: str
    gaps: Array
    measures: Mapping[str, Array]
    undefined: Mapping[str, str]
    hyperparameters: Mapping[str, Indices]
    levels: Mapping[str, Sequence[Any]]
    clusters: Indices
    clustered_by: Sequence[str] = ()
    negated: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.gaps)

    @property
    def cluster_count(self) -> int:
        """The number of clusters: as many as models if each is a cluster of its own."""
        return int(self.clusters.max()) + 1

    @property
    def clustered(self) -> bool:
        """Whether some models are resampled together."""
        return self.cluster_count < len(self)

    def describe_clusters(self) -> str:
        """Describe the clusters and how many there are."""
        if not self.clustered_by:
            return pluralize(self.cluster_count, "configuration")
        return f"{pluralize(self.cluster_count, 'combination')} of {_join(self.clustered_by)}"

    @classmethod
    def from_columns(
        cls,
        columns: Columns,
        target: str,
        measures: Sequence[str] | None = None,
        hyperparameters: Sequence[str] = (),
        clusters: Sequence[str] | None = None,
        model: str | None = None,
    ) -> "Pool":
        """Choose from the columns of a table and check them; see :func:`effdeg.ranking.rank`."""
        _check_known("target", [target], columns)
        _check_known("hyperparameter", hyperparameters, columns)
        _check_known("model column", [] if model is None else [model], columns)
        _check_clusters(clusters, hyperparameters)
        if model is None and "model" in columns and "model" not in {target, *hyperparameters, *(measures or ())}:
            model = "model"
        left_out: list[str] = []
        if measures is None:
            free = [name for name in columns if name not in {target, model, *hyperparameters}]
            measures = [name for name in free if as_numbers(columns[name]) is not None]
            left_out = [name for name in free if name not in measures]
        _check_known("measure", measures, columns, may_be_negated=True)
        sources = {name: name if name in columns else name[1:] for name in measures}
        _check_roles(target, hyperparameters, model, sources.values())
        if not measures:
            raise ValueError(f"the table has no column of numbers besides the target {target!r} to rank it by.")
        rows = range(1, len(columns[target]) + 1)
        names = list(map(str, rows)) if model is None else [format_cell(cell) for cell in columns[model]]
        if len(names) < 3:
            raise ValueError(f"a ranking needs at least 3 models; the table has {len(names)}.")
        gaps = _check_gaps(_get_numbers(columns, target, "target", names), target, names)
        values = {name: _get_numbers(columns, source, "measure", names) for name, source in sources.items()}
        values = {name: value if name in columns else -value for name, value in values.items()}
        reasons = {name: _explain_undefined(value, names) for name, value in values.items()}
        encoded = {name: _encode(columns[name], name, names) for name in hyperparameters}
        return cls(
            names=names,
            target=target,
            gaps=gaps,
            measures={name: value for name, value in values.items() if reasons[name] is None},
            undefined={name: reason for name, reason in reasons.items() if reason is not None},
            hyperparameters={name: codes for name, (codes, _) in encoded.items()},
            levels={name: levels for name, (_, levels) in encoded.items()},
            clusters=_number_clusters([encoded[name][0] for name in clusters or hyperparameters], len(names)),
            clustered_by=list(clusters or ()),
            negated=[name for name in measures if name not in columns],
            left_out=left_out,
        )


def format_cell(value: Any) -> str:
    """Format a cell for a reader: numbers without needless digits."""
    return f"{value:g}" if is_number(value) and value is not None else str(value)


def _check_list(kind: str, names: Sequence[str]) -> None:
    if isinstance(names, str):
        raise TypeError(f"{kind}s must be a list of names, such as [{names!r}], not a single string.")


def _check_known(kind: str, names: Sequence[str], columns: Columns, *, may_be_negated: bool = False) -> None:
    _check_list(kind, names)
    for index, name in enumerate(names):
        if name not in columns and not (may_be_negated and name[:1] == "-" and name[1:] in columns):
            hint = suggest(name.removeprefix("-") if may_be_negated else name, columns)
            raise ValueError(f"the table has no column {name!r} for the {kind}. {hint}")
        if name in names[:index]:
            raise ValueError(f"the {kind} {name!r} was given twice.")


def _check_clusters(clusters: Sequence[str] | None, hyperparameters: Sequence[str]) -> None:
    if clusters is None:
        return
    _check_list("cluster", clusters)
    if not clusters:
        raise ValueError("clusters=[] is empty: leave it out, or name hyperparameters.")
    for name in clusters:
        if name not in hyperparameters:
            hint = suggest(name, hyperparameters) if hyperparameters else "No hyperparameters were named."
            raise ValueError(f"clusters are combinations of hyperparameters, and {name!r} is not one of them. {hint}")


def _check_roles(target: str, hyperparameters: Sequence[str], model: str | None, measures: Iterable[str]) -> None:
    """Raise if a column has two roles: a measure that is the target itself would rank it perfectly."""
    roles = [(target, "the target"), *((name, "a hyperparameter") for name in hyperparameters)]
    roles += [] if model is None else [(model, "the model column")]
    taken: dict[str, str] = {}
    for name, role in [*roles, *((name, "a measure") for name in measures)]:
        if taken.setdefault(name, role) != role:
            raise ValueError(f"the column {name!r} is given as {taken[name]} and as {role}; it can be only one.")


def _get_numbers(columns: Columns, name: str, kind: str, names: Sequence[str]) -> Array:
    values = as_numbers(columns[name])
    if values is None:
        # In a column of text the numbers are texts too: point at a cell that is not one of them, if there is any.
        wrong = [row for row, cell in enumerate(columns[name]) if not is_number(cell)]
        row = next((row for row in wrong if not _reads_as_number(columns[name][row])), wrong[0])
        raise ValueError(
            f"the {kind} {name!r} must be numbers, but model {names[row]} has {columns[name][row]!r}; write a number "
            "with a decimal point, or leave the cell empty if there is none."
        )
    return values


def _reads_as_number(cell: Any) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _check_gaps(gaps: Array, target: str, names: Sequence[str]) -> Array:
    """Return the gaps; raise unless all are finite and some differ."""
    if missing := _find_nonfinite(gaps, names):
        which = _list_models(missing)
        raise ValueError(f"the target {target!r} is missing or not finite for {which}: fill it in or drop the row.")
    if np.all(gaps == gaps[0]):
        raise ValueError(f"the target {target!r} is {gaps[0]:g} for all {len(gaps)} models: nothing to rank.")
    return gaps


def _explain_undefined(values: Array, names: Sequence[str]) -> str | None:
    if missing := _find_nonfinite(values, names):
        which = _list_models(missing) if len(missing) < len(names) else f"all {len(names)} models"
        return f"not finite for {which}: correlation undefined"
    return "constant: correlation undefined" if np.all(values == values[0]) else None


def _find_nonfinite(values: Array, names: Sequence[str]) -> list[str]:
    return [name for name, value in zip(names, values, strict=True) if not np.isfinite(value)]


def _encode(column: list[Any], name: str, names: Sequence[str]) -> tuple[Indices, list[Any]]:
    """Return the code of each cell and the value behind each code."""
    # A nan is the only number that differs from itself.
    if missing := [model for model, cell in zip(names, column, strict=True) if cell is None or cell != cell]:
        which = _list_models(missing)
        raise ValueError(f"the hyperparameter {name!r} is missing for {which}; write a value, such as 0 or 'off'.")
    ordered = all(is_number(cell) for cell in column)
    levels = sorted(dict.fromkeys(column), key=None if ordered else lambda level: (str(level), type(level).__name__))
    codes = {level: code for code, level in enumerate(levels)}
    return np.array([codes[cell] for cell in column], dtype=np.int64), levels


def _number_clusters(codes: list[Indices], models: int) -> Indices:
    """Number the combinations of codes in order of appearance; without codes each model is a cluster of its own."""
    combinations = list(zip(*codes, strict=True)) if codes else [(model,) for model in range(models)]
    numbers = {combination: number for number, combination in enumerate(dict.fromkeys(combinations))}
    return np.array([numbers[combination] for combination in combinations], dtype=np.int64)


def _list_models(models: Sequence[str]) -> str:
    if len(models) == 1:
        return f"model {models[0]}"
    return f"models {_join([*models[:4], f'{len(models) - 4} more'] if len(models) > 5 else models)}"


def _join(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
