"""What a sweep has to do: the runs that tune, and the runs that results come from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from effdeg.lab.recipe import Recipe, Row
from effdeg.lab.settings import RunSettings, changed, digest, to_dict
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
        purpose: Whether it tunes strengths, gives the result, or gives the result after as long as another line took.
    """

    recipe: str
    row: str
    settings: RunSettings
    purpose: Literal["tuning", "final", "equal time"]


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
        tuning_changes: A user's changes to these runs alone, which cannot name a strength.

    Returns:
        The jobs, no two of which have the same settings.
    """
    changes, rows = changes or {}, _rows(recipe, methods)
    tuned = _tuned(recipe, rows, changes, tuning_changes or {})
    return _once(
        Job(recipe.name, row.name, recipe.resolved(row, {**tuned, **point}), "tuning")
        for row in rows
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
        tuning_changes: Further changes to the runs that tune.

    Returns:
        The jobs, no two of which have the same settings.
    """
    changes, rows, records = changes or {}, _rows(recipe, methods), list(records)
    tuned = _tuned(recipe, rows, changes, tuning_changes or {})

    def jobs() -> Iterator[Job]:
        for row in rows:
            strengths: Mapping[str, Any] = {}
            if row.strengths and not row.strengths.keys() & changes.keys():
                choice = chosen(recipe, row, records, changes=tuned)
                strengths = choice.changes if choice else {}
            for point in recipe.points():
                for seed in seeds or recipe.seeds:
                    together = {**point, "seed": seed, **strengths, **changes}
                    yield Job(recipe.name, row.name, recipe.resolved(row, together), "final")

    return _once(jobs())


def equal_time_jobs(
    recipe: Recipe[Any], finals: Sequence[Job], store: Store, reference: str
) -> tuple[list[Job], list[str]]:
    """List the runs that give every line the time that one of them took, at the pace that the line was seen to have.

    Paces and times are those of the runs with the smallest seed, at every point of the grid, so that all seeds have the
    same epochs, however many of their runs are finished.

    Args:
        recipe: The experiment.
        finals: The runs that results come from.
        store: Where they are.
        reference: The line whose time it is.

    Returns:
        A job for each of the runs, with more epochs or fewer, but for those whose time is that of the reference; and a
        sentence on each line some of whose times are not known.
    """
    recipe.row(reference)
    if "epochs" not in recipe.settings.__dataclass_fields__:
        raise ValueError(f"equal_time={reference!r}: the runs of {recipe.name} have no epochs, more or fewer.")
    if reference not in {job.row for job in finals}:
        raise ValueError(f"equal_time={reference!r}: {reference} is not among the lines of this sweep; add it.")
    first: dict[tuple[str, tuple[Any, ...]], Job] = {}
    for job in sorted(finals, key=lambda job: job.settings.seed):
        first.setdefault((job.row, _point(recipe, job)), job)
    seconds = {key: _seconds(store, job) for key, job in first.items()}
    jobs: list[Job] = []
    unknown: dict[str, str] = {}
    for job in finals:
        own, given = (seconds.get((row, _point(recipe, job))) for row in (job.row, reference))
        if own and given:
            epochs = max(1, round(to_dict(job.settings)["epochs"] * given / own))
            if abs(given / own - 1) > _SAME_TIME:
                jobs.append(replace(job, settings=changed(job.settings, {"epochs": epochs}), purpose="equal time"))
        elif job.row != reference:
            unknown[job.row] = (
                f"{job.row} is not run at equal time: no finished run of {job.row if given else reference} with the "
                "smallest seed says how long it took."
            )
    return _once(jobs), list(unknown.values())


def _point(recipe: Recipe[Any], job: Job) -> tuple[Any, ...]:
    """Return the point of the grid that a run belongs to."""
    return tuple(getattr(job.settings, axis) for axis in recipe.grid)


def _seconds(store: Store, job: Job) -> float | None:
    """Return the time that a run took, if it is finished, says so, and had its GPU to itself."""
    record = store.run(job.settings).record()
    if record is None or record.summary is None or record.environment.get("shared"):
        return None
    return record.summary.get("seconds")


def _tuned(
    recipe: Recipe[Any], rows: Sequence[Row], changes: Mapping[str, Any], tuning_changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return in what the runs that tune differ from the recipe's settings."""
    tuning = {**recipe.tuning, **tuning_changes}
    if recipe.tuning:
        recipe.check_tuning(rows, tuning)
    return {**changes, **tuning}


def _rows(recipe: Recipe[Any], methods: Sequence[str] | None) -> list[Row]:
    return [recipe.row(name) for name in methods] if methods else list(recipe.rows)


def _once(jobs: Iterable[Job]) -> list[Job]:
    """Keep the first of jobs with equal settings."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(digest(job.settings), job)
    return list(found.values())
