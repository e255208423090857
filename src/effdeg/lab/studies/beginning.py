"""How the run of a study begins and ends, whatever it does in between."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from effdeg.lab.task import Task
from effdeg.lab.training.environment import environment
from effdeg.lab.training.randomness import seeds_kept


@contextmanager
def begun(task: Task) -> Iterator[dict[str, Any] | None]:
    """Begin a run or go on with it; afterwards others can, and torch's random numbers are as they were.

    Args:
        task: Where to work.

    Yields:
        The state of the last checkpoint; None if there is none.
    """
    on_device = torch.cuda.device(task.device) if task.device.type == "cuda" else nullcontext()
    with on_device, seeds_kept(task.device):
        try:
            yield task.run.begin(environment(task.device))
        finally:
            task.run.close()
