"""Sharpness: how much the loss rises when the weights move a little."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._adapters.derivatives import ETA, steepest_ascent, weight_scales
from effdeg._adapters.inference import Model
from effdeg._utils.checks import check_count, check_number
from effdeg._utils.statistics import find_unit, mean_and_stderr
from effdeg.proxies._evaluator import Evaluator, Loss, NotApplicable, Result, RunOptions, Weights, check_options


@check_options
def sharpness(
    model: Model,
    data: Any,
    loss: Loss,
    *,
    rho: float = 0.05,
    adaptive: bool = False,
    steps: int = 1,
    eta: float = ETA,
    micro_batch: int | None = None,
    normalize_logits: bool = False,
    **options: Unpack[RunOptions],
) -> Result:
    """Measure worst-case sharpness: the largest rise of the loss when the weights move by up to ``rho``.

    This is max L(w + e) - L(w) over |e / T| ≤ rho, with T = 1 or, if adaptive, T = |w| + eta for weights and 1 for
    biases, as in the official ASAM. One step goes to the edge of the ball along the gradient g: e = rho T² g / |T g|
    (Foret et al. 2021; Kwon et al. 2021). BatchNorm uses its running statistics.

    Further steps search for the maximum, and the largest rise counts. Each goes to the edge along the gradient at the
    last point (the generalized power method of Journée et al. 2010), which never lowers a convex loss. After ten steps
    without a new maximum, projected gradient steps from the best point follow, halved where the loss does not rise, as
    in AutoPGD (Croce and Hein 2020). When these are small, and after 30 steps, the search restarts from a random point
    on the edge. The result is a lower bound: a few steps may end at a low maximum, while 200 reach what AutoPGD reaches
    on small networks. Each step but the last costs one gradient over the data, the last a forward pass.

    Args:
        model: An ``nn.Module``. The weights that require gradients are moved; all, if none does.
        data: Examples with labels, as for :func:`evaluate`.
        loss: The mean loss of a batch, from outputs and labels.
        rho: The radius.
        adaptive: Measure in units of the weights. With ``eta=0``, rescaling the layers of a ReLU network without biases
            does not change the value. With biases (T = 1) or weights that are not large compared to ``eta`` it does.
        steps: The number of steps: 1 as in SAM and ASAM, 20 to 200 to search for the maximum.
        eta: Added to the size of each weight.
        micro_batch: Find one perturbation for every ``micro_batch`` examples and average over examples (m-sharpness);
            by default one for all.
        normalize_logits: Divide each example's logits by their standard deviation first, as in the paper of
            Andriushchenko et al. (2023). Their code centers the logits and divides by the norm instead: smaller by the
            root of the number of classes, and so at another temperature.

    Returns:
        The rise of the mean loss, with a standard error over micro-batches if there are any.

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
    check_number("eta", eta, "it is added to the size of each weight", zero=True)
    check_count("steps", steps, least=1)
    if micro_batch is not None:
        check_count("micro_batch", micro_batch, least=1)
    with Evaluator.open(model, data, _normalize_before(loss) if normalize_logits else loss, **options) as evaluator:
        evaluator.check_loss()
        scales = weight_scales(evaluator.weights.items(), eta) if adaptive else None
        parts = evaluator.split(micro_batch or evaluator.count)
        rises = [_find_rise(evaluator, part, scales, rho, steps) for part in parts]
        value, stderr = _average(rises, [(part.stop - part.start) / evaluator.count for part in parts])
    settings = {"rho": rho, "steps": steps, "examples": evaluator.count}
    if adaptive:
        settings["eta"] = eta
    if micro_batch is not None:
        settings["micro_batch"] = micro_batch
    if normalize_logits:
        settings["normalize_logits"] = True
    return Result(f"{'adaptive_' if adaptive else ''}sharpness@{rho:g}", value, stderr, settings)


@check_options
def average_sharpness(
    model: Model,
    data: Any,
    loss: Loss,
    *,
    sigma: float = 0.01,
    adaptive: bool = False,
    samples: int = 8,
    eta: float = ETA,
    normalize_logits: bool = False,
    **options: Unpack[RunOptions],
) -> Result:
    """Measure average-case sharpness: the mean rise of the loss under Gaussian noise on the weights.

    This is E[L(w + sigma T z)] - L(w) with standard normal z, and T as for :func:`sharpness`. Each draw is used with
    both signs, so that the slope of the loss cancels out. For a smooth loss and T = 1 the result is, to second order,
    sigma² / 2 times the trace of the Hessian. The result is the mean over so many ``samples`` and its standard error.
    The other arguments are those of :func:`sharpness`.

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
    check_number("eta", eta, "it is added to the size of each weight", zero=True)
    check_count("samples", samples, least=2)
    with Evaluator.open(model, data, _normalize_before(loss) if normalize_logits else loss, **options) as evaluator:
        evaluator.check_loss()
        weights = evaluator.weights
        base = _check_loss(evaluator.own_loss(), "of the model as it is")
        scales = weight_scales(weights.items(), eta) if adaptive else [None] * len(weights)
        generator = torch.Generator().manual_seed(evaluator.seed)
        rises = []
        for _ in range(samples):
            noise = [_draw(weight, scale, generator) for weight, scale in zip(weights.values(), scales, strict=True)]
            ends = [evaluator.mean_loss(_move(weights, noise, length), evaluator.whole) for length in (sigma, -sigma)]
            rises.append(_check_loss(sum(ends) / 2, f"under noise of sigma={sigma:g}") - base)
    value, stderr = mean_and_stderr(torch.tensor(rises, dtype=torch.float64, device="cpu"))
    settings = {"sigma": sigma, "samples": samples, "examples": evaluator.count}
    return Result(f"{'adaptive_' if adaptive else ''}average_sharpness@{sigma:g}", value, stderr, settings)


def check_radius(name: str, radius: object) -> None:
    """Raise unless a radius is a positive number."""
    check_number(name, radius, "it is how far the weights move, such as 0.05")


def _normalize_before(loss: Loss) -> Loss:

    def normalized(logits: Tensor, labels: Any) -> Tensor:
        if logits.dim() < 2 or logits.shape[-1] < 2:
            shape = tuple(logits.shape)
            raise ValueError(f"normalize_logits= is for several logits, not for outputs of shape {shape}.")
        return loss(logits / logits.std(-1, correction=0, keepdim=True), labels)

    return normalized if callable(loss) else loss


def _average(rises: list[float], shares: list[float]) -> tuple[float, float | None]:
    """Average over micro-batches, the last of which may be smaller, with a standard error if there are several."""
    mean = math.fsum(rise * share for rise, share in zip(rises, shares, strict=True))
    if len(rises) < 2:
        return mean, None
    differences = [share * (rise - mean) for rise, share in zip(rises, shares, strict=True)]
    unit = find_unit(torch.tensor(differences, dtype=torch.float64, device="cpu"))  # so that no square overflows
    squares = math.fsum((each / unit) ** 2 for each in differences)
    return mean, math.sqrt(squares * len(rises) / (len(rises) - 1)) * unit


def _find_rise(evaluator: Evaluator, part: slice, scales: list[Tensor | None] | None, rho: float, steps: int) -> float:
    base, gradient = evaluator.gradient(part)
    _check_loss(base, "of the model as it is")
    search = _Search(_as_double(gradient), scales, rho, torch.Generator().manual_seed(evaluator.seed))
    for step in range(steps):
        moved = _move(evaluator.weights, search.point, 1.0)
        if step < steps - 1:
            reached, gradient = evaluator.gradient(part, moved)
            search.advance(_check_loss(reached, f"at radius rho={rho:g}"), _as_double(gradient))
        else:
            reached = _check_loss(evaluator.mean_loss(moved, part), f"at radius rho={rho:g}")
    return max(search.highest, reached) - base


class _Search:
    """A search for the highest loss in the ball |e / T| ≤ rho, one point after another."""

    # Full steps without a new maximum before smaller ones begin; the smallest of those, as a share of rho; and the most
    # steps from one start: with many maxima, a new start gains more than the last digits of the present one.
    _PATIENCE, _SMALLEST, _LONGEST = 10, 1 / 64, 30

    def __init__(
        self, slopes: list[Tensor], scales: list[Tensor | None] | None, rho: float, generator: torch.Generator
    ) -> None:
        self._scales, self._rho, self._generator = scales, rho, generator
        self.highest = -math.inf
        self._start(slopes)

    def _start(self, slopes: list[Tensor]) -> None:
        """Start at the edge, along a gradient or a random direction."""
        self.point = self._step(self._rho, slopes)
        # The highest point since the start, its loss and gradient, and the size of steps from it, None for full ones.
        self._top, self._best, self._slopes = self.point, -math.inf, slopes
        self._size: float | None = None
        self._failed = self._steps = 0

    def advance(self, loss: float, slopes: list[Tensor]) -> None:
        """Record the loss and its gradient at the current point, and choose the next point."""
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
            self._start([_draw(slope, None, self._generator) for slope in slopes])
        elif self._size is None:
            self.point = self._step(self._rho, slopes)
        else:
            steps = self._step(self._size, self._slopes)
            self.point = self._project([one + step for one, step in zip(self._top, steps, strict=True)])

    def _step(self, size: float, slopes: list[Tensor]) -> list[Tensor]:
        return [size * each for each in steepest_ascent(slopes, self._scales)]

    def _project(self, point: list[Tensor]) -> list[Tensor]:
        """Shorten a step e to |e / T| = rho if it is longer."""
        scales = self._scales or [None] * len(point)
        # A weight of scale 0 does not move.
        ratios = (e if t is None else torch.where(t > 0, e / t, 0.0) for e, t in zip(point, scales, strict=True))
        length = math.sqrt(math.fsum(float(ratio.square().sum()) for ratio in ratios))
        return [min(1.0, self._rho / length) * each for each in point] if length > 0 else point


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


def _draw(like: Tensor, scale: Tensor | None, generator: torch.Generator) -> Tensor:
    # On the CPU, so that a seed gives the same noise on every device.
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32, device="cpu").to(like)
    return drawn if scale is None else drawn * scale


def _check_loss(loss: float, where: str) -> float:
    if not math.isfinite(loss):
        raise NotApplicable(
            f"the loss {where} is {loss}. Use a smaller radius, run in a higher precision (dtype=torch.float64), or "
            "check the model's outputs there."
        )
    return loss
