"""What the runs of a folder are doing, from the files alone: whoever started them, on whichever machine."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from effdeg_lab.runs import Run, RunFolder

SWEEPS = ".sweeps"
"""The folder next to the runs in which every sweep says what it has yet to do."""
_ALIVE = 600
"""Seconds after which a run that was not heard of is taken for killed; runs save about every minute."""

State = Literal["finished", "running", "stopped", "failed"]


def get_state(run: Run) -> State:
    """Return how a run is doing; one that was killed without a trace counts as running for ten minutes."""
    if run.finished:
        return "finished"
    if run.failure is not None:
        return "failed"
    return "running" if not run.stopped and get_age(run.file) < _ALIVE else "stopped"


def get_age(file: Path) -> float:
    """Return the seconds since a file was changed."""
    return max(0.0, time.time() - file.stat().st_mtime)


def describe_runs(folder: Path, recipe: str | None) -> list[dict[str, Any]]:
    """Describe every run of a folder, or of one recipe."""
    found = []
    for run in RunFolder(folder).read(brief=True):
        if recipe in {None, run.recipe}:
            what = {"name": run.name, "recipe": run.recipe, "method": run.method, "seed": run.seed}
            last = run.summary or (run.metrics[-1] if run.metrics else None)
            error = (run.failure or "").strip().splitlines()[-1:]
            how = {"state": get_state(run), "seconds_ago": round(get_age(run.file)), "last": last}
            found.append({**what, **how, "error": error[0] if error else None})
    return found


def count_waiting(folder: Path, recipe: str | None) -> Counter[tuple[str, str]]:
    """Count the runs that living sweeps have yet to start, by recipe and method."""
    counts: Counter[tuple[str, str]] = Counter()
    for file in (folder / SWEEPS).glob("*.json"):
        with suppress(OSError, ValueError):
            found = json.loads(file.read_text())
            if recipe in {None, found["recipe"]} and get_age(file) < _ALIVE:
                counts.update({(found["recipe"], method): count for method, count in found["waiting"].items()})
    return counts


def describe_score(found: Mapping[str, Any] | None) -> Iterator[str]:
    """List the accuracy and the training time of an evaluation or a summary, as far as it has them."""
    accuracy, seconds = ((found or {}).get(key) for key in ("test_accuracy", "seconds"))
    if accuracy is not None:
        yield f"{accuracy:.1%}"
    if seconds is not None:
        yield describe_seconds(seconds)


def describe_seconds(seconds: float) -> str:
    """Write a time in the unit that fits."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
