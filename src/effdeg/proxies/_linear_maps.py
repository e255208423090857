"""The linear maps in a model, its matrices and convolutions, and how much they stretch."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from effdeg.proxies._lanczos import largest_eigenvalue
from effdeg.proxies._study import NotApplicable, Study

TOLERANCE = 1e-4
"""How far the square of a spectral norm may be off, relatively; mostly it is far nearer, and it is never too large."""


@dataclass(frozen=True)
class LinearMap:
    """A linear map in a model.

    Attributes:
        name: The name of its weight.
        weight: The weight.
        convolution: The layer, if it is one: then the map is what the layer does to feature maps, not its kernel.
    """

    name: str
    weight: Tensor
    convolution: _ConvNd | None

    def spectral_norm(self, features: torch.Size | None, seed: int) -> float:
        """Find by how much the map stretches the vector that it stretches most.

        Args:
            features: The shape of what goes into a convolution.
            seed: Determines where the search starts.

        Returns:
            The largest singular value.
        """
        # Not every device has float64.
        weight = self.weight.to("cpu" if self.weight.device.type == "mps" else self.weight.device).double()
        if self.convolution is None:
            matrix = weight.flatten(1)
            return largest_singular_value(lambda x: matrix @ x, torch.Size([matrix.shape[1]]), weight.device, seed)
        assert features is not None
        return largest_singular_value(_bare(self.convolution, weight), features, weight.device, seed)


def linear_maps(study: Study) -> list[LinearMap]:
    """List the linear maps of a model: every weight of two or more dimensions (Linear, Conv, Embedding, RNN, …)."""
    study.check_open()
    found = list(_maps(study.module))
    if not found:
        raise NotApplicable(
            f"the model ({type(study.module).__name__}) has no weight matrix: no parameter that is called a weight and "
            "has two or more dimensions."
        )
    return found


def spectral_norms(study: Study) -> list[float]:
    """Find the spectral norm of every linear map of a model, once."""
    maps = linear_maps(study)

    def find() -> list[float]:
        features = _features(study, maps)
        # A convolution that does not run, such as that of a head for training only, has no map and no size.
        run = [each for each in maps if each.convolution is None or each.name in features]
        return [each.spectral_norm(features.get(each.name), study.seed) for each in run]

    return study.once("spectral norms", find)


def largest_singular_value(
    apply: Callable[[Tensor], Tensor], shape: torch.Size, device: torch.device, seed: int
) -> float:
    """Find the largest singular value of a linear map A: the root of the largest eigenvalue of AᵀA.

    The adjoint is the derivative of the map, so that any padding, stride or dilation is the layer's own.
    """
    start = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)
    square, _ = largest_eigenvalue(
        lambda x: _normal_product(apply, x.view(shape)).flatten(),
        start.flatten(),
        tolerance=TOLERANCE,
        what="a spectral norm's square",
    )
    return math.sqrt(max(square, 0.0))


def _normal_product(apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        image = apply(x)
        # The derivative of |A x|² / 2 is AᵀA x.
        (product,) = torch.autograd.grad(image.square().sum() / 2, x)
    return product


def _bare(layer: _ConvNd, weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a convolution with another weight, without bias, without hooks and without what makes its weight."""
    kind: Any = type(layer).__mro__[1] if parametrize.is_parametrized(layer) else type(layer)
    twin = kind.__new__(kind)
    own = {name: value for name, value in layer.__dict__.items() if name not in {"weight", "bias"}}
    empty: dict[str, Any] = {name: {} for name in ("_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")}
    twin.__dict__.update({**own, **empty, "_parameters": {"weight": weight, "bias": None}})
    return partial(kind.forward, twin)


def _maps(model: nn.Module) -> Iterator[LinearMap]:
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if isinstance(module, (parametrize.ParametrizationList, nn.LayerNorm, nn.RMSNorm)):
            continue
        names = [_made_name(module, name) for name, _ in module.named_parameters(recurse=False)]
        if parametrize.is_parametrized(module):
            # The parameters of a layer under weight norm and the like are not its weight, which is made from them.
            names += list(module.parametrizations)
        for name in dict.fromkeys(names):
            weight = getattr(module, name)
            if "weight" not in name or weight.dim() < 2 or id(own := module._parameters.get(name)) in seen:
                continue
            if own is not None:
                seen.add(id(own))  # a weight that two layers share counts once
            convolution = module if isinstance(module, _ConvNd) and name == "weight" else None
            yield LinearMap(f"{prefix}.{name}" if prefix else name, weight.detach(), convolution)


def _made_name(module: nn.Module, name: str) -> str:
    """Return the name of the weight that older ``nn.utils.weight_norm`` and ``spectral_norm`` make of a parameter."""
    for suffix in ("_g", "_v", "_orig"):
        made = name.removesuffix(suffix)
        if made != name and isinstance(getattr(module, made, None), Tensor):
            return made
    return name


def _features(study: Study, maps: list[LinearMap]) -> dict[str, torch.Size]:
    """Find the shape of what goes into each convolution by running the model on one example."""
    shapes: dict[str, torch.Size] = {}
    convolutions = [(each.name, each.convolution) for each in maps if each.convolution is not None]
    if not convolutions:
        return shapes
    study.check_data()
    with ExitStack() as stack:
        for name, layer in convolutions:

            def keep(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], name: str = name) -> None:
                spatial = len(layer.kernel_size)  # type: ignore[arg-type]
                x = given[0] if given else named["input"]
                shapes.setdefault(name, torch.Size([1, *x.shape[-1 - spatial :]]))

            stack.callback(layer.register_forward_pre_hook(keep, with_kwargs=True).remove)
        study.subject(study.fetch(slice(0, 1))[0])
    return shapes
