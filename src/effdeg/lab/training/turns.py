"""Runs on one GPU take turns.

Of networks that are trained at once on one GPU, the time of each says nothing. So a run holds its GPU while it trains;
others compile in the meantime. What training two at once would gain is measured by ``python -m benchmarks
models_at_once``. Where times do not matter, ``EFFDEG_SHARE_GPU=1`` lets runs train at once; reports then leave out
their times.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from effdeg._utils.distributed import rank_and_size

try:
    import fcntl
except ImportError:  # Windows, where nobody waits
    fcntl = None  # type: ignore[assignment]


def shares_gpu(device: torch.device) -> bool:
    """Return whether runs on this device train at once, as ``EFFDEG_SHARE_GPU=1`` asks for."""
    return device.type == "cuda" and os.environ.get("EFFDEG_SHARE_GPU") == "1"


@contextmanager
def turn(device: torch.device, *, progress: bool = False) -> Iterator[None]:
    """Hold a GPU while the block runs, after waiting for it; not when it is shared with other processes of one run."""
    if device.type != "cuda" or fcntl is None or rank_and_size()[1] > 1 or shares_gpu(device):
        yield
        return
    name = f"effdeg-{os.getuid()}-{torch.cuda.get_device_properties(device).uuid}.lock"
    with (Path(tempfile.gettempdir()) / name).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                print("another run trains on this GPU: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
