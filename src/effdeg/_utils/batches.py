"""Many examples in batches that fit the device."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


class Batches:
    """Batches of a size that is halved when memory runs out."""

    def __init__(self, size: int | None, device: torch.device | None) -> None:
        self.size = size or (256 if device is None or device.type == "cpu" else 1024)

    def run(self, run: Callable[[slice], T], total: int) -> list[T]:
        """Run a function on one part after another of ``total`` examples, and list what it returns."""
        kept: list[T] = []
        done = 0
        while done < total:
            # Even batches: 3,200 points at a batch size of 1,024 run as four times 800, not three times 1,024 and 128.
            batches = -(-(total - done) // self.size)
            part = slice(done, done + -(-(total - done) // batches))
            try:
                kept.append(run(part))
                done = part.stop
                continue
            except torch.OutOfMemoryError:
                if self.size == 1:
                    raise
            # Here, where the error no longer holds on to what the failed batch had allocated.
            self.size = max(1, min(self.size, part.stop - part.start) // 2)
            torch.cuda.empty_cache()
        return kept
