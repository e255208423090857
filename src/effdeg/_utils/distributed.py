"""Work shared among the processes of torch.distributed, if there are any."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Sum a CPU tensor over all processes; every process gets the sum."""
    if rank_and_size()[1] == 1:
        return tensor
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = tensor.to(device, copy=True)
    dist.all_reduce(total)
    return total.to(tensor.device)


def union_over_ranks(parts: dict[int, Any]) -> dict[int, Any]:
    """Join the parts that the processes hold; every process gets them all."""
    size = rank_and_size()[1]
    if size == 1:
        return parts
    gathered: list[dict[int, Any]] = [{}] * size
    dist.all_gather_object(gathered, parts)
    return {key: part for each in gathered for key, part in each.items()}


def check_same_on_ranks(shared: Mapping[str, Any]) -> None:
    """Raise in every process, naming what differs, unless all have the same; None is not compared."""
    rank, _ = rank_and_size()
    first, *others = (given for _, given in sorted(union_over_ranks({rank: shared}).items()))
    for other, given in enumerate(others, start=1):
        for what in shared:
            if first[what] != given[what] and first[what] is not None and given[what] is not None:
                raise ValueError(
                    f"the processes of torch.distributed divide the paths of one measurement, but the {what} differ "
                    f"between ranks 0 and {other}. Give all processes the same model, the same data, not a shard for "
                    "each, and the same settings; measure several models one after another, in all processes."
                )


def broadcast_from_first(value: T) -> T:
    """Return to every process what the first one holds."""
    if rank_and_size()[1] == 1:
        return value
    shared = [value]
    dist.broadcast_object_list(shared)
    return shared[0]


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that ``torchrun`` started, if it did and they are not joined yet."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_available() or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        dist.barrier()  # if a process left early, another that still waits for it could hang
    finally:
        dist.destroy_process_group()
