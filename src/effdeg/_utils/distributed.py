"""Work shared among the processes of torch.distributed, if there are any."""

import os
from collections.abc import Iterator
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
