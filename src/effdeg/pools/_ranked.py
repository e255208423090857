"""A pool of models: what was measured on each, checked and ready to be ranked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from effdeg import proxies
from effdeg._utils.checks import check_number, pluralize, suggest
from effdeg.pools._reading import Array, Columns, as_array, as_numbers, is_missing, is_number
from effdeg.pools._rows import CHECKSUM, Indices, find_duplicates, find_unfit, group_rows, keep_rows

FITTED = "train_accuracy"
"""The column with the accuracy on the training examples."""
FITS = 0.99
"""The training accuracy from which on a model counts as one that fits, unless another is given."""
_ACCURACIES = {FITTED, "test_accuracy"}
# What effdeg measures and for which larger is better, or not; further letters in a column's name say on which examples.
_MEASURED = {name.partition("@")[0]: proxies.larger_is_better(name) for name in proxies.names()}
_MEASURED |= {"gap": False} | dict.fromkeys(_ACCURACIES, True)
_EXAMPLES = ("_test", "_random_pixels")


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
        names: The models' names, or the numbers of their rows.
        target: The name of the column that measures should predict.
        gaps: Its value for each model.
        values: The values of each measure, nan where one is missing.
        undefined: Why some of the measures cannot be ranked.
        hyperparameters: The codes 0, 1, … of each hyperparameter: numbers in increasing order, anything else by name.
        levels: The value behind each code.
        clusters: The cluster 0, 1, … of each model; models of one cluster are resampled together.
        clustered_by: The hyperparameters whose combinations are the clusters, if they were named.
        negated: Measures with a leading minus: named so, or by default those of effdeg for which larger is better.
        left_out: Columns that cannot be measures, if no measures were named, with what they hold instead of numbers.
        guessed: If no measures were named, those that effdeg does not compute: other columns of numbers.
        duplicates: The names of models whose rows are the same; the first of each group is in the pool.
        fit: The training accuracy that a model needs to be in the pool, if one was given.
        below_fit: The models that do not reach it and are left out; without ``fit`` the models of the pool whose
            training accuracy is below 0.99.
        strata_by: The columns whose combinations are the strata.
        strata: The models of each stratum, by its name; empty without strata.
        left_out_strata: Why the models of other strata are not in the pool.
        stratum: The name of the stratum that all models are in, where there are others.
    """

    names: Sequence[str]
    target: str
    gaps: Array
    values: Mapping[str, Array]
    undefined: Mapping[str, str]
    hyperparameters: Mapping[str, Indices]
    levels: Mapping[str, Sequence[Any]]
    clusters: Indices
    clustered_by: Sequence[str] = ()
    negated: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    guessed: Sequence[str] = ()
    duplicates: Sequence[Sequence[str]] = ()
    fit: float | None = None
    below_fit: Sequence[str] = ()
    strata_by: Sequence[str] = ()
    strata: Mapping[str, Indices] = field(default_factory=dict)
    left_out_strata: Mapping[str, str] = field(default_factory=dict)
    stratum: str | None = None

    def __len__(self) -> int:
        return len(self.gaps)

    @property
    def measures(self) -> dict[str, Array]:
        """The values of each measure that can be ranked, finite for all models and not constant."""
        return {name: values for name, values in self.values.items() if name not in self.undefined}

    @property
    def cluster_count(self) -> int:
        """The number of clusters, as many as models if each is a cluster of its own."""
        return int(self.clusters.max()) + 1

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
        rows = self.strata[stratum]
        names = [self.names[row] for row in rows]
        values = {name: each[rows] for name, each in self.values.items()}
        reasons = {name: _explain_undefined(each, names) for name, each in values.items()}
        encoded = {name: np.unique(codes[rows], return_inverse=True) for name, codes in self.hyperparameters.items()}
        return replace(
            self,
            names=names,
            gaps=self.gaps[rows],
            values=values,
            undefined={name: reason for name, reason in reasons.items() if reason is not None},
            hyperparameters={name: codes.reshape(-1) for name, (_, codes) in encoded.items()},
            levels={name: [self.levels[name][code] for code in kept] for name, (kept, _) in encoded.items()},
            clusters=_number_clusters([self.clusters[rows]], len(rows)),
            left_out={},
            guessed=(),
            duplicates=(),
            below_fit=(),
            strata={},
            left_out_strata={},
            stratum=stratum,
        )

    @classmethod
    def from_columns(
        cls,
        columns: Columns,
        target: str,
        measures: Sequence[str] | None = None,
        hyperparameters: Sequence[str] = (),
        clusters: Sequence[str] | None = None,
        model: str | None = None,
        strata: Sequence[str] = (),
        fit: float | None = None,
    ) -> "Pool":
        """Choose from the columns of a table and check them; see :func:`effdeg.pools.rank`."""
        if target == "gap" and target not in columns and CHECKSUM in columns:
            raise ValueError(
                "the table has no column 'gap' for the target: a pool has one if both its data and its training "
                "examples have labels. To rank by another column, name it: target=…."
            )
        _check_known("target", [target], columns, may_be_negated=True)
        given, target = target, target if target in columns else target[1:]
        _check_known("hyperparameter", hyperparameters, columns)
        _check_known("model column", [] if model is None else [model], columns)
        _check_known("stratum", strata, columns)
        _check_clusters(clusters, hyperparameters)
        roles = [target, *hyperparameters, *strata]
        if model is None and "model" in columns and "model" not in {*roles, *(measures or ())}:
            model = "model"
        guessed: list[str] = []
        left_out: list[str] = []
        if measures is None:
            # A gap is the difference of the accuracies, so none of the three is a prediction of the others.
            parts = _ACCURACIES if target == "gap" else {"gap"} if target in _ACCURACIES else set()
            free = [name for name in columns if name not in {model, *roles, *parts}]
            free = [name for name in free if not name.partition("@")[0].endswith("_stderr")]  # error bars of others
            numbers = [name for name in free if as_numbers(columns[name]) is not None]
            left_out = [name for name in free if name not in numbers]
            guessed = [name for name in numbers if _find_family(name) not in _MEASURED]
            measures = [f"-{name}" if _MEASURED.get(_find_family(name)) else name for name in numbers]
        _check_known("measure", measures, columns, may_be_negated=True)
        sources = {name: name if name in columns else name[1:] for name in measures}
        _check_roles(target, hyperparameters, strata, model, sources.values())
        rows = range(1, len(columns[target]) + 1)
        names = list(map(str, rows)) if model is None else [format_cell(cell) for cell in columns[model]]
        if not measures:
            for name in left_out:
                if any(map(_reads_as_number, columns[name])):  # a single text makes a column of texts
                    _check_numbers("column", name, columns, names)
            raise ValueError(f"the table has no column of numbers besides the target {target!r} to rank it by.")
        groups = find_duplicates(columns, [target, *sources.values()], [*hyperparameters, *strata], model)
        repeated = {row for rows in groups for row in rows[1:]}
        kept = [row for row in range(len(names)) if row not in repeated]
        if len(kept) < 3:
            once = "; rows of the same model count once" if repeated else ""
            raise ValueError(f"a ranking needs at least 3 models; the table has {len(kept)}{once}.")
        duplicates = [[names[row] for row in rows] for rows in groups]
        columns, names = keep_rows(columns, kept), [names[row] for row in kept]
        left_out_models: list[str] = []
        if fit is not None:
            _check_fit(fit, columns, names)
            below = _find_below(columns, fit)
            left_out_models = [names[row] for row in below]
            kept = [row for row in range(len(names)) if row not in below]
            columns, names = keep_rows(columns, kept), [names[row] for row in kept]
        _check_numbers("target", target, columns, names)
        _check_gaps(as_array(columns[target]), target, names)
        for name in sources.values():
            _check_numbers("measure", name, columns, names)
        for name in (*hyperparameters, *strata):
            _check_filled("hyperparameter" if name in hyperparameters else "stratum", name, columns, names)
        pool = cls._encode(columns, names, target, sources, hyperparameters, clusters, strata, fit)
        return replace(
            pool,
            target=given,
            gaps=pool.gaps if given == target else -pool.gaps,
            left_out={name: _describe_content(columns[name], names) for name in left_out},
            guessed=guessed,
            duplicates=duplicates,
            below_fit=pool.below_fit if fit is None else left_out_models,
        )

    @classmethod
    def _encode(
        cls,
        columns: Columns,
        names: list[str],
        target: str,
        sources: Mapping[str, str],
        hyperparameters: Sequence[str],
        clusters: Sequence[str] | None,
        strata: Sequence[str],
        fit: float | None,
    ) -> "Pool":
        """Turn checked columns into arrays, without the strata that cannot be ranked."""
        resampled = list(clusters or hyperparameters)
        unfit: dict[str, str] = {}
        groups: dict[str, list[int]] = {}
        if strata:
            unfit = find_unfit(columns, target, strata, resampled)
            groups = group_rows(columns, strata)
            rows = sorted(row for name, rows in groups.items() if name not in unfit for row in rows)
            _check_strata(strata, groups, unfit, fit)
            columns, names = keep_rows(columns, rows), [names[row] for row in rows]
            groups = group_rows(columns, strata)
        inside = [np.array(rows, dtype=np.int64) for rows in groups.values()]
        values = {name: as_array(columns[source]) for name, source in sources.items()}
        values = {name: value if name in columns else -value for name, value in values.items()}
        reasons = {name: _explain_undefined(value, names, inside) for name, value in values.items()}
        encoded = {name: _encode(columns[name]) for name in hyperparameters}
        codes = [encoded[name][0] for name in resampled]
        if codes and strata:
            codes = [*codes, *(_encode(columns[name])[0] for name in strata)]
        return cls(
            names=names,
            target=target,
            gaps=as_array(columns[target]),
            values=values,
            undefined={name: reason for name, reason in reasons.items() if reason is not None},
            hyperparameters={name: codes for name, (codes, _) in encoded.items()},
            levels={name: levels for name, (_, levels) in encoded.items()},
            clusters=_number_clusters(codes, len(names)),
            clustered_by=list(clusters or ()),
            negated=[name for name in sources if name not in columns],
            fit=fit,
            below_fit=[names[row] for row in _find_below(columns, FITS)],
            strata_by=list(strata),
            strata=dict(zip(groups, inside, strict=True)),
            left_out_strata=unfit,
        )


def format_cell(value: Any) -> str:
    """Format a cell for a reader: numbers without needless digits."""
    return f"{value:g}" if is_number(value) and value is not None else str(value)


def _find_family(column: str) -> str:
    """Return what a column measures, without a number and the examples: ``margin`` for ``margin@10_test``."""
    family = column.partition("@")[0]
    for suffix in _EXAMPLES:
        family = family.removesuffix(suffix)
    return family


def _check_list(kind: str, names: Sequence[str]) -> None:
    if isinstance(names, str):
        kinds = "strata" if kind == "stratum" else f"{kind}s"
        raise TypeError(f"{kinds} must be a list of names, such as [{names!r}], not a single string.")


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
            hint = suggest(name, hyperparameters) if hyperparameters else "Name it with hyperparameters=… too."
            raise ValueError(f"clusters are combinations of hyperparameters, and {name!r} is not one of them. {hint}")


def _check_strata(strata: Sequence[str], groups: Iterable[str], unfit: Mapping[str, str], fit: float | None) -> None:
    if len(unfit) == len(list(groups)):
        reasons = "; ".join([f"{name}: {reason}" for name, reason in unfit.items()][:3] + ["…"] * (len(unfit) > 3))
        advice = "Name a column with few values, such as the recipe that a model was trained by."
        if any("configuration" in reason for reason in unfit.values()):
            advice = "Name every hyperparameter in which models differ: hyperparameters=…."
        elif fit is not None:
            advice = (
                f"Models with a {FITTED} below fit={fit:g} are left out: choose a lower one, or rank without strata=…."
            )
        raise ValueError(f"no stratum of {join(strata)} can be ranked ({reasons}). {advice}")


def _check_roles(
    target: str, hyperparameters: Sequence[str], strata: Sequence[str], model: str | None, measures: Iterable[str]
) -> None:
    """Raise if a column has two roles: a measure that is the target itself would rank it perfectly."""
    roles = [(target, "the target"), *((name, "a hyperparameter") for name in hyperparameters)]
    # A hyperparameter may well define the strata.
    roles += [(name, "a stratum") for name in strata if name not in hyperparameters]
    roles += [] if model is None else [(model, "the model column")]
    taken: dict[str, str] = {}
    for name, role in [*roles, *((name, "a measure") for name in measures)]:
        if taken.setdefault(name, role) != role:
            raise ValueError(f"the column {name!r} is given as {taken[name]} and as {role}; it can be only one.")


def _check_numbers(kind: str, name: str, columns: Columns, names: Sequence[str]) -> None:
    row = _find_text(columns[name])
    if row is not None:
        raise ValueError(
            f"the {kind} {name!r} must be numbers, but model {names[row]} has {columns[name][row]!r}; write a number "
            "with a decimal point, or leave the cell empty if there is none."
        )


def _find_text(column: Sequence[Any]) -> int | None:
    """Return the first row that does not hold a number, or None."""
    wrong = [row for row, cell in enumerate(column) if not is_number(cell)]
    # In a column of text the numbers are texts too: point at a cell that is not one of them, if there is any.
    return next((row for row in wrong if not _reads_as_number(column[row])), wrong[0] if wrong else None)


def _describe_content(column: Sequence[Any], names: Sequence[str]) -> str:
    """Describe what a column holds that cannot be ranked."""
    if {str(cell) for cell in column if cell is not None} <= {"True", "False"}:
        return "True and False"
    row = _find_text(column)
    if row is None or not any(map(_reads_as_number, column)):
        return "text"
    return f"{column[row]!r} (model {names[row]}) among numbers"


def _reads_as_number(cell: Any) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _check_fit(fit: float, columns: Columns, names: Sequence[str]) -> None:
    check_number("fit", fit, "it is the least training accuracy, such as 0.99")
    if FITTED not in columns:
        raise ValueError(f"fit={fit:g} needs a column {FITTED!r} in the table; a pool has one if train=… had labels.")
    _check_numbers("column", FITTED, columns, names)
    if fit <= 1 and bool((as_array(columns[FITTED]) > 1).any()):
        raise ValueError(
            f"fit={fit:g} is a share, but {FITTED!r} goes above 1, as percentages do: give fit={100 * fit:g}."
        )
    count = len(names) - len(_find_below(columns, fit))
    if count < 3:
        raise ValueError(
            f"a ranking needs at least 3 models; with fit={fit:g}, {count} of {len(names)} are left, the others have a "
            f"lower {FITTED}."
        )


def _find_below(columns: Columns, fit: float) -> list[int]:
    """Return the rows whose training accuracy is below ``fit`` or missing; none if the table has no such column."""
    accuracies = as_numbers(columns.get(FITTED, ()))
    return [] if accuracies is None else [row for row, accuracy in enumerate(accuracies) if not accuracy >= fit]


def _check_gaps(gaps: Array, target: str, names: Sequence[str]) -> None:
    """Raise unless all gaps are finite and some differ."""
    if missing := _find_nonfinite(gaps, names):
        which = _list_models(missing)
        raise ValueError(f"the target {target!r} is missing or not finite for {which}: fill it in or drop the row.")
    if np.all(gaps == gaps[0]):
        raise ValueError(f"the target {target!r} is {gaps[0]:g} for all {len(gaps)} models: nothing to rank.")


def _check_filled(kind: str, name: str, columns: Columns, names: Sequence[str]) -> None:
    if missing := [model for model, cell in zip(names, columns[name], strict=True) if is_missing(cell)]:
        example = "'plain'" if kind == "stratum" else "0 or 'off'"
        raise ValueError(
            f"the {kind} {name!r} is missing for {_list_models(missing)}; write a value, such as {example}."
        )


def _explain_undefined(values: Array, names: Sequence[str], strata: Iterable[Indices] = ()) -> str | None:
    if missing := _find_nonfinite(values, names):
        which = _list_models(missing) if len(missing) < len(names) else f"all {len(names)} models"
        return f"not finite for {which}: correlation undefined"
    if np.all(values == values[0]):
        return "constant: correlation undefined"
    inside = [bool(np.all(values[rows] == values[rows[0]])) for rows in strata]
    return "constant within each stratum: correlation undefined" if inside and all(inside) else None


def _find_nonfinite(values: Array, names: Sequence[str]) -> list[str]:
    return [name for name, value in zip(names, values, strict=True) if not np.isfinite(value)]


def _encode(column: list[Any]) -> tuple[Indices, list[Any]]:
    """Return the code of each cell and the value behind each code."""
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
    return f"models {join([*models[:4], f'{len(models) - 4} more'] if len(models) > 5 else models)}"


def join(names: Sequence[str]) -> str:
    """List names in a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
