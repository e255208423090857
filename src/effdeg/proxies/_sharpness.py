"""Sharpness: how much the loss rises when the weights move a little."""

import math
from numbers import Real
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._models.derivatives import ETA, steepest_ascent, weight_scales
from effdeg._models.inference import Model
from effdeg._utils.checks import check_count
from effdeg._utils.statistics import mean_and_stderr
from effdeg.proxies._result import Result
from effdeg.proxies._study import Loss, NotApplicable, Running, Study, Weights, opened, proxy

RADII = (0.01, 0.05, 0.1)
"""The paper's radii of sharpness."""

ADAPTIVE_RADII = (0.01, 0.05, 0.1, 0.5, 1.0)
"""The paper's radii of adaptive sharpness."""


@proxy
def sharpness(
    model: Model | Study,
    data: Any,
    loss: Loss | None,
    *,
    rho: float = 0.05,
    adaptive: bool = False,
    steps: int = 1,
    eta: float = ETA,
    micro_batch: int | None = None,
    normalize_logits: bool = False,
    **running: Unpack[Running],
) -> Result:
    """Measure worst-case sharpness: how much the loss rises, at most, when the weights move by up to ``rho``.

    One step goes to the edge of the ball |e / T| ≤ rho along the gradient g: e = rho T² g / |T g|, with T = 1, or, if
    adaptive, T = |w| + eta for weights and 1 for biases, as in the official ASAM. BatchNorm uses its running
    statistics.

    Further steps look for the maximum, and the largest rise found counts. They go to the edge along the gradient found
    there (the generalized power method of Journée et al. 2010), which reaches the maximum where the loss is convex.
    After ten steps without a new maximum they climb from the best point by projected gradient steps, halved where the
    loss does not rise, as in AutoPGD (Croce and Hein 2020). When these are small, and after 30 steps in any case, the
    search begins again from a random point of the edge. The result is a lower bound: at radii at which the loss has
    many maxima a few steps may end at a low one, while 200 reach what AutoPGD reaches on small networks. Each step but
    the last costs one gradient of the data, the last a forward pass.

    Args:
        model: An ``nn.Module``. The weights that require gradients are moved; all, if none does.
        data: Labelled examples: ``(inputs, labels)``, a ``Dataset``, a ``DataLoader``, an iterable of batches, or a
            mapping with ``labels``.
        loss: The mean loss of a batch, from outputs and labels.
        rho: The radius.
        adaptive: Measure in units of the weights. With ``eta=0`` rescaling the layers of a ReLU network without biases
            changes nothing; biases, for which T = 1, and weights that are not large against ``eta`` make it change.
        steps: The number of steps; 1 is the one of SAM and ASAM, 20 to 200 look for the maximum.
        eta: What is added to the size of a weight.
        micro_batch: Find a perturbation for every so many examples and average over examples (m-sharpness); by default
            one for all.
        normalize_logits: Divide each example's logits by their standard deviation first, as in the paper of
            Andriushchenko et al. (2023). Their code centres the logits and divides by the norm instead: smaller by the
            root of the number of classes, and so at another temperature.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The rise of the mean loss, with a standard error over micro-batches if there are any.
    """
    check_radius(rho, "rho")
    check_eta(eta)
    check_count("steps", steps, least=1)
    if micro_batch is not None:
        check_count("micro_batch", micro_batch, least=1)
    with opened(model, data, loss, **running) as study:
        study.check_loss()
        scales = weight_scales(study.weights.items(), eta) if adaptive else None
        step = micro_batch or study.count
        parts = [slice(start, min(start + step, study.count)) for start in range(0, study.count, step)]
        rises = [_rise(study, part, scales, rho=rho, steps=steps, normalize=normalize_logits) for part in parts]
        value, stderr = _weighted(rises, [(part.stop - part.start) / study.count for part in parts])
        settings = {"rho": rho, "steps": steps, "examples": study.count}
        if adaptive:
            settings["eta"] = eta
        if micro_batch is not None:
            settings["micro_batch"] = micro_batch
        if normalize_logits:
            settings["normalize_logits"] = True
        name = f"{'adaptive_' if adaptive else ''}sharpness@{rho:g}"
        return Result(name, value, stderr, settings)


@proxy
def average_sharpness(
    model: Model | Study,
    data: Any,
    loss: Loss | None,
    *,
    sigma: float = 0.01,
    adaptive: bool = False,
    samples: int = 8,
    eta: float = ETA,
    normalize_logits: bool = False,
    **running: Unpack[Running],
) -> Result:
    """Measure average-case sharpness: how much the loss rises, on average, under Gaussian noise on the weights.

    The noise is sigma T z with standard normal z, and T as for :func:`sharpness`. Each draw is used with both signs, so
    that the slope of the loss cancels out; for a smooth loss the result is, to second order, sigma² / 2 times the trace
    of the Hessian.

    Args:
        model: An ``nn.Module``.
        data: Labelled examples.
        loss: The mean loss of a batch, from outputs and labels.
        sigma: The standard deviation of the noise on each weight.
        adaptive: Scale the noise by the size of each weight.
        samples: How many draws, each used twice.
        eta: What is added to the size of a weight.
        normalize_logits: Divide each example's logits by their standard deviation first.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean rise of the loss and its standard error over the draws.
    """
    check_radius(sigma, "sigma")
    check_eta(eta)
    check_count("samples", samples, least=2)
    with opened(model, data, loss, **running) as study:
        study.check_loss()
        whole = study.everything()
        base = _finite(study.own_loss(normalize=normalize_logits), "of the model as it is")
        scales = weight_scales(study.weights.items(), eta) if adaptive else [None] * len(study.weights)
        generator = torch.Generator().manual_seed(study.seed)
        rises = []
        for _ in range(samples):
            pairs = zip(study.weights.values(), scales, strict=True)
            noise = [_normal(weight, scale, generator) for weight, scale in pairs]
            there_and_back = [
                study.mean_loss(_moved(study.weights, noise, length), whole, normalize=normalize_logits)
                for length in (sigma, -sigma)
            ]
            rises.append(_finite(sum(there_and_back) / 2, f"under noise of sigma={sigma:g}") - base)
        value, stderr = mean_and_stderr(torch.tensor(rises, dtype=torch.float64))
        settings = {"sigma": sigma, "samples": samples, "examples": study.count}
        return Result(f"{'adaptive_' if adaptive else ''}average_sharpness@{sigma:g}", value, stderr, settings)


def check_radius(radius: object, name: str = "radius") -> None:
    """Raise unless a radius is a positive number."""
    if not (isinstance(radius, Real) and 0 < float(radius) < math.inf):
        raise ValueError(f"{name}={radius!r} must be a positive number, such as 0.05: how far the weights move.")


def check_eta(eta: object) -> None:
    """Raise unless it can be added to the size of weights."""
    if not (isinstance(eta, Real) and 0 <= float(eta) < math.inf):
        raise ValueError(f"eta={eta!r} must be zero or positive: it is added to the size of weights.")


def _weighted(rises: list[float], shares: list[float]) -> tuple[float, float | None]:
    """Average over micro-batches, the last of which may be smaller, with a standard error if there are several."""
    mean = math.fsum(rise * share for rise, share in zip(rises, shares, strict=True))
    if len(rises) < 2:
        return mean, None
    squares = math.fsum((share * (rise - mean)) ** 2 for rise, share in zip(rises, shares, strict=True))
    return mean, math.sqrt(squares * len(rises) / (len(rises) - 1))


def _rise(
    study: Study, part: slice, scales: list[Tensor | None] | None, *, rho: float, steps: int, normalize: bool
) -> float:
    base, gradient = study.gradient(part, normalize=normalize)
    _finite(base, "of the model as it is")
    search = _Search(_precise(gradient), scales, rho, torch.Generator().manual_seed(study.seed))
    for step in range(steps):
        moved = _moved(study.weights, search.point, 1.0)
        if step < steps - 1:
            reached, gradient = study.gradient(part, moved, normalize=normalize)
            search.advance(_finite(reached, f"at radius rho={rho:g}"), _precise(gradient))
        else:
            reached = _finite(study.mean_loss(moved, part, normalize=normalize), f"at radius rho={rho:g}")
    return max(search.highest, reached) - base


class _Search:
    """A search for the highest loss in the ball |e / T| ≤ rho, one point after another."""

    # Full steps without a new maximum before smaller ones begin; the smallest of those, as a share of rho; and the most
    # steps from one start, since where the loss has many maxima another start finds more than the last digits of one.
    _PATIENCE, _SMALLEST, _LONGEST = 10, 1 / 64, 30

    def __init__(
        self, slopes: list[Tensor], scales: list[Tensor | None] | None, rho: float, generator: torch.Generator
    ) -> None:
        self._scales, self._rho, self._generator = scales, rho, generator
        self.highest = -math.inf
        # Where to look next; the highest point since the start, with its gradient, and the size of steps from there,
        # None for full ones.
        self.point: list[Tensor]
        self._best: float
        self._top: list[Tensor]
        self._slopes: list[Tensor]
        self._size: float | None
        self._start(slopes)

    def advance(self, loss: float, slopes: list[Tensor]) -> None:
        """Take in the loss and its gradient at the current point, and move on to the next one."""
        self.highest = max(self.highest, loss)
        if loss > self._best:
            self._best, self._top, self._slopes, self._failed = loss, self.point, slopes, 0
        else:
            self._failed += 1
            if self._size is not None:
                self._size /= 2
            elif self._failed == self._PATIENCE:
                self._size = self._rho
        self._steps += 1
        ended = self._steps == self._LONGEST or (self._size or math.inf) <= self._SMALLEST * self._rho
        if ended or not any(bool(slope.any()) for slope in slopes):
            self._start([_normal(slope, None, self._generator) for slope in slopes])
        elif self._size is None:
            self.point = self._times(self._rho, self._uphill(slopes))
        else:
            steps = self._times(self._size, self._uphill(self._slopes))
            self.point = self._project([one + step for one, step in zip(self._top, steps, strict=True)])

    def _start(self, slopes: list[Tensor]) -> None:
        """Start at the edge, along a gradient or a random direction."""
        self.point = self._times(self._rho, self._uphill(slopes))
        self._best, self._size, self._failed, self._steps = -math.inf, None, 0, 0

    def _uphill(self, slopes: list[Tensor]) -> list[Tensor]:
        return steepest_ascent(slopes, self._scales)

    def _project(self, point: list[Tensor]) -> list[Tensor]:
        """Shorten a step e to |e / T| = rho if it is longer."""
        scales = self._scales or [None] * len(point)
        squares = [
            float((e if t is None else _divide(e, t)).square().sum()) for e, t in zip(point, scales, strict=True)
        ]
        length = math.sqrt(math.fsum(squares))
        return self._times(min(1.0, self._rho / length), point) if length > 0 else point

    @staticmethod
    def _times(factor: float, tensors: list[Tensor]) -> list[Tensor]:
        return [factor * each for each in tensors]


def _divide(step: Tensor, scale: Tensor) -> Tensor:
    # A weight of scale 0 does not move at all.
    return torch.where(scale > 0, step / scale, 0.0)


def _precise(gradient: Weights) -> list[Tensor]:
    # The norm of a large or tiny gradient would leave the range of its own precision. Not every device has float64.
    return [each.double() if each.device.type != "mps" else each.float() for each in gradient.values()]


def _moved(weights: Weights, steps: list[Tensor], length: float) -> dict[str, Tensor]:
    pairs = zip(weights.items(), steps, strict=True)
    return {name: weight + (length * step).to(weight.dtype) for (name, weight), step in pairs}


def _normal(like: Tensor, scale: Tensor | None, generator: torch.Generator) -> Tensor:
    # Drawn on the CPU, so that a seed means the same noise on every device.
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32).to(like)
    return drawn if scale is None else drawn * scale


def _finite(loss: float, where: str) -> float:
    if not math.isfinite(loss):
        raise NotApplicable(
            f"the loss {where} is {loss}. Use a smaller radius, run in a better precision (dtype=torch.float64), or "
            "look at the model's outputs there."
        )
    return loss
