"""Tensors on their way to a GPU and back, without keeping it waiting."""

from collections.abc import Callable

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Move a tensor; from the CPU to a GPU without waiting for what the GPU is doing."""
    if device is not None and device.type == "cuda" and tensor.device.type == "cpu":
        # Only from pinned memory is the copy asynchronous; torch keeps the pinned buffer until the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def receive(tensor: Tensor) -> Callable[[], Tensor]:
    """Start copying a tensor to the CPU; the copy is handed over, and waited for, when it is called for."""
    if tensor.device.type != "cuda":
        return tensor.cpu
    # A plain tensor.cpu() later on would also wait for all the work that is given to the GPU in between.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        arrived.synchronize()
        return copy

    return wait
