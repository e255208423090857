"""The direction of steepest ascent in a ball around the weights, plain or scaled by the weights themselves."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

ETA = 0.01
"""What ASAM adds to the size of a weight, so that weights near zero can move too."""


def weight_scales(named: Iterable[tuple[str, Tensor]], eta: float) -> list[Tensor | None]:
    """Return the scales T of adaptive sharpness, as the official ASAM has them.

    They are |w| + eta for parameters that are called a weight, and 1 (here None) for all others, such as biases.
    """
    return [weight.detach().abs() + eta if "weight" in name else None for name, weight in named]


def steepest_ascent(gradients: Sequence[Tensor], scales: Sequence[Tensor | None] | None = None) -> list[Tensor]:
    """Return T² g / |T g|: within |e / T| ≤ 1 the step e that raises the loss most to first order; T = 1 by default."""
    scales = scales or [None] * len(gradients)
    if not gradients:
        return []
    scaled = _times(gradients, scales)
    # A gradient of zero points nowhere: the step is then zero, not NaN.
    norm = get_total_norm(scaled)
    norm = norm + torch.finfo(norm.dtype).tiny
    steps = _times(scaled, scales)
    if len({each.device for each in steps}) > 1:
        return [each / norm.to(each.device) for each in steps]
    # All at once, as torch's own optimizers do: one by one, small weights would keep a GPU busy with launches.
    return list(torch._foreach_div(steps, norm))


def _times(tensors: Sequence[Tensor], scales: Sequence[Tensor | None]) -> list[Tensor]:
    return [each if scale is None else each * scale for each, scale in zip(tensors, scales, strict=True)]
