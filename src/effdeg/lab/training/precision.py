"""The precision that a model is run in."""

import torch


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Compute in bf16 where that was asked for and pays, on a GPU; else in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16" and device.type == "cuda")
