"""Times taken side by side, so that a busy machine slows both."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Record = dict[str, Any]
"""What a case found."""


def interleaved(*runs: Callable[[], object], repeats: int) -> list[float]:
    """Run functions in turn; return the median time of each in seconds, without the first round, which warms up."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + 1):
        for run, kept in zip(runs, times, strict=True):
            kept.append(seconds(run))
    return [statistics.median(kept[1:]) for kept in times]


def seconds(run: Callable[[], object]) -> float:
    """Time one run."""
    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - start


def make_record(name: str, ratio: float, target: str, detail: str) -> Record:
    """Return the record of a case that is one ratio."""
    return {"name": name, "ratio": ratio, "target": target, "detail": detail}


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device() -> torch.device:
    """Return the device that is measured."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_peak(*, reset: bool = False) -> float:
    """Return the peak memory of this process in bytes, on a CPU (Linux) or a GPU; with ``reset``, from now on.

    Not ``getrusage``: it counts the memory of the process that started this one.
    """
    if device().type == "cuda":
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return float(torch.cuda.max_memory_allocated())
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024.0 * int(peak.split()[1])
