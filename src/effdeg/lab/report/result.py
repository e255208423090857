"""From the runs of a store to what they say about an experiment."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from effdeg.lab.matches import matching, scale_of, settings_of
from effdeg.lab.recipe import Recipe
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.equal_time import equal_time
from effdeg.lab.report.findings import finding
from effdeg.lab.report.lines import Line, line_of
from effdeg.lab.report.pool import pool_of
from effdeg.lab.report.verdicts import Finding
from effdeg.lab.settings import to_dict
from effdeg.lab.store import Record
from effdeg.lab.tuning import Choice, chosen


@dataclass(frozen=True, eq=False)
class RecipeResult:
    """What was found of an experiment.

    Attributes:
        recipe: The experiment.
        blocks: What was run, scale by scale, most epochs first, but those with less than half as many lines as the
            fullest last; one that nothing was run of, if there is nothing.
        further: Scales at which a single line was run, so that there is nothing to compare it with there.
        findings: What each of them shows.
        tuning: How the tuning of lines went, by name.
        runs: All its finished runs, each with the name of its line.
        tuning_runs: The finished runs that tuned, likewise.
    """

    recipe: Recipe[Any]
    blocks: tuple[Block, ...]
    further: tuple[Block, ...]
    findings: Mapping[Block, Finding]
    tuning: Mapping[str, Choice]
    runs: tuple[tuple[str, Record], ...]
    tuning_runs: tuple[tuple[str, Record], ...]


def result_of(recipe: Recipe[Any], records: Sequence[Record], changes: Mapping[str, Any] | None = None) -> RecipeResult:
    """Put together what was found of an experiment.

    Args:
        recipe: The experiment.
        records: The runs of a store.
        changes: Keep runs with these settings only.

    Returns:
        What was found.
    """
    changes = changes or {}
    runs = {row.name: _kept(recipe, matching(records, recipe, row, changes=changes), changes) for row in recipe.rows}
    finished = tuple((name, run) for name, found in runs.items() for run in found if run.finished)
    scales = {_key(scale): scale for _, run in finished for scale in [scale_of(run, type(recipe.settings))]}
    own = _own_scale(recipe, changes)
    if not scales:
        scales = {_key(own): own}
    tuning = {
        row.name: choice
        for row in recipe.rows
        if row.strengths and (choice := chosen(recipe, row, records, changes=changes))
    }
    if recipe.shows == "pool":
        blocks = _pools(recipe, finished, scales)
    else:
        blocks = _tables(recipe, runs, scales, tuning, changes)
    most = max(block.size for block in blocks)
    # A longer run of a line or two must not push aside the table that has them all.
    blocks.sort(key=lambda block: (2 * block.size < most, -block.epochs, -block.size, _apart(block.scale, own)))
    # A single line of a study says something, too.
    compared = [block for block in blocks if recipe.study or block.size > 1] or blocks[:1]
    further = [block for block in blocks if block not in compared]
    final = {run.folder for _, run in finished}
    return RecipeResult(
        recipe=recipe,
        blocks=tuple(compared),
        further=tuple(further),
        findings={block: finding(block) for block in blocks},
        tuning=tuning,
        runs=finished,
        tuning_runs=tuple(
            (row.name, run)
            for row in recipe.rows
            if row.strengths
            for run in matching(records, recipe, row, tuning=True, changes=changes)
            if run.finished and run.folder not in final
        ),
    )


def _tables(
    recipe: Recipe[Any],
    runs: Mapping[str, Sequence[Record]],
    scales: Mapping[str, Mapping[str, Any]],
    tuning: Mapping[str, Choice],
    changes: Mapping[str, Any],
) -> list[Block]:
    settings = {row.name: recipe.resolved(row, changes) for row in recipe.rows}
    lines: dict[str, dict[str, Line]] = {key: {} for key in scales}
    for row in recipe.rows:
        for key in scales:
            found = [run for run in runs[row.name] if _key(scale_of(run, type(recipe.settings))) == key]
            lines[key][row.name] = line_of(
                row, settings[row.name], found, tuning.get(row.name), with_accuracy=recipe.study is None
            )
    blocks = []
    for key, scale in scales.items():
        shorter_and_longer = [other for other in scales if _but_epochs(scales[other]) == _but_epochs(scale)]
        candidates = {
            name: {
                scales[other].get("epochs", 0): lines[other][name]
                for other in shorter_and_longer
                if not line.runs or line.strengths == lines[other][name].strengths
            }
            for name, line in lines[key].items()
        }
        shown = tuple(lines[key].values())
        # A line by itself has none to share its time with.
        several = recipe.study is None and sum(bool(line.runs) for line in shown) > 1
        timed = equal_time(shown, candidates, scale.get("epochs", 0)) if several else None
        blocks.append(Block(recipe, scale, shown, timed))
    return blocks


def _pools(
    recipe: Recipe[Any], finished: Sequence[tuple[str, Record]], scales: Mapping[str, Mapping[str, Any]]
) -> list[Block]:
    of_scale: dict[str, list[tuple[str, Record]]] = {key: [] for key in scales}
    for name, run in finished:
        of_scale[_key(scale_of(run, type(recipe.settings)))].append((name, run))
    return [Block(recipe, scale, pool=pool_of(recipe, of_scale[key])) for key, scale in scales.items()]


def _kept(recipe: Recipe[Any], runs: Sequence[Record], changes: Mapping[str, Any]) -> list[Record]:
    """Keep the runs of the scale asked for; all else that was asked for is matched already."""
    wanted = to_dict(recipe.resolved(recipe.rows[0], changes))
    kind = type(recipe.settings)
    return [run for run in runs if all(settings_of(run, kind)[key] == wanted[key] for key in changes)]


def _own_scale(recipe: Recipe[Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    settings = recipe.resolved(recipe.rows[0], changes)
    plain = to_dict(settings)
    return {
        each.name: plain[each.name] for each in fields(settings) if each.metadata.get("scale") and each.name != "seed"
    }


def _apart(scale: Mapping[str, Any], own: Mapping[str, Any]) -> int:
    return sum(scale[key] != own[key] for key in own)


def _but_epochs(scale: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in scale.items() if key != "epochs"}


def _key(scale: Mapping[str, Any]) -> str:
    return json.dumps(scale, sort_keys=True)
