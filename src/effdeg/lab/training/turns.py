"""Runs on one GPU take turns.

Two networks trained at once on one GPU are hardly faster than one after the other (``python -m benchmarks``), while the
time of each would say nothing. So a run holds its GPU while it trains; others compile in the meantime.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


@contextmanager
def turn(device: torch.device) -> Iterator[None]:
    """Wait for the device to be free, and hold it while the block runs. Only GPUs are waited for."""
    if device.type != "cuda":
        yield
        return
    import fcntl  # not on Windows

    name = f"effdeg-{torch.cuda.get_device_properties(device).uuid}.lock"
    with (Path(tempfile.gettempdir()) / name).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
