"""One run of a sweep, as it is handed to another process."""

import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from effdeg.lab.registry import find_recipe
from effdeg.lab.store import RefusedError, Store
from effdeg.lab.task import Task


@dataclass(frozen=True)
class Assignment:
    """What a process needs to know to carry out a run, in words that travel.

    Attributes:
        recipe: The name of the experiment.
        settings: The settings of the run, as JSON knows them.
        runs: The folder of all runs.
        data: The folder that holds the data sets, if one was named.
        device: Where it computes.
    """

    recipe: str
    settings: dict[str, Any]
    runs: str
    data: str | None
    device: str


class Ending(IntEnum):
    """How a run ended, as the exit code of its process."""

    FINISHED = 0
    FAILED = 1
    FINISHED_ELSEWHERE = 3
    BUSY_ELSEWHERE = 4


def work(assignment: Assignment) -> Ending:
    """Carry out a run, or what is left of it; an error is printed and kept with the run.

    Args:
        assignment: What to do.

    Returns:
        How the run ended. A run that another process has finished or works on is left as it is, its log too.
    """
    experiment = find_recipe(assignment.recipe)
    # Types were checked where the settings were made; JSON knows no tuples, and that is all it changed.
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in assignment.settings.items()}
    run = Store(assignment.runs).run(replace(experiment.settings, **values))
    if run.finished:
        return Ending.FINISHED_ELSEWHERE
    data = None if assignment.data is None else Path(assignment.data)
    try:
        experiment.train(run.settings, Task(run, data, torch.device(assignment.device)))
    except RefusedError:
        return Ending.FINISHED_ELSEWHERE if run.finished else Ending.BUSY_ELSEWHERE
    except Exception:
        traceback.print_exc()
        run.fail(traceback.format_exc())
    finally:
        run.close()
    return Ending.FINISHED if run.finished else Ending.FAILED


def work_logged(assignment: Assignment, log: str) -> Ending:
    """Do the same in a process that is not the run's own, writing what is printed to the end of a file."""
    with Path(log).open("a", buffering=1) as stream, redirect_stdout(stream), redirect_stderr(stream):
        return work(assignment)
