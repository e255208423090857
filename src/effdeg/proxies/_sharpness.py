"""Sharpness: how much the loss rises when the weights move a little."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._adapters.derivatives import ETA, steepest_ascent, weight_scales
from effdeg._adapters.inference import Model
from effdeg._utils.checks import check_count, check_number
from effdeg._utils.statistics import mean_and_stderr
from effdeg.proxies._evaluator import Evaluator, Loss, NotApplicable, Result, RunOptions, Weights, check_options


@check_options
def sharpness(
    model: Model,
    data: Any,
    loss: Loss,
    *,
    rho: float = 0.05,
    adaptive: bool = False,
    **options: Unpack[RunOptions],
) -> Result:
    """Measure worst-case sharpness: the largest rise of the loss when the weights move by up to ``rho``.

    This is max L(w + e) - L(w) over |e / T| ≤ rho, with T = 1 or, if adaptive, T = |w| + 0.01 for weights and 1 for
    biases, as in the official ASAM. To first order the maximum is reached by one step to the edge of the ball along the
    gradient g: e = rho T² g / |T g| (Foret et al. 2021; Kwon et al. 2021). BatchNorm uses its running statistics.

    Args:
        model: An ``nn.Module``. The weights that require gradients are moved; all, if none does.
        data: Examples with labels, as for :func:`evaluate`.
        loss: The mean loss of a batch, from outputs and labels.
        rho: The radius.
        adaptive: Measure in units of the weights. For weights that are large compared to 0.01, rescaling the layers of
            a ReLU network without biases then hardly changes the value.

    Raises:
        ValueError: The loss does not take the labels or is not the mean of a batch.
        NotApplicable: The model has no weights, the data have no labels, the loss is not finite, or the radius is lost
            in the rounding of the weights.

    Example:
        For the loss w² at w = 1 the worst step within 0.1 goes to 1.1:

        >>> import torch, effdeg
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.ones_(model.weight)
        >>> data = torch.ones(4, 1), torch.zeros(4, 1)
        >>> round(effdeg.proxies.sharpness(model, data, torch.nn.functional.mse_loss, rho=0.1).value, 4)
        0.21
    """
    check_radius("rho", rho)
    with Evaluator.open(model, data, loss, **options) as evaluator:
        evaluator.check_loss()
        base, gradient = evaluator.gradient()
        _check_loss(base, "of the model as it is")
        scales = weight_scales(evaluator.weights.items(), ETA) if adaptive else None
        step = steepest_ascent(_as_double(gradient), scales)
        moved = _move(evaluator.weights, step, rho)
        rise = _check_loss(evaluator.mean_loss(moved), f"at radius rho={rho:g}") - base
    name = f"{'adaptive_' if adaptive else ''}sharpness@{rho:g}"
    return Result(name, rise, settings={"rho": rho, "examples": evaluator.count})


@check_options
def average_sharpness(
    model: Model,
    data: Any,
    loss: Loss,
    *,
    sigma: float = 0.01,
    samples: int = 8,
    **options: Unpack[RunOptions],
) -> Result:
    """Measure average-case sharpness: the mean rise of the loss under Gaussian noise on the weights.

    This is E[L(w + sigma z)] - L(w) with standard normal z. Each draw is used with both signs, so that the slope of the
    loss cancels out. For a smooth loss the result is, to second order, sigma² / 2 times the trace of the Hessian. It is
    the mean over so many ``samples``, with its standard error. The other arguments are those of :func:`sharpness`.

    Raises:
        ValueError: The loss does not take the labels or is not the mean of a batch.
        NotApplicable: The model has no weights, the data have no labels, the loss is not finite, or the radius is lost
            in the rounding of the weights.

    Example:
        A loss that is linear in the weights rises as much as it falls:

        >>> import torch, effdeg
        >>> data = torch.ones(4, 3), torch.zeros(4, 1)
        >>> result = effdeg.proxies.average_sharpness(torch.nn.Linear(3, 1), data, lambda outputs, _: outputs.mean())
        >>> abs(result.value) < 1e-6
        True
    """
    check_radius("sigma", sigma)
    check_count("samples", samples, least=2)
    with Evaluator.open(model, data, loss, **options) as evaluator:
        evaluator.check_loss()
        weights = evaluator.weights
        base = _check_loss(evaluator.own_loss(), "of the model as it is")
        generator = torch.Generator().manual_seed(evaluator.seed)
        rises = []
        for _ in range(samples):
            noise = [_draw(weight, generator) for weight in weights.values()]
            ends = [evaluator.mean_loss(_move(weights, noise, length)) for length in (sigma, -sigma)]
            rises.append(_check_loss(sum(ends) / 2, f"under noise of sigma={sigma:g}") - base)
    value, stderr = mean_and_stderr(torch.tensor(rises, dtype=torch.float64, device="cpu"))
    settings = {"sigma": sigma, "samples": samples, "examples": evaluator.count}
    return Result(f"average_sharpness@{sigma:g}", value, stderr, settings)


def check_radius(name: str, radius: object) -> None:
    """Raise unless a radius is a positive number."""
    check_number(name, radius, "it is how far the weights move, such as 0.05")


def _as_double(gradient: Weights) -> list[Tensor]:
    # Not every device has float64.
    return [each.double() if each.device.type != "mps" else each.float() for each in gradient.values()]


def _move(weights: Weights, steps: list[Tensor], length: float) -> dict[str, Tensor]:
    pairs = zip(weights.items(), steps, strict=True)
    moved = {name: weight + (length * step).to(weight.dtype) for (name, weight), step in pairs}
    if all(torch.equal(weights[name], each) for name, each in moved.items()) and any(
        bool(each.any()) for each in steps
    ):
        raise NotApplicable(
            "the weights do not move by this radius, which is lost in their rounding. Use a larger radius, or a higher "
            "precision (dtype=torch.float64)."
        )
    return moved


def _draw(like: Tensor, generator: torch.Generator) -> Tensor:
    # On the CPU, so that a seed gives the same noise on every device.
    return torch.randn(like.shape, generator=generator, dtype=torch.float32, device="cpu").to(like)


def _check_loss(loss: float, where: str) -> float:
    if not math.isfinite(loss):
        raise NotApplicable(
            f"the loss {where} is {loss}. Use a smaller radius, run in a higher precision (dtype=torch.float64), or "
            "check the model's outputs there."
        )
    return loss
