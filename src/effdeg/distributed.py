"""Work shared among the processes of torch.distributed, if there are any."""

import torch.distributed as dist
from torch import Tensor


def rank_and_size() -> tuple[int, int]:
    """Tell which of how many processes this is."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Add up a tensor on the CPU over all processes; every process gets the sum."""
    if rank_and_size()[1] == 1:
        return tensor
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = tensor.to(device, copy=True)
    dist.all_reduce(total)
    return total.to(tensor.device)
