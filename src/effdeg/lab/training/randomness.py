"""The state of torch's random numbers: kept with checkpoints, and put back for whoever called."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from effdeg._utils.distributed import rank_and_size


@contextmanager
def seeds_kept(device: torch.device) -> Iterator[None]:
    """Leave torch's random numbers as they were before the block."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed(number: int) -> None:
    """Begin the random numbers of this process, which no other process has."""
    torch.manual_seed(number + 1_000_003 * rank_and_size()[0])


def random_states(device: torch.device) -> list[dict[str, Tensor]]:
    """Return the states of all processes, to every one of them."""
    own = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        own["cuda"] = torch.cuda.get_rng_state(device)
    size = rank_and_size()[1]
    if size == 1:
        return [own]
    states: list[Any] = [None] * size
    dist.all_gather_object(states, own)
    return states


def set_random_state(states: list[dict[str, Tensor]], device: torch.device) -> None:
    """Go on drawing where a checkpoint was; where it knows nothing of this process or device, from the seed."""
    rank, size = rank_and_size()
    if len(states) != size or (device.type == "cuda") != ("cuda" in states[0]):
        warnings.warn(
            "the checkpoint is of another number of processes or another kind of device: the run goes on, but does not "
            "end where an unbroken one would.",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    torch.set_rng_state(states[rank]["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[rank]["cuda"], device)
