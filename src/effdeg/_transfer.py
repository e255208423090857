"""Tensors on their way to a GPU."""

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Move a tensor; from the CPU to a GPU without waiting for what the GPU is doing."""
    if device is not None and device.type == "cuda" and tensor.device.type == "cpu":
        # Only from pinned memory is the copy asynchronous; torch keeps the pinned buffer until the copy is done.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
