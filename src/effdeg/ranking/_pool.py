"""A pool of models: what was measured on each, checked and ready to be ranked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effdeg._utils.checks import suggest
from effdeg.ranking._tables import Array, Columns, counted, has_decimal_commas, is_number, is_written_number, numbers

# Resamples of two configurations are mostly copies of one of them.
FEWEST_CLUSTERS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Pool:
    """Models with their generalization gaps, measures and hyperparameters.

    Attributes:
        names: The models' names, or the numbers of their rows.
        target: The name of what is to be predicted.
        gaps: Its value for each model.
        measures: Each measure that can be ranked: finite for all models and not constant.
        undefined: Why each of the other measures cannot.
        hyperparameters: Each hyperparameter as codes 0, 1, …: numbers by size, anything else by name.
        levels: The value behind each code.
        clusters: The cluster 0, 1, … of each model: models of one cluster are resampled together.
        clustered_by: The hyperparameters whose combinations are the clusters, if they were named.
        turned: Measures that a leading minus turned round.
        left_out: Columns of text, which were not asked for and cannot be measures.
    """

    names: Sequence[str]
    target: str
    gaps: Array
    measures: Mapping[str, Array]
    undefined: Mapping[str, str]
    hyperparameters: Mapping[str, NDArray[np.int64]]
    levels: Mapping[str, Sequence[Any]]
    clusters: NDArray[np.int64]
    clustered_by: Sequence[str] = ()
    turned: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.gaps)

    @property
    def cluster_count(self) -> int:
        """How many clusters there are: as many as models if each is one by itself."""
        return int(self.clusters.max()) + 1

    @property
    def clustered(self) -> bool:
        """Whether some models are resampled together."""
        return self.cluster_count < len(self)

    def describe_clusters(self) -> str:
        """Describe what the clusters are, and how many."""
        if not self.clustered_by:
            return counted(self.cluster_count, "configuration")
        return f"{counted(self.cluster_count, 'combination')} of {_joined(self.clustered_by)}"

    @classmethod
    def of(
        cls,
        columns: Columns,
        *,
        target: str,
        measures: Sequence[str] | None,
        hyperparameters: Sequence[str],
        model: str | None,
        clusters: Sequence[str] | None = None,
    ) -> "Pool":
        """Choose from a table's columns and check them; see :func:`effdeg.ranking.rank`."""
        _check_known("target", [target], columns)
        _check_known("hyperparameter", hyperparameters, columns)
        _check_known("model column", [] if model is None else [model], columns)
        _check_clusters(clusters, hyperparameters)
        if model is None and "model" in columns and "model" not in {target, *hyperparameters, *(measures or ())}:
            model = "model"
        left_out: list[str] = []
        if measures is None:
            free = [name for name in columns if name not in {target, model, *hyperparameters}]
            # Decimal commas are a mistake to be told, not a reason to leave a measure out.
            measures = [
                name for name in free if numbers(columns[name]) is not None or has_decimal_commas(columns[name])
            ]
            left_out = [name for name in free if name not in measures]
        _check_known("measure", measures, columns, turned=True)
        _check_parts(columns, target=target, measures=measures, hyperparameters=hyperparameters, model=model)
        if not measures:
            raise ValueError(f"the table has no column of numbers besides the target {target!r} to rank it by.")
        names = _names(columns, target, model)
        if len(names) < 3:
            raise ValueError(f"a ranking needs at least 3 models; the table has {len(names)}.")
        gaps = _numeric(columns, target, "target", names)
        missing = [name for name, gap in zip(names, gaps, strict=True) if not np.isfinite(gap)]
        if missing:
            raise ValueError(
                f"the target {target!r} is missing or not finite for {_listed(missing)}: fill it in or drop the row."
            )
        if np.all(gaps == gaps[0]):
            raise ValueError(f"the target {target!r} is {gaps[0]:g} for all {len(gaps)} models: nothing to rank.")
        values = {name: _measure(columns, name, names) for name in measures}
        reasons = {name: _reason(value, names) for name, value in values.items()}
        coded = {name: _coded(columns[name], name, names) for name in hyperparameters}
        return cls(
            names=names,
            target=target,
            gaps=gaps,
            measures={name: value for name, value in values.items() if reasons[name] is None},
            undefined={name: reason for name, reason in reasons.items() if reason is not None},
            hyperparameters={name: codes for name, (codes, _) in coded.items()},
            levels={name: levels for name, (_, levels) in coded.items()},
            clusters=_clusters([coded[name][0] for name in clusters or hyperparameters], len(names)),
            clustered_by=list(clusters or ()),
            turned=[name for name in measures if name not in columns],
            left_out=left_out,
        )


def shown(value: Any) -> str:
    """Write a cell for a reader: numbers without needless digits."""
    return f"{value:g}" if is_number(value) and value is not None else str(value)


def _check_known(kind: str, names: Sequence[str], columns: Columns, *, turned: bool = False) -> None:
    if isinstance(names, str):
        raise TypeError(f"{kind}s must be a list of names, such as [{names!r}], not a single text.")
    for index, name in enumerate(names):
        if name not in columns and not (turned and name[:1] == "-" and name[1:] in columns):
            hint = suggest(name.removeprefix("-") if turned else name, columns)
            raise ValueError(f"the table has no column {name!r} for the {kind}. {hint}")
        if name in names[:index]:
            raise ValueError(f"the {kind} {name!r} was given twice.")


def _check_clusters(clusters: Sequence[str] | None, hyperparameters: Sequence[str]) -> None:
    if clusters is None:
        return
    if isinstance(clusters, str):
        raise TypeError(f"clusters must be a list of names, such as [{clusters!r}], not a single text.")
    if not clusters:
        raise ValueError("clusters=[] names nothing; leave it out, or name hyperparameters.")
    for name in clusters:
        if name not in hyperparameters:
            hint = suggest(name, hyperparameters) if hyperparameters else "No hyperparameters were named."
            raise ValueError(f"clusters are combinations of hyperparameters, and {name!r} is none of them. {hint}")


def _check_parts(
    columns: Columns, *, target: str, measures: Sequence[str], hyperparameters: Sequence[str], model: str | None
) -> None:
    """Raise if a column has two parts: a measure that is the target itself would rank it perfectly."""
    parts = [(target, "the target"), *((name, "a hyperparameter") for name in hyperparameters)]
    parts += [] if model is None else [(model, "the model column")]
    taken: dict[str, str] = {}
    for name, part in [*parts, *((name if name in columns else name[1:], "a measure") for name in measures)]:
        if taken.setdefault(name, part) != part:
            raise ValueError(
                f"the column {name!r} is given as {taken[name]} and as {part}; it can be only one of them."
            )


def _names(columns: Columns, target: str, model: str | None) -> list[str]:
    if model is None:
        return [str(row) for row in range(1, len(columns[target]) + 1)]
    return [shown(cell) for cell in columns[model]]


def _numeric(columns: Columns, name: str, kind: str, names: Sequence[str]) -> Array:
    values = numbers(columns[name])
    if values is None:
        # In a column of text the numbers are texts too: point at a cell that is not one of them, if there is any.
        wrong = [row for row, cell in enumerate(columns[name]) if not is_number(cell)]
        row = next((row for row in wrong if not is_written_number(columns[name][row])), wrong[0])
        advice = "write the number or leave the cell empty if there is none"
        if has_decimal_commas(columns[name]):
            row = next(row for row in wrong if has_decimal_commas([columns[name][row]]))
            advice = "use a decimal point" + ", or name the measures if this is none" * (kind == "measure")
        raise ValueError(
            f"the {kind} {name!r} must be numbers, but model {names[row]} has {columns[name][row]!r}; {advice}."
        )
    return values


def _measure(columns: Columns, name: str, names: Sequence[str]) -> Array:
    if name in columns:
        return _numeric(columns, name, "measure", names)
    return -_numeric(columns, name[1:], "measure", names)


def _reason(values: Array, names: Sequence[str]) -> str | None:
    missing = [name for name, value in zip(names, values, strict=True) if not np.isfinite(value)]
    if missing:
        which = _listed(missing) if len(missing) < len(names) else f"all {len(names)} models"
        return f"not finite for {which}: correlation undefined"
    return "constant: correlation undefined" if np.all(values == values[0]) else None


def _coded(column: list[Any], name: str, names: Sequence[str]) -> tuple[NDArray[np.int64], list[Any]]:
    # A nan is the only number that differs from itself.
    missing = [model for model, cell in zip(names, column, strict=True) if cell is None or cell != cell]
    if missing:
        raise ValueError(
            f"the hyperparameter {name!r} is missing for {_listed(missing)}; write a value, such as 0 or 'off'."
        )
    levels = list(dict.fromkeys(column))
    if all(is_number(level) for level in levels):
        levels.sort()
    else:
        levels.sort(key=lambda level: (str(level), type(level).__name__))
    codes = {level: code for code, level in enumerate(levels)}
    return np.array([codes[cell] for cell in column], dtype=np.int64), levels


def _clusters(codes: list[NDArray[np.int64]], models: int) -> NDArray[np.int64]:
    """Number the combinations of codes in order of appearance; without codes each model is one by itself."""
    if not codes:
        return np.arange(models)
    combinations = [tuple(row) for row in np.stack(codes, axis=1).tolist()]
    numbered = {combination: number for number, combination in enumerate(dict.fromkeys(combinations))}
    return np.array([numbered[combination] for combination in combinations], dtype=np.int64)


def _listed(models: Sequence[str]) -> str:
    if len(models) == 1:
        return f"model {models[0]}"
    return f"models {_joined([*models[:4], f'{len(models) - 4} more'] if len(models) > 5 else models)}"


def _joined(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
