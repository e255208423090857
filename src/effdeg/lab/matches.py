"""Which runs of a store belong to which line of a recipe."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from effdeg.lab.recipe import Recipe, Row, check_held_out
from effdeg.lab.settings import RunSettings, to_dict
from effdeg.lab.store import Record


def matching(
    records: Iterable[Record],
    recipe: Recipe[Any],
    row: Row,
    *,
    tuning: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> list[Record]:
    """Find the runs of a line: of any scale and any strength, and of every point of the grid.

    Args:
        records: The runs.
        recipe: The experiment.
        row: The line.
        tuning: Find those that tune the line's strengths instead of those that its result comes from.
        changes: In what a user's runs differ from the recipe. A strength or an axis of the grid that is named here must
            be equal too.

    Returns:
        The runs, finished or not.
    """
    changes = changes or {}
    if tuning and not recipe.tuning:
        return []
    together = {**(recipe.tuning if tuning else {}), **changes}
    if tuning:
        check_held_out(together)
    settings = recipe.resolved(row, together)
    free = {each.name for each in fields(settings) if _is_scale(each)} | (
        {*row.strengths, *recipe.grid} - changes.keys()
    )
    wanted = {key: value for key, value in to_dict(settings).items() if key not in free}
    return [record for record in records if _fits(record, type(settings), wanted)]


def scale_of(record: Record, settings_type: type[RunSettings]) -> dict[str, Any]:
    """Return the settings that say how long and on how much a run was trained, less its seed.

    Runs can be averaged and compared where these are equal.

    Args:
        record: The run.
        settings_type: The type of its settings.

    Returns:
        Values by name.
    """
    complete = settings_of(record, settings_type)
    names = [each.name for each in fields(settings_type) if _is_scale(each) and each.name != "seed"]
    return {name: complete.get(name) for name in names}


def settings_of(record: Record, settings_type: type[RunSettings]) -> dict[str, Any]:
    """Return the settings of a run; those that are newer than the run have their defaults."""
    return _defaults(settings_type) | record.settings


def _fits(record: Record, settings_type: type[RunSettings], wanted: Mapping[str, Any]) -> bool:
    if record.kind != settings_type.__name__:
        return False
    complete, known = settings_of(record, settings_type), {each.name for each in fields(settings_type)}
    # A setting that is not known here may have changed everything.
    return complete.keys() == known and all(complete[key] == value for key, value in wanted.items())


@cache
def _defaults(settings_type: type[RunSettings]) -> dict[str, Any]:
    """Return the defaults of settings, as JSON knows them."""
    found = {}
    for each in fields(settings_type):
        if each.default is not MISSING:
            found[each.name] = json.loads(json.dumps(each.default))
        elif each.default_factory is not MISSING:
            found[each.name] = json.loads(json.dumps(each.default_factory()))
    return found


def _is_scale(each: Field[Any]) -> bool:
    return bool(each.metadata.get("scale"))
