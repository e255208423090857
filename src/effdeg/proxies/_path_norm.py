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

from effdeg._adapters.inference import Model
from effdeg._utils.device import is_traced
from effdeg._utils.tree import map_tensors, tensors
from effdeg.proxies._activations import CASTS, DROPOUT, PRODUCTS, QUERIES, REORDERING, WEIGHTED, storage
from effdeg.proxies._evaluator import Evaluator, NotApplicable, Result, RunOptions, check_options


@check_options
def path_norm(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Return the path norm √Σ Π w²: over all paths from inputs and biases to outputs, the product of squared weights.

    It is computed by one forward pass of ones through squared weights (Neyshabur et al. 2015). It is defined for
    networks of linear layers, convolutions, ReLU-like activations, BatchNorm (as the linear map that it is in
    evaluation mode), pooling and skip connections. A maximum counts the paths of all its inputs. Rescaling neurons of a
    ReLU network does not change it. The bias of a layer before BatchNorm and the shift of BatchNorm count as two paths;
    with BatchNorm folded into the layer they would be one, so the same function would have another value.

    The model must return a tensor. Of the data, only the shape of one example is used.

    Raises:
        NotApplicable: The model contains an operation for which the path norm is not defined, or takes integers.

    Example:
        One input, two hidden units and one output, all weights 2, have two paths of weight 4:

        >>> import torch, effdeg
        >>> layers = torch.nn.Linear(1, 2, bias=False), torch.nn.ReLU(), torch.nn.Linear(2, 1, bias=False)
        >>> model = torch.nn.Sequential(*layers)
        >>> _ = [torch.nn.init.constant_(weight, 2.0) for weight in model.parameters()]
        >>> round(effdeg.proxies.path_norm(model, torch.zeros(1, 1)).value ** 2, 4)
        32.0
    """
    with Evaluator.open(model, data, **options) as evaluator:
        evaluator.check_weights()
        evaluator.check_not_scripted()
        evaluator.check_data()
        squared, norms = _square_weights(evaluator.module, evaluator.runner.device)
        ones = map_tensors(_make_ones, evaluator.fetch(slice(0, 1))[0])
        with _PathMode(squared, norms, tensors(ones)):
            returned = evaluator.runner(ones, squared | norms)
    if not isinstance(returned, Tensor):
        raise NotApplicable(f"the path norm needs a model that returns a tensor, not {type(returned).__name__}.")
    squared_norm = float(returned.sum())
    if not math.isfinite(squared_norm):
        raise NotApplicable(
            f"the square of the path norm is {squared_norm}: it is too large for float64, or weights are."
        )
    return Result("path_norm", math.sqrt(squared_norm))


def _square_weights(model: nn.Module, device: torch.device | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the squares of all weights, and those of BatchNorm as they are: its scale depends on its statistics."""
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    named = (*model.named_parameters(), *model.named_buffers())
    doubled = {name: each.detach().to(device).double() for name, each in named if each.is_floating_point()}
    inside = {name: each for name, each in doubled.items() if name.rpartition(".")[0] in norms}
    return {name: each.square() for name, each in doubled.items() if name not in inside}, inside


def _make_ones(leaf: Tensor) -> Tensor:
    if not leaf.is_floating_point():
        raise NotApplicable("the path norm needs floating-point inputs, but these are integers.")
    return torch.ones_like(leaf, dtype=torch.float64)


class _PathMode(TorchFunctionMode):
    """Runs linear operations as they are, squares constants, and refuses operations without a path norm."""

    def __init__(self, weights: dict[str, Tensor], norms: dict[str, Tensor], inputs: list[Tensor]) -> None:
        super().__init__()
        self._weights = {storage(weight) for weight in weights.values()}
        self._norms = {storage(weight) for weight in norms.values()}
        # Kept alive, so that no other tensor gets their ids.
        self._on_paths = {id(each): each for each in inputs}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, given = function.__name__.strip("_"), kwargs or {}
        if name in CASTS:
            return args[0]  # everything runs in float64
        if is_traced():
            raise _undefined("torch.vmap")
        if name not in QUERIES:
            self._check(name, [each for each in tensors([args, given]) if each.is_floating_point()])
        result = self._run(function, name, args, given)
        for each in tensors(result):
            self._on_paths[id(each)] = each
        return result

    def _check(self, name: str, flowing: list[Tensor]) -> None:
        """Raise if a tensor is neither a weight nor on a path, or if BatchNorm is not computed by torch's layer."""
        known = [storage(each) for each in flowing]
        if any(each in (self._weights if name == "batch_norm" else self._norms) for each in known):
            raise _undefined("BatchNorm in another layer than torch's")
        weights = self._weights | self._norms
        if any(id(each) not in self._on_paths and storage(each) not in weights for each in flowing):
            raise _undefined(f"{name} of a tensor that is neither a weight nor on a path")

    def _run(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        flowing = tensors([args, given])
        if flowing and all(self._is_weight(each) for each in flowing) and name not in QUERIES:
            if name not in REORDERING:
                # A weight that is computed from others would have to be squared afterwards.
                raise _undefined(f"{name} of weights alone")
            moved = function(*args, **given)
            self._weights |= {storage(each) for each in tensors(moved)}
            return moved
        if name in PRODUCTS | {"add"}:
            return self._combine(function, name, args, given)
        if name in _RULES:
            return _RULES[name](*args, **given)
        if name in WEIGHTED and not all(self._is_weight(each) for each in tensors([args[1:], given])):
            raise _undefined(f"{name} with a weight that does not belong to the model")
        if name in _LINEAR:
            return function(*args, **given)
        raise _undefined(resolve_name(function) or name)

    def _combine(self, function: Callable[..., Any], name: str, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Multiply or add: a number, which is squared, a weight, which already is, or another path."""
        given_tensors = [each for each in args if isinstance(each, Tensor)]
        weights = [each for each in given_tensors if self._is_weight(each)]
        if len(args) > 2 or given or not all(isinstance(each, Tensor | int | float | str) for each in args):
            raise _undefined(f"{name} of these arguments")
        if len(given_tensors) == 1:
            # The string is the equation of einsum, by which the entries of a single tensor are added, or reordered.
            return function(*(each if isinstance(each, Tensor | str) else each**2 for each in args))
        if name == "add" or (weights and (name not in {"div", "truediv"} or self._is_weight(args[1]))):
            return function(*args)
        raise _undefined(f"{name} of two tensors on paths")

    def _is_weight(self, each: Tensor) -> bool:
        return storage(each) in self._weights


def _undefined(what: str) -> NotApplicable:
    # Not a TypeError: Python would replace that of an operator by its own.
    return NotApplicable(
        f"the path norm is not defined for {what}. Supported are linear layers, convolutions, ReLU, BatchNorm, pooling "
        "and skip connections."
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
        raise NotApplicable("the path norm needs the running statistics of BatchNorm, but a layer has none.")
    scale = torch.rsqrt(running_var.double() + eps) * (1.0 if weight is None else weight)
    shift = (0.0 if bias is None else bias) - running_mean.double() * scale
    by_channel = (1, -1, *[1] * (x.dim() - 2))
    return x * scale.square().view(by_channel) + shift.square().view(by_channel)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, axis: Any = None) -> Tensor:
    dim = dim if axis is None else axis
    averaged = x.mean() if dim is None else x.mean(dim, keepdim)
    # Weights of 1 / n, squared.
    return averaged * averaged.numel() / x.numel()


def _adaptive_average(pool: Callable[..., Tensor], x: Tensor, output_size: Any) -> Tensor:
    averaged = pool(x, output_size)
    spatial = averaged.dim() - 2
    if any(size % pooled for size, pooled in zip(x.shape[-spatial:], averaged.shape[-spatial:], strict=True)):
        raise NotApplicable("the path norm supports adaptive average pooling only into windows of one size.")
    return averaged * averaged.numel() / x.numel()


def _average_pool(x: Tensor, kernel_size: Any, *rest: Any, **given: Any) -> Tensor:
    names = ("stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    options = {**dict(zip(names, rest, strict=False)), **given}
    ones, added = torch.ones_like(x), {**options, "divisor_override": 1}
    # What each sum is divided by, whatever the options; squared, as all weights are.
    divisor = F.avg_pool2d(ones, kernel_size, **added) / F.avg_pool2d(ones, kernel_size, **options)
    return F.avg_pool2d(x, kernel_size, **added) / divisor.square()


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
        raise NotApplicable("the path norm does not support dilated pooling.")
    return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, divisor_override=1)


_LINEAR = WEIGHTED | REORDERING | QUERIES | DROPOUT | {"sum", "relu", "leaky_relu", "prelu"}
_RULES: dict[str, Callable[..., Any]] = {
    "batch_norm": _batch_norm,
    "mean": _mean,
    "pad": _pad,
    **{name: partial(_adaptive_average, getattr(F, name)) for name in (f"adaptive_avg_pool{n}d" for n in (1, 2, 3))},
    "avg_pool2d": _average_pool,
    "max_pool2d": _max_pool,
}
