"""The path norm: the weights multiplied along every path from an input to an output."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode, resolve_name

from effdeg._models.inference import Model
from effdeg._utils.tree import map_tensors, tensors
from effdeg.proxies._linear_functions import ASKED, CAST, DROPPED, MOVED, PRODUCTS, WEIGHTED, memory
from effdeg.proxies._result import Result
from effdeg.proxies._study import NotApplicable, Running, Study, opened, proxy


@proxy
def path_norm(model: Model | Study, data: Any = None, **running: Unpack[Running]) -> Result:
    """Return the path norm: the L2 norm of the products of weights along all paths from inputs and biases to outputs.

    One forward pass computes it: of ones, through squared weights (Neyshabur et al. 2015). It is defined for networks
    of linear layers, convolutions, ReLU-like activations, BatchNorm (as the linear map that it is when a model is
    used), pooling and skip connections. A path through a maximum counts for every input of the maximum. Rescaling
    neurons of a ReLU network does not change it. The bias of a layer before BatchNorm and the shift of BatchNorm count
    as two paths; folded into one layer they would be one, which gives another number for the same function.

    Args:
        model: An ``nn.Module``.
        data: At least one example, for its shape.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The norm.
    """
    with opened(model, data, **running) as study:
        study.check_weights()
        study.check_open()
        study.check_data()
        squared = _squared_weights(study.module, study.subject.device)
        ones = map_tensors(_ones, study.fetch(slice(0, 1))[0])
        with _Paths(squared, tensors(ones)):
            returned = study.subject(ones, squared)
        if not isinstance(returned, Tensor):
            raise NotApplicable(f"the path norm needs a model that returns a tensor, not {type(returned).__name__}.")
        return Result("path_norm", math.sqrt(float(returned.sum())))


def _squared_weights(model: nn.Module, device: torch.device | None) -> dict[str, Tensor]:
    """Square all weights but those of BatchNorm, whose scale is only known together with its statistics."""
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    named = (*model.named_parameters(), *model.named_buffers())
    doubled = {name: each.detach().to(device).double() for name, each in named if each.is_floating_point()}
    return {name: each if name.rpartition(".")[0] in norms else each.square() for name, each in doubled.items()}


def _ones(leaf: Tensor) -> Tensor:
    if not leaf.is_floating_point():
        raise NotApplicable("the path norm begins at floating-point inputs, and these are integers.")
    return torch.ones_like(leaf, dtype=torch.float64)


class _Paths(TorchFunctionMode):
    """Lets through what is linear with weights of one, squares constants, and refuses what is not linear."""

    def __init__(self, weights: dict[str, Tensor], inputs: list[Tensor]) -> None:
        super().__init__()
        self._weights = {memory(weight) for weight in weights.values()}
        # Kept alive, so that no other tensor gets their ids.
        self._on_the_way = {id(each): each for each in inputs}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = self._result(function, function.__name__.strip("_"), args, kwargs or {})
        for each in tensors(result):
            self._on_the_way[id(each)] = each
        return result

    def _result(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        if name in CAST:
            return args[0]  # all is done in one precision
        flowing = tensors([args, given])
        if flowing and all(self._is_weight(each) for each in flowing) and name not in ASKED:
            if name not in MOVED:
                # A weight that is made of others would have to be made before it is squared.
                raise _undefined(f"{name} of weights alone")
            moved = function(*args, **given)
            self._weights |= {memory(each) for each in tensors(moved)}
            return moved
        if name in PRODUCTS | {"add"}:
            return self._combined(function, name, args, given)
        if name in _RULES:
            return _RULES[name](*args, **given)
        if name in WEIGHTED and not all(self._is_weight(each) for each in tensors([args[1:], given])):
            raise _undefined(f"{name} with a weight that is none of the model's")
        if name in _LINEAR:
            return function(*args, **given)
        raise _undefined(resolve_name(function) or name)

    def _combined(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Multiply or add: by a number, which is squared, by a weight, which is already, or with another path."""
        given_tensors = [each for each in args if isinstance(each, Tensor)]
        weights = [each for each in given_tensors if self._is_weight(each)]
        if len(args) > 2 or given:
            raise _undefined(f"{name} of these arguments")
        strange = [each for each in given_tensors if id(each) not in self._on_the_way and not self._is_weight(each)]
        if strange:
            raise _undefined(f"{name} of a tensor that is neither a weight nor on a path")
        if len(given_tensors) == 1:
            return function(*(each if isinstance(each, Tensor) else each**2 for each in args))
        if name == "add" or (weights and (name not in {"div", "truediv"} or self._is_weight(args[1]))):
            return function(*args)
        raise _undefined(f"{name} of two tensors on paths")

    def _is_weight(self, each: Tensor) -> bool:
        """Return whether a tensor is one of the squared weights or a part of one."""
        return memory(each) in self._weights


def _undefined(what: str) -> NotApplicable:
    # Not a TypeError: within an operator, Python would turn it into one that says less.
    return NotApplicable(
        f"the path norm is not defined for {what}: it knows linear layers, convolutions, ReLU, BatchNorm, pooling and "
        "skip connections."
    )


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None:
        raise NotApplicable("the path norm needs the running statistics of BatchNorm, and a layer here has none.")
    scale = torch.rsqrt(running_var.double() + eps) * (1.0 if weight is None else weight)
    shift = (0.0 if bias is None else bias) - running_mean.double() * scale
    by_channel = (1, -1, *[1] * (x.dim() - 2))
    return x * scale.square().view(by_channel) + shift.square().view(by_channel)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    dim = dim if axis is None else axis
    averaged = x.mean() if dim is None else x.mean(dim, keepdim)
    # Weights of 1 / n, squared.
    return averaged * averaged.numel() / x.numel()


def _adaptive_average(pool: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def average(x: Tensor, output_size: Any) -> Tensor:
        averaged = pool(x, output_size)
        spatial = averaged.dim() - 2
        if any(size % pooled for size, pooled in zip(x.shape[-spatial:], averaged.shape[-spatial:], strict=True)):
            raise NotApplicable("the path norm knows adaptive average pooling only into windows of one size.")
        return averaged * averaged.numel() / x.numel()

    return average


def _average_pool(x: Tensor, kernel_size: Any, *rest: Any, **given: Any) -> Tensor:
    names = ("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    options = {**dict(zip(names, rest, strict=False)), **given}
    average: Callable[[Tensor], Tensor] = partial(F.avg_pool2d, kernel_size=kernel_size, **options)
    added: Callable[[Tensor], Tensor] = partial(
        F.avg_pool2d, kernel_size=kernel_size, **{**options, "divisor_override": 1}
    )
    # By how much each sum is divided, whatever the options: squared, as all weights are.
    divisor = added(torch.ones_like(x)) / average(torch.ones_like(x))
    return added(x) / divisor.square()


def _pad(x: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    return F.pad(x, pad, mode, None if value is None else value**2)


def _max_pool(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    **_: Any,
) -> Tensor:
    if dilation not in (1, (1, 1)):
        raise NotApplicable("the path norm does not know dilated pooling.")
    return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, divisor_override=1)


_LINEAR = WEIGHTED | MOVED | ASKED | DROPPED | {"sum", "relu", "leaky_relu", "prelu"}
_RULES: dict[str, Callable[..., Any]] = {
    "batch_norm": _batch_norm,
    "mean": _mean,
    "pad": _pad,
    "adaptive_avg_pool1d": _adaptive_average(F.adaptive_avg_pool1d),
    "adaptive_avg_pool2d": _adaptive_average(F.adaptive_avg_pool2d),
    "adaptive_avg_pool3d": _adaptive_average(F.adaptive_avg_pool3d),
    "avg_pool2d": _average_pool,
    "max_pool2d": _max_pool,
}
