"""What a sweep has to do: the runs that tune, and the runs that results come from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, Literal

from effdeg.lab.recipe import Recipe, Row
from effdeg.lab.settings import Settings, changed, digest
from effdeg.lab.store import Record, Store
from effdeg.lab.tuning import chosen

# Lines whose times differ by less than this share have the same time.
_SAME_TIME = 0.05


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        recipe: The name of the experiment.
        row: The name of its line.
        settings: The settings of the run.
        purpose: Whether it tunes strengths or gives the result.
    """

    recipe: str
    row: str
    settings: Settings
    purpose: Literal["tuning", "final"]


def tuning_jobs(
    recipe: Recipe[Any],
    *,
    methods: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    tuning_changes: Mapping[str, Any] | None = None,
) -> list[Job]:
    """List the runs that tune the strengths of lines, each with one seed.

    Args:
        recipe: The experiment.
        methods: The lines, by name; by default all.
        changes: A user's changes to all runs. Lines of which they set a strength are not tuned.
        tuning_changes: A user's changes to these runs alone.

    Returns:
        The jobs, no two of which have the same settings.
    """
    changes, tuning_changes = changes or {}, tuning_changes or {}
    return _once(
        Job(recipe.name, row.name, recipe.resolved(row, {**_tuned(recipe, changes, tuning_changes), **point}), "tuning")
        for row in _rows(recipe, methods)
        if not row.strengths.keys() & changes.keys()
        for point in recipe.candidates(row)
    )


def final_jobs(
    recipe: Recipe[Any],
    records: Iterable[Record],
    *,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    changes: Mapping[str, Any] | None = None,
    tuning_changes: Mapping[str, Any] | None = None,
) -> list[Job]:
    """List the runs that results come from: lines × points of the grid × seeds.

    Args:
        recipe: The experiment.
        records: The runs that there are: a line has the strengths that were best in those that tune it, else its own.
        methods: The lines, by name; by default all.
        seeds: The seeds; by default the recipe's.
        changes: A user's changes, which win over everything else.
        tuning_changes: In what the runs that tune differ beside.

    Returns:
        The jobs, no two of which have the same settings.
    """
    changes, tuning_changes, records = changes or {}, tuning_changes or {}, list(records)

    def jobs() -> Iterator[Job]:
        for row in _rows(recipe, methods):
            strengths: Mapping[str, Any] = {}
            if row.strengths and not row.strengths.keys() & changes.keys():
                choice = chosen(recipe, row, records, changes=_tuned(recipe, changes, tuning_changes))
                strengths = choice.changes if choice else {}
            for point in recipe.points():
                for seed in seeds or recipe.seeds:
                    together = {**point, "seed": seed, **strengths, **changes}
                    yield Job(recipe.name, row.name, recipe.resolved(row, together), "final")

    return _once(jobs())


def equal_time_jobs(recipe: Recipe[Any], finals: Sequence[Job], store: Store, reference: str) -> list[Job]:
    """List the runs that give every line the time that one of them took, at the pace that the line was seen to have.

    Args:
        recipe: The experiment.
        finals: The runs that results come from.
        store: Where they are; those that are not finished are left out.
        reference: The line whose time it is.

    Returns:
        One job for each of the runs, with more epochs or fewer, but for those whose time is that of the reference.
    """
    seconds: dict[str, list[float]] = {}
    for job in finals:
        record = store.run(job.settings).record()
        if record is not None and record.summary is not None:
            seconds.setdefault(job.row, []).append(float(record.summary["seconds"]))
    recipe.row(reference)
    if reference not in seconds:
        raise ValueError(f"{reference!r} has no finished run here, whose time the others could be given.")

    def jobs() -> Iterator[Job]:
        for job in finals:
            if job.row in seconds:
                longer = mean(seconds[reference]) / mean(seconds[job.row])
                epochs = max(1, round(job.settings.epochs * longer))  # type: ignore[attr-defined]
                if abs(longer - 1) > _SAME_TIME:
                    yield replace(job, settings=changed(job.settings, {"epochs": epochs}))

    return _once(jobs())


def _tuned(recipe: Recipe[Any], changes: Mapping[str, Any], tuning_changes: Mapping[str, Any]) -> dict[str, Any]:
    return {**changes, **recipe.tuning, **tuning_changes}


def _rows(recipe: Recipe[Any], methods: Sequence[str] | None) -> list[Row]:
    return [recipe.row(name) for name in methods] if methods else list(recipe.rows)


def _once(jobs: Iterable[Job]) -> list[Job]:
    """Keep the first of jobs with equal settings."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(digest(job.settings), job)
    return list(found.values())
