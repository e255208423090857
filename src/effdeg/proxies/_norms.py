"""Norms of the weights."""

import math
import re
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from effdeg._models.inference import Model
from effdeg._models.layers import as_module
from effdeg.proxies._linear_maps import linear_maps, spectral_norms
from effdeg.proxies._result import Result
from effdeg.proxies._study import NotApplicable, Running, Study, opened, proxy


def parameter_norm(model: Model | Study, data: Any = None) -> Result:  # noqa: ARG001  (as all proxies)
    """Return the L2 norm of all parameters."""
    with opened(model) as study:
        study.check_weights()
        parameters = dict(study.module.named_parameters())
        return Result("parameter_norm", _norm(list(parameters.values())), settings={"parameters": len(parameters)})


def distance(model: Model | Study, reference: object) -> Result:
    """Return the L2 distance of all parameters from those of another model, such as the one training began with.

    Args:
        model: An ``nn.Module``.
        reference: A model of the same architecture, or its ``state_dict()``.

    Returns:
        The distance.
    """
    with opened(model) as study:
        study.check_weights()
        other = check_reference(study.module, reference)
        own = dict(study.module.named_parameters())
        steps = [each.detach().double().cpu() - other[name].detach().double().cpu() for name, each in own.items()]
        return Result("distance", _norm(steps))


def frobenius_product(model: Model | Study, data: Any = None) -> Result:  # noqa: ARG001  (as all proxies)
    """Return the product of the Frobenius norms of all weight matrices and convolution kernels."""
    return _product("frobenius_product", _frobenius(model))


def frobenius_sum(model: Model | Study, data: Any = None) -> Result:  # noqa: ARG001  (as all proxies)
    """Return the sum of the Frobenius norms of all weight matrices and convolution kernels."""
    norms = _frobenius(model)
    return Result("frobenius_sum", math.fsum(norms), settings={"maps": len(norms)})


@proxy
def spectral_product(model: Model | Study, data: Any = None, **running: Unpack[Running]) -> Result:
    """Return the product of the spectral norms of all linear maps: a bound on how much a chain of them can stretch.

    Args:
        model: An ``nn.Module``.
        data: At least one example, for the size of the feature maps that convolutions work on.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The product.
    """
    with opened(model, data, **running) as study:
        return _product("spectral_product", spectral_norms(study))


@proxy
def spectral_sum(model: Model | Study, data: Any = None, **running: Unpack[Running]) -> Result:
    """Return the sum of the spectral norms of all linear maps.

    Args:
        model: An ``nn.Module``.
        data: At least one example, for the size of the feature maps that convolutions work on.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The sum.
    """
    with opened(model, data, **running) as study:
        norms = spectral_norms(study)
        return Result("spectral_sum", math.fsum(norms), settings={"maps": len(norms)})


def check_reference(model: nn.Module, reference: object) -> dict[str, Tensor]:
    """Return the parameters of a reference by name, or say why it is none for this model."""
    other = _parameters(reference)
    for name, parameter in model.named_parameters():
        if name not in other or other[name].shape != parameter.shape:
            found = f"has shape {tuple(other[name].shape)}" if name in other else "is missing"
            raise ValueError(
                f"reference does not belong to this model: {name!r} of shape {tuple(parameter.shape)} {found} there."
            )
    return other


def _parameters(reference: object) -> dict[str, Tensor]:
    if (module := as_module(reference)) is not None:
        return dict(module.named_parameters())
    if isinstance(reference, Mapping) and any(isinstance(value, Tensor) for value in reference.values()):
        # As saved from DDP or from a compiled model.
        plain = {re.sub(r"^((module|_orig_mod)\.)+", "", name): value for name, value in reference.items()}
        return {name: value for name, value in (plain | dict(reference)).items() if isinstance(value, Tensor)}
    if reference is None:
        raise NotApplicable("this needs reference=, the model that training began with, or its state_dict().")
    given = type(reference).__name__
    raise TypeError(f"reference= is a {given}; the model that training began with, or its state_dict(), was expected.")


def _frobenius(model: Model | Study) -> list[float]:
    with opened(model) as study:
        return [float(each.weight.double().norm()) for each in linear_maps(study)]


def _product(name: str, norms: list[float]) -> Result:
    logarithm = math.fsum(math.log(norm) if norm > 0 else -math.inf for norm in norms)
    # Beyond the range of a float the logarithm still tells models apart.
    value = math.exp(logarithm) if logarithm < 709 else math.inf
    return Result(name, value, settings={"maps": len(norms), "logarithm": logarithm})


def _norm(tensors: list[Tensor]) -> float:
    squares = [float(torch.linalg.vector_norm(each.detach(), dtype=torch.float64).square()) for each in tensors]
    return math.sqrt(math.fsum(squares))
