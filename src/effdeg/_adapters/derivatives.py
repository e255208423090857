"""Derivatives of a model for proxies and baselines: Jacobian norms, steepest ascent, and second derivatives."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import normalize
from torch.nn.utils import get_total_norm
from torch.overrides import TorchFunctionMode

from effdeg._adapters.layers import as_module, eager
from effdeg._utils.checks import check_count
from effdeg._utils.device import send
from effdeg._utils.shapes import Float
from effdeg._utils.statistics import power_of_two

ETA = 0.01
"""What ASAM adds to the magnitude of a weight, so that weights near zero can move too."""


def weight_scales(named: Iterable[tuple[str, Tensor]], eta: float) -> list[Tensor | None]:
    """Return the scales T of adaptive sharpness: |w| + η if the name says ``weight``, else 1 (None), as ASAM's code."""
    return [weight.detach().abs() + eta if "weight" in name else None for name, weight in named]


def steepest_ascent(gradients: Sequence[Tensor], scales: Sequence[Tensor | None] | None = None) -> list[Tensor]:
    """Return T² g / ‖T g‖, the step e within ‖e / T‖ ≤ 1 that raises the loss most to first order; T = 1 by default."""
    scales = scales or [None] * len(gradients)
    if not gradients:
        return []
    scaled = _times(gradients, scales)
    # The squares of a large or tiny gradient, of which only the direction counts, could leave the range of float32.
    scaled = _divide(scaled, power_of_two(get_total_norm([each for each in scaled if each.numel()], math.inf)))
    # A gradient of zero has no direction: the step is then zero, not NaN.
    norm = get_total_norm(scaled)
    return _divide(_times(scaled, scales), norm + torch.finfo(norm.dtype).tiny)


def _times(tensors: Sequence[Tensor], scales: Sequence[Tensor | None]) -> list[Tensor]:
    return [each if scale is None else each * scale for each, scale in zip(tensors, scales, strict=True)]


def _divide(tensors: list[Tensor], by: Tensor) -> list[Tensor]:
    if len({each.device for each in tensors}) > 1:
        return [each / by.to(each.device) for each in tensors]
    # All at once, as torch's optimizers do: one by one, small weights would cost a GPU mostly kernel launches.
    return list(torch._foreach_div(tensors, by))


def check_gradients_enabled() -> None:
    """Raise at a layer that runs without gradients: derivatives by its output would silently be zero."""
    if not torch.is_grad_enabled():
        raise ValueError(
            "the layer at=… runs without gradients, as in torch.no_grad() or in torch.utils.checkpoint with "
            "use_reentrant=True, so nothing can be differentiated by its output. Use use_reentrant=False, or choose "
            "another layer."
        )


def check_projections(projections: int) -> None:
    """Raise unless this is a number of random projections, or -1 for all outputs in turn."""
    if projections != -1:
        try:
            check_count("projections", projections, least=1)
        except ValueError:
            raise ValueError(f"projections={projections} must be at least 1, or -1 for the exact value.") from None


def squared_norms(
    values: Float[Tensor, "examples outputs"],
    inputs: Sequence[Tensor],
    *,
    projections: int,
    generator: torch.Generator | None = None,
    directions: Float[Tensor, "examples projections outputs"] | None = None,
    create_graph: bool = False,
) -> Float[Tensor, " examples"]:
    """Return the squared Frobenius norm of each example's Jacobian with respect to ``inputs``.

    A direction v uniform on the unit sphere of C outputs has C E[v vᵀ] = I, so that C ‖vᵀJ‖² is unbiased (Hoffman et
    al. 2019). ``projections`` directions are drawn for each example, or taken from ``directions``; -1 takes every
    output in turn, which is exact where examples do not depend on each other. Where they do, as under BatchNorm in
    training, products of different examples' derivatives cancel on average, since directions have independent signs.
    """
    count = values.shape[1] if projections == -1 else projections
    total = values.new_zeros(len(values))
    signs = torch.where(_draw(values, generator) < 0, -1.0, 1.0) if projections == -1 else None
    for number in range(count):
        if signs is not None:
            direction = torch.zeros_like(values)
            direction[:, number] = signs[:, number].to(direction)
        else:
            drawn = _draw(values, generator) if directions is None else send(directions[:, number], values.device)
            direction = normalize(drawn.to(values.dtype), dim=1)
        # The graph of the forward pass is needed until the last backward pass.
        retain_graph = create_graph or number < count - 1
        for gradient in grad(values, inputs, direction, retain_graph, create_graph, allow_unused=True):
            if gradient is not None:
                total = total + gradient.reshape(len(total), -1).to(total.dtype).square().sum(1)
    return total if projections == -1 else total * (values.shape[1] / count)


def _draw(values: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.randn_like(values)
    drawn = torch.randn(values.shape, generator=generator, dtype=torch.float32, device=generator.device)
    return send(drawn, values.device)


@contextmanager
def double_differentiable(model: object) -> Iterator[None]:
    """Run a model, in a forward pass, with kernels that have second derivatives, as the fastest ones often lack."""
    module = as_module(model)
    recurrent = module is not None and any(isinstance(part, nn.RNNBase) for part in module.modules())
    # Not in general: convolutions need cuDNN to be fast.
    cudnn = torch.backends.cudnn.flags(enabled=False) if recurrent else nullcontext()
    with eager(), sdpa_kernel(SDPBackend.MATH), cudnn:
        yield


class PlainWeightNorm(TorchFunctionMode):
    """Computes weight norm step by step: in its second derivative torch's kernel takes the norm for a constant."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch._weight_norm:
            direction, length, *dimension = args
            return direction * (length / torch.norm_except_dim(direction, 2, *dimension))
        return function(*args, **(kwargs or {}))
