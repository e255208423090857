"""Run models so that what they return can be differentiated twice."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from effdeg.layers import as_module, eager


@contextmanager
def double_differentiable(model: object) -> Iterator[None]:
    """Within it, run a model by code that has second derivatives, which the fastest code often has not.

    Attention runs by its plain kernel, models with recurrent layers run without cuDNN, and compiled models as they were
    written. Only the forward pass must be within it. Kernels that a model brings itself (FlashAttention, xFormers)
    are not known here.
    """
    module = as_module(model)
    recurrent = module is not None and any(isinstance(part, nn.RNNBase) for part in module.modules())
    # Only then: convolutions need cuDNN to be fast.
    with eager(), sdpa_kernel(SDPBackend.MATH), _without_cudnn() if recurrent else nullcontext():
        yield


@contextmanager
def _without_cudnn() -> Iterator[None]:
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled
