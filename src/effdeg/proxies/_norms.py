"""Norms of the weights, and of the linear maps in a model: its matrices and convolutions."""

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from effdeg._adapters.inference import Model
from effdeg._adapters.layers import as_module
from effdeg._utils.checks import shorten
from effdeg._utils.statistics import find_unit
from effdeg.proxies._evaluator import Evaluator, NotApplicable, Result, RunOptions, check_options
from effdeg.proxies._lanczos import largest_eigenvalue

TOLERANCE = 1e-4
"""The largest relative error of the square of a spectral norm, which is never too large; mostly it is far smaller."""


@check_options
def parameter_norm(model: Model, data: Any = None, **options: Unpack[RunOptions]) -> Result:  # noqa: ARG001
    """Return the L2 norm of all parameters, √Σ w².

    ``data`` is ignored: all proxies have the same signature.

    Raises:
        NotApplicable: The model has no parameters.

    Example:
        >>> import torch, effdeg
        >>> model = torch.nn.Linear(3, 3)
        >>> _ = torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
        >>> effdeg.proxies.parameter_norm(model).value
        3.0
    """
    with Evaluator.open(model, **options) as evaluator:
        evaluator.check_weights()
        parameters = dict(evaluator.module.named_parameters())
        return Result("parameter_norm", _norm(parameters.items()), settings={"parameters": len(parameters)})


@check_options
def distance(model: Model, reference: object, **options: Unpack[RunOptions]) -> Result:
    """Return the L2 distance √Σ (w - w₀)² of all parameters from those of another model, such as the initial one.

    Args:
        model: An ``nn.Module``.
        reference: A model of the same architecture, or its ``state_dict()``.

    Raises:
        TypeError: ``reference`` is neither a model nor a state dict.
        ValueError: ``reference`` lacks a parameter of the model or has it in another shape.
        NotApplicable: The model has no parameters, or ``reference`` is None.

    Example:
        >>> import copy, torch, effdeg
        >>> model = torch.nn.Linear(3, 3)
        >>> initial = copy.deepcopy(model)
        >>> _ = model.weight.data.add_(1.0)
        >>> round(effdeg.proxies.distance(model, initial).value, 4)
        3.0
    """
    with Evaluator.open(model, reference=reference, **options) as evaluator:
        evaluator.check_weights()
        other = check_reference(evaluator)

        def subtract(name: str, weight: Tensor) -> Tensor:
            wide = torch.promote_types(weight.dtype, torch.float64)
            return check_weight(name, weight).to("cpu", wide) - other[name].detach().to("cpu", wide)

        parameters = evaluator.module.named_parameters()
        return Result("distance", _norm((name, subtract(name, weight)) for name, weight in parameters))


@check_options
def frobenius_product(model: Model, data: Any = None, **options: Unpack[RunOptions]) -> Result:  # noqa: ARG001
    """Return the product Π |W|_F of the Frobenius norms of all weight matrices and convolution kernels.

    Where it overflows, ``settings["logarithm"]`` still distinguishes models. ``data`` is ignored.

    Raises:
        NotApplicable: The model has no weight matrix, or is TorchScript.

    Example:
        >>> import torch, effdeg
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        >>> _ = [torch.nn.init.eye_(layer.weight) for layer in model]
        >>> round(effdeg.proxies.frobenius_product(model).value, 4)
        4.0
    """
    with Evaluator.open(model, **options) as evaluator:
        return _product("frobenius_product", _frobenius_norms(evaluator))


@check_options
def frobenius_sum(model: Model, data: Any = None, **options: Unpack[RunOptions]) -> Result:  # noqa: ARG001
    """Return the sum Σ |W|_F of the Frobenius norms, as of :func:`frobenius_product`.

    Example:
        >>> import torch, effdeg
        >>> model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9))
        >>> _ = [torch.nn.init.eye_(layer.weight) for layer in model]
        >>> round(effdeg.proxies.frobenius_sum(model).value, 4)
        6.0
    """
    with Evaluator.open(model, **options) as evaluator:
        return _sum("frobenius_sum", _frobenius_norms(evaluator))


@check_options
def spectral_product(model: Model, data: Any = None, **options: Unpack[RunOptions]) -> Result:
    """Return the product Π |W|₂ of the spectral norms of all linear maps, which bounds that of their composition.

    A convolution counts as its linear map on feature maps, whose size depends on the data, not as its kernel. A weight
    that is used several times, as by a recurrent layer or two tied ones, counts once: then the product is no bound. Of
    the data one example is used, and none without convolutions. Where the product overflows, ``settings["logarithm"]``
    still distinguishes models.

    Raises:
        NotApplicable: The model has no weight matrix, is TorchScript, or has convolutions and no data are given.

    Example:
        >>> import torch, effdeg
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        >>> _ = [layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 1.0]])) for layer in model]
        >>> round(effdeg.proxies.spectral_product(model).value, 4)
        9.0
    """
    with Evaluator.open(model, data, **options) as evaluator:
        return _product("spectral_product", spectral_norms(evaluator))


@check_options
def spectral_sum(model: Model, data: Any = None, **options: Unpack[RunOptions]) -> Result:
    """Return the sum Σ |W|₂ of the spectral norms of all linear maps.

    Arguments and errors are those of :func:`spectral_product`.

    Example:
        >>> import torch, effdeg
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        >>> _ = [layer.weight.data.copy_(torch.tensor([[3.0, 0.0], [0.0, 1.0]])) for layer in model]
        >>> round(effdeg.proxies.spectral_sum(model).value, 4)
        6.0
    """
    with Evaluator.open(model, data, **options) as evaluator:
        return _sum("spectral_sum", spectral_norms(evaluator))


def _sum(name: str, norms: list[float]) -> Result:
    return Result(name, math.fsum(norms), settings={"maps": len(norms)})


def _product(name: str, norms: list[float]) -> Result:
    logarithm = math.fsum(math.log(norm) if norm > 0 else -math.inf for norm in norms)
    value = math.exp(logarithm) if logarithm < 709 else math.inf
    return Result(name, value, settings={"maps": len(norms), "logarithm": logarithm})


def _frobenius_norms(evaluator: Evaluator) -> list[float]:
    return [_norm([(each.name, each.weight)]) for each in linear_maps(evaluator)]


def check_reference(evaluator: Evaluator) -> dict[str, Tensor]:
    """Return the parameters of the reference by name; raise unless they match those of the model."""
    reference = evaluator.given["reference"]
    expected = "the model that training began with, or its state_dict()"
    if (module := as_module(reference)) is not None:
        other: dict[str, Tensor] = dict(module.named_parameters())
    elif isinstance(reference, Mapping) and any(isinstance(value, Tensor) for value in reference.values()):
        # DDP and compiled models save their names with a prefix.
        plain = {re.sub(r"^((module|_orig_mod)\.)+", "", name): value for name, value in reference.items()}
        other = {name: value for name, value in (plain | dict(reference)).items() if isinstance(value, Tensor)}
    elif reference is None:
        raise NotApplicable(f"this needs reference=, {expected}.")
    else:
        raise TypeError(f"reference= is a {type(reference).__name__}; it must be {expected}.")
    for name, parameter in evaluator.module.named_parameters():
        if name not in other or other[name].shape != parameter.shape:
            found = f"has shape {tuple(other[name].shape)}" if name in other else "is missing"
            raise ValueError(
                f"reference= does not match this model: {name!r} of shape {tuple(parameter.shape)} {found} there."
            )
        if parameter.is_floating_point() and not other[name].is_floating_point():
            raise ValueError(
                f"reference= holds integers ({name!r} in {other[name].dtype}) where the model has floating-point "
                "weights, as a quantized model has. Give the weights before they were quantized."
            )
    weights = {name: each for name, each in evaluator.module.named_parameters() if each.numel()}
    if weights and all(
        each.untyped_storage().data_ptr() == other[name].untyped_storage().data_ptr() != 0
        for name, each in weights.items()
    ):
        raise ValueError(
            "reference= shares its memory with the model, as a state_dict() does until it is copied: keep "
            "copy.deepcopy(model.state_dict()) before training."
        )
    return other


def _norm(named: Iterable[tuple[str, Tensor]]) -> float:
    norms = []
    for name, each in named:
        weight = check_weight(name, each)
        largest = float(torch.linalg.vector_norm(weight, math.inf)) if weight.numel() else 0.0
        if largest == 0 or 1e-100 < largest < 1e100:
            dtype = torch.complex128 if weight.is_complex() else torch.float64
            norms.append(float(torch.linalg.vector_norm(weight, dtype=dtype)))
        else:  # a copy, whose squares do not leave the range of float64
            sizes = weight.abs().double()
            norms.append(float(torch.linalg.vector_norm(sizes / (unit := find_unit(sizes)))) * unit)
    unit = find_unit(torch.tensor(norms, dtype=torch.float64, device="cpu"))
    return math.sqrt(math.fsum((norm / unit) ** 2 for norm in norms)) * unit


def check_weight(name: str, weight: Tensor, *, real: bool = False) -> Tensor:
    """Return a weight without gradients; raise unless it holds finite numbers, not the codes of a quantized weight."""
    if not (weight.is_floating_point() or weight.is_complex()):
        raise NotApplicable(f"the weight {name!r} is in {weight.dtype}, as quantized weights are: its norm is unknown.")
    if real and weight.is_complex():
        raise NotApplicable(f"the weight {name!r} is complex ({weight.dtype}), but only real maps are supported.")
    if not bool(weight.isfinite().all()):
        raise NotApplicable(f"the weight {name!r} holds NaN or infinite numbers.")
    return weight.detach()


@dataclass(frozen=True)
class LinearMap:
    """A linear map in a model: a weight matrix, or a convolution as a map of feature maps."""

    name: str
    weight: Tensor
    convolution: _ConvNd | None

    def spectral_norm(self, features: torch.Size | None, seed: int) -> float:
        """Return the largest singular value of the map A, the root of the largest eigenvalue of AᵀA.

        A convolution needs the shape of its inputs. AᵀA x is computed as the derivative of |A x|² / 2, which works for
        any padding, stride and dilation.
        """
        # Not every device has float64.
        weight = check_weight(self.name, self.weight, real=True)
        weight = weight.to("cpu" if weight.device.type == "mps" else weight.device).double()
        unit = find_unit(weight)
        weight = weight / unit
        matrix = weight.flatten(1)
        apply = matrix.matmul if self.convolution is None else _with_weight(self.convolution, weight)
        shape = features or matrix.shape[1:]

        def multiply(x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(apply(x.view(shape)).square().sum() / 2, x)[0]

        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").flatten()
        square, _ = largest_eigenvalue(multiply, start.to(weight.device), TOLERANCE, "a spectral norm's square")
        return math.sqrt(max(square, 0.0)) * unit


def linear_maps(evaluator: Evaluator) -> list[LinearMap]:
    """List the linear maps of a model: every weight of two or more dimensions (Linear, Conv, Embedding, RNN, …)."""
    evaluator.check_not_scripted()
    found = list(_find_maps(evaluator.module))
    if others := [name for name, each in evaluator.module.named_parameters() if _may_be_map(name, each)]:
        warnings.warn(
            f"the model has matrices that are not counted, since 'weight' is not in their names: {shorten(others)}.",
            stacklevel=2,
        )
    if not found:
        raise NotApplicable(
            f"the model ({type(evaluator.module).__name__}) has no weight matrix: no parameter with 'weight' in its "
            "name and two or more dimensions."
        )
    return found


def spectral_norms(evaluator: Evaluator) -> list[float]:
    """Return the spectral norm of every linear map of a model, computed once."""
    maps = linear_maps(evaluator)

    def find() -> list[float]:
        features = _find_shapes(evaluator, maps)
        # A convolution that does not run, such as that of an auxiliary head for training, has no inputs.
        run = [each for each in maps if each.convolution is None or each.convolution in features]
        return [each.spectral_norm(features.get(each.convolution), evaluator.seed) for each in run]

    return evaluator.once("spectral norms", find)


def _with_weight(layer: _ConvNd, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a convolution with another weight, without bias, hooks and parametrization."""
    kind: Any = type(layer).__mro__[1] if parametrize.is_parametrized(layer) else type(layer)
    twin = kind.__new__(kind)
    own = {name: value for name, value in layer.__dict__.items() if name not in {"weight", "bias"}}
    empty: dict[str, Any] = {name: {} for name in ("_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")}
    twin.__dict__.update({**own, **empty, "_parameters": {"weight": weight, "bias": None}})
    return partial(kind.forward, twin)


def _find_maps(model: nn.Module) -> Iterator[LinearMap]:
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if isinstance(module, (parametrize.ParametrizationList, nn.LayerNorm, nn.RMSNorm)):
            continue
        names = [_name_of_weight(module, name) for name, _ in module.named_parameters(recurse=False)]
        if parametrize.is_parametrized(module):
            # The weight of a layer under weight norm and the like is computed from its parameters.
            names += list(module.parametrizations)
        for name in dict.fromkeys(names):
            weight = getattr(module, name)
            if "weight" not in name or weight.dim() < 2 or id(own := module._parameters.get(name)) in seen:
                continue
            if own is not None:
                seen.add(id(own))  # a weight that two layers share counts once
            convolution = module if isinstance(module, _ConvNd) and name == "weight" else None
            yield LinearMap(f"{prefix}.{name}" if prefix else name, weight.detach(), convolution)


def _may_be_map(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter that does not count may be a matrix that is multiplied with, by its name and shape."""
    sizes = [size for size in parameter.shape if size > 1]
    return len(sizes) > 1 and not re.search("weight|bias|embed|pos|token", name)


def _name_of_weight(module: nn.Module, name: str) -> str:
    for suffix in ("_g", "_v", "_orig"):
        made = name.removesuffix(suffix)
        if made != name and isinstance(getattr(module, made, None), Tensor):
            return made
    return name


def _find_shapes(evaluator: Evaluator, maps: list[LinearMap]) -> dict[nn.Module | None, torch.Size]:
    """Return the shape of the inputs of each convolution, by running the model on one example."""
    shapes: dict[nn.Module | None, torch.Size] = {}
    convolutions = [each.convolution for each in maps if each.convolution is not None]
    if not convolutions:
        return shapes
    evaluator.check_data()

    def keep(layer: _ConvNd, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = given[0] if given else named["input"]
        shapes.setdefault(layer, torch.Size([1, *x.shape[-1 - len(layer.kernel_size) :]]))

    with ExitStack() as stack:
        for layer in convolutions:
            stack.callback(layer.register_forward_pre_hook(keep, with_kwargs=True).remove)
        evaluator.runner(evaluator.fetch(slice(0, 1))[0])
    return shapes
