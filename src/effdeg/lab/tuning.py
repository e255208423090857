"""Which strengths a line is run with: those that did best on held-out training examples, never on the test set."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from effdeg.lab.matches import matching, scale_of, settings_of
from effdeg.lab.recipe import Recipe, Row
from effdeg.lab.store import Record


@dataclass(frozen=True)
class Choice:
    """How the tuning of a line went.

    Attributes:
        changes: The chosen strengths.
        score: Their accuracy on the held-out examples, averaged over seeds.
        tried: All strengths that were tried, with theirs.
        epochs: How long each was trained.
    """

    changes: dict[str, Any]
    score: float
    tried: list[tuple[dict[str, Any], float]]
    epochs: int


def chosen(
    recipe: Recipe[Any], row: Row, records: Iterable[Record], *, changes: Mapping[str, Any] | None = None
) -> Choice | None:
    """Choose the strengths of a line by the finished runs that tune it: the longest of which several were tried.

    Args:
        recipe: The experiment.
        row: The line.
        records: The runs.
        changes: In what a user's tuning runs differ from the recipe's.

    Returns:
        The choice; None if nothing was tuned.
    """
    kind = type(recipe.settings)
    scales: dict[str, list[Record]] = {}
    for record in matching(records, recipe, row, tuning=True, changes=changes):
        if record.finished and row.strengths:
            scales.setdefault(json.dumps(scale_of(record, kind)), []).append(record)
    if not scales:
        return None

    def strengths_of(run: Record) -> dict[str, Any]:
        return {key: settings_of(run, kind)[key] for key in row.strengths}

    def rank_of(runs: list[Record]) -> tuple[bool, int, int]:
        # A single strength was not tuned: it may be the run of another experiment on held-out examples.
        return len(_distinct(map(strengths_of, runs))) > 1, settings_of(runs[0], kind)["epochs"], len(runs)

    runs = max(scales.values(), key=rank_of)
    tried = []
    for each in sorted(_distinct(map(strengths_of, runs)), key=lambda each: _place(each, row)):
        scores = [_score(run) for run in runs if strengths_of(run) == each]
        tried.append((each, fmean(scores)))
    best, score = max(tried, key=lambda pair: pair[1])
    return Choice(best, score, tried, settings_of(runs[0], kind)["epochs"])


def _distinct(strengths: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for each in strengths:
        if each not in found:
            found.append(each)
    return found


def _place(strengths: Mapping[str, Any], row: Row) -> list[int]:
    """Sort as the recipe lists them; what a user added comes last."""
    return [
        values.index(strengths[key]) if strengths[key] in values else len(values)
        for key, values in row.strengths.items()
    ]


def _score(run: Record) -> float:
    # A run that came to its end without an accuracy went wrong, and is no candidate.
    accuracy = (run.summary or {}).get("test_accuracy")
    return 0.0 if accuracy is None else float(accuracy)
