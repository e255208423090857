"""Times taken side by side, so that a busy machine slows both."""

import statistics
import time
from collections.abc import Callable

import torch


def interleaved(first: Callable[[], object], second: Callable[[], object], *, repeats: int) -> tuple[float, float]:
    """Run two things in turn and give the median seconds of each; the first round warms up and does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for run, kept in zip((first, second), times, strict=True):
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            kept.append(time.perf_counter() - start)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device() -> torch.device:
    """Give the device that is measured."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
