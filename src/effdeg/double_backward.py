"""Run models so that what they return can be differentiated twice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

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


class PlainWeightNorm(TorchFunctionMode):
    """Within it, weight norm is computed step by step: torch's own kernel has a wrong second derivative.

    It takes the norm of the direction for a constant the second time. Only derivatives by the weights, twice, feel it.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch._weight_norm:
            direction, length, *dimension = args
            return direction * (length / torch.norm_except_dim(direction, 2, *dimension))
        return function(*args, **(kwargs or {}))


@contextmanager
def _without_cudnn() -> Iterator[None]:
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled
