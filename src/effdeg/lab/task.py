"""What a run is given beside its settings: where to work, none of which changes how it ends."""

from dataclasses import dataclass
from pathlib import Path

import torch

from effdeg.lab.store import Run


@dataclass(frozen=True)
class Task:
    """The surroundings of a run.

    Attributes:
        run: Where its results are kept.
        data: The folder that holds the data sets; None if none was named.
        device: Where it computes.
        progress: Whether to show progress.
    """

    run: Run
    data: Path | None
    device: torch.device
    progress: bool = False
