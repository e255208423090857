"""The curvature of the loss: the largest eigenvalue and the trace of its Hessian."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._models.derivatives import PlainWeightNorm, double_differentiable
from effdeg._models.inference import Model
from effdeg._utils.checks import check_count, check_number
from effdeg._utils.statistics import mean_and_stderr
from effdeg.proxies._lanczos import largest_eigenvalue
from effdeg.proxies._result import Result
from effdeg.proxies._study import Loss, NotApplicable, Running, Study, as_leaves, opened, proxy


@proxy
def hessian_eigenvalue(
    model: Model | Study, data: Any, loss: Loss | None, *, tolerance: float = 1e-3, **running: Unpack[Running]
) -> Result:
    """Find the largest eigenvalue of the Hessian of the mean loss, by Lanczos' method.

    It takes some 20 to 100 Hessian-vector products, each of which costs about two to three gradients of the whole data
    set: take a part of a large one, ``examples=1000``.

    Args:
        model: An ``nn.Module``.
        data: Labelled examples.
        loss: The mean loss of a batch, from outputs and labels.
        tolerance: How far the eigenvalue may be off, relatively.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The eigenvalue. Its standard error says how much the curvature along the eigenvector varies between parts of the
        data; None for a single example.
    """
    check_number("tolerance", tolerance, "it is how far the eigenvalue may be off, relatively, such as 1e-3")
    with _open_hessian(model, data, loss, running) as (study, hessian):
        start = hessian.draw(torch.Generator().manual_seed(study.seed))
        value, vector = largest_eigenvalue(
            hessian.multiply, start, tolerance=tolerance, what="the Hessian's largest eigenvalue"
        )
        size = min(study.batches.size, -(-study.count // 2))
        parts = [slice(first, min(first + size, study.count)) for first in range(0, study.count, size)]
        along = torch.stack([vector @ hessian.multiply(vector, part) for part in parts])
        stderr = mean_and_stderr(along)[1] if len(along) > 1 else None
        return Result("hessian_eigenvalue", value, stderr, {"tolerance": tolerance, "examples": study.count})


@proxy
def hessian_trace(
    model: Model | Study, data: Any, loss: Loss | None, *, samples: int = 10, **running: Unpack[Running]
) -> Result:
    """Estimate the trace of the Hessian of the mean loss, by Hutchinson's method: the mean of zᵀHz over random signs z.

    Args:
        model: An ``nn.Module``.
        data: Labelled examples.
        loss: The mean loss of a batch, from outputs and labels.
        samples: The number of random vectors, each a Hessian-vector product, which costs two to three gradients.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean over the vectors and its standard error.
    """
    check_count("samples", samples, least=2)
    with _open_hessian(model, data, loss, running) as (study, hessian):
        generator = torch.Generator().manual_seed(study.seed)
        draws = []
        for _ in range(samples):
            signs = hessian.draw(generator).sign()
            draws.append(float(signs @ hessian.multiply(signs)))
        value, stderr = mean_and_stderr(torch.tensor(draws, dtype=torch.float64))
        return Result("hessian_trace", value, stderr, {"samples": samples, "examples": study.count})


@contextmanager
def _open_hessian(
    model: Model | Study, data: Any, loss: Loss | None, running: Any
) -> Iterator[tuple[Study, "_Hessian"]]:
    with opened(model, data, loss, **running) as study:
        study.check_loss()
        with double_differentiable(study.module), PlainWeightNorm():
            hessian = _Hessian(study)
            study.once("symmetric Hessian", hessian.check_symmetric)
            yield study, hessian


class _Hessian:
    """The Hessian of a study's mean loss, by its products with vectors that hold all weights in one row.

    A product H v is the gradient of the gradient along v: two reverse passes. Forward over reverse differentiation
    would be cheaper, but torch's forward derivative of the backward pass of normalization layers is wrong (it takes
    the statistics for constants) and that of SiLU, GroupNorm and others does not exist.
    """

    def __init__(self, study: Study) -> None:
        self._study, self._looked = study, False
        self._leaves = as_leaves(study.weights)
        first = next(iter(self._leaves.values()))
        self._dtype, self._device = torch.promote_types(first.dtype, torch.float32), first.device

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw a standard normal vector, on the CPU, so that a seed means the same on every device."""
        size = sum(weight.numel() for weight in self._leaves.values())
        return torch.randn(size, generator=generator).to(self._device, self._dtype)

    def check_symmetric(self) -> None:
        """Raise if xᵀHy is not yᵀHx for two random vectors: then second derivatives are wrong, or change each time."""
        generator = torch.Generator().manual_seed(self._study.seed)
        x, y = self.draw(generator), self.draw(generator)
        one, other = self.multiply(x), self.multiply(y)
        difference = abs(float(y @ one - x @ other)) / max(float(one.norm() + other.norm()), 1e-300)
        # 1e-4 in float64; 0.02 in float32, some of whose products may run with three digits on a GPU.
        if difference > torch.finfo(self._dtype).eps ** 0.25:
            raise NotApplicable(
                f"the Hessian of the loss is not symmetric (off by {difference:.1g}): an operation in the model has a "
                "wrong second derivative (one of its own?), draws at random, or lacks precision (dtype=torch.float64)."
            )

    def multiply(self, vector: Tensor, part: slice | None = None) -> Tensor:
        """Return the product of a vector with the Hessian of the mean loss of some examples, by default of all."""
        weights = list(self._leaves.values())
        pieces = vector.split([weight.numel() for weight in weights])  # type: ignore[no-untyped-call]
        along = [piece.view_as(weight).to(weight) for piece, weight in zip(pieces, weights, strict=True)]
        total = torch.zeros_like(vector)

        def add(each: slice, share: float) -> None:
            with torch.enable_grad():
                loss, _ = self._study.differentiable_loss(each, self._leaves)
                slopes = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
                # Where the loss is linear in a weight, its slope is a constant, without a derivative.
                curved = [
                    (slope, towards)
                    for slope, towards in zip(slopes, along, strict=True)
                    if slope is not None and slope.requires_grad
                ]
                if not curved:
                    return
                if not self._looked and _is_cut([slope for slope, _ in curved]):
                    raise NotApplicable(
                        "an operation in the model cannot be differentiated twice: it is marked once_differentiable."
                    )
                self._looked = True
                found = _differentiate_again(curved, weights)
            products = [
                torch.zeros_like(weight) if one is None else one for one, weight in zip(found, weights, strict=True)
            ]
            total.add_(torch.cat([each.flatten().to(total) for each in products]), alpha=share)

        self._study.run_batches(part or self._study.everything(), add)
        if not bool(total.isfinite().all()):
            raise NotApplicable(
                "the second derivatives of the loss by the weights are NaN or infinite. Run in a better precision "
                "(dtype=torch.float64), or look for a root or a norm of zero in the model."
            )
        return total


def _differentiate_again(curved: list[tuple[Tensor, Tensor]], weights: list[Tensor]) -> tuple[Tensor | None, ...]:
    slopes, directions = zip(*curved, strict=True)
    try:
        return torch.autograd.grad(slopes, weights, directions, allow_unused=True)
    except RuntimeError as error:
        if "not implemented" in str(error):
            raise NotApplicable(f"an operation in the model cannot be differentiated twice: {error}") from error
        raise


def _is_cut(slopes: list[Tensor]) -> bool:
    """Return whether a graph of derivatives has an operation that is marked as ``once_differentiable``.

    Torch marks the place by a node that raises when it is reached. It is not reached from derivatives by weights, since
    no weight lies behind it: they would be wrong without a word.
    """
    seen: set[Any] = set()
    waiting: list[Any] = [slope.grad_fn for slope in slopes]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if node.name() == "torch::autograd::Error":
                return True
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False
