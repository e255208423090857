"""The curvature of the loss: the largest eigenvalue and the trace of its Hessian."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._adapters.derivatives import PlainWeightNorm, double_differentiable
from effdeg._adapters.inference import Model
from effdeg._utils.checks import check_count, check_number
from effdeg._utils.statistics import mean_and_stderr
from effdeg.proxies._evaluator import Evaluator, Loss, NotApplicable, Result, RunOptions, as_leaves, check_options
from effdeg.proxies._lanczos import largest_eigenvalue


@check_options
def hessian_eigenvalue(
    model: Model, data: Any, loss: Loss, *, tolerance: float = 1e-3, **options: Unpack[RunOptions]
) -> Result:
    """Compute the largest eigenvalue of the Hessian of the mean loss, max vᵀHv over |v| = 1, by Lanczos' method.

    This takes about 20 to 100 Hessian-vector products, each as expensive as two to three gradients over all data. On a
    large data set use a part of it, such as ``examples=1000``. The largest relative error is the ``tolerance``. The
    standard error says how much the curvature along the eigenvector varies between parts of the data; None for a single
    example. The other arguments are those of :func:`sharpness`.

    Raises:
        ValueError: The loss does not take the labels or is not the mean of a batch.
        NotApplicable: The model has no weights, the data have no labels, or the loss has no second derivatives.

    Example:
        The loss w₁² + 4 w₂² has the Hessian diag(2, 8):

        >>> import torch, effdeg
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> data = torch.tensor([[2**0.5, 0], [0, 8**0.5]]), torch.zeros(2, 1)
        >>> round(effdeg.proxies.hessian_eigenvalue(model, data, torch.nn.functional.mse_loss).value, 3)
        8.0
    """
    check_number("tolerance", tolerance, "it is the largest relative error of the eigenvalue, such as 1e-3")
    with _open_hessian(model, data, loss, **options) as hessian:
        start = hessian.draw(torch.Generator().manual_seed(hessian.evaluator.seed))
        value, vector = largest_eigenvalue(hessian.multiply, start, tolerance, "the Hessian's largest eigenvalue")
        count = hessian.evaluator.count
        parts = hessian.evaluator.split(min(hessian.evaluator.batches.size, -(-count // 2)))
        along = torch.stack([vector @ hessian.multiply(vector, part) for part in parts])
    stderr = mean_and_stderr(along)[1] if len(along) > 1 else None
    return Result("hessian_eigenvalue", value, stderr, {"tolerance": tolerance, "examples": count})


@check_options
def hessian_trace(model: Model, data: Any, loss: Loss, *, samples: int = 10, **options: Unpack[RunOptions]) -> Result:
    """Estimate the trace of the Hessian of the mean loss by Hutchinson's method: the mean of zᵀHz over random signs z.

    Each of the ``samples`` takes one Hessian-vector product: two to three gradients. The result is the mean over them
    and its standard error. The other arguments are those of :func:`sharpness`.

    Raises:
        ValueError: The loss does not take the labels or is not the mean of a batch.
        NotApplicable: The model has no weights, the data have no labels, or the loss has no second derivatives.

    Example:
        The loss w₁² + 4 w₂² has the Hessian diag(2, 8), for which random signs give the exact trace:

        >>> import torch, effdeg
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> data = torch.tensor([[2**0.5, 0], [0, 8**0.5]]), torch.zeros(2, 1)
        >>> print(effdeg.proxies.hessian_trace(model, data, torch.nn.functional.mse_loss).estimate)
        10 ± 0
    """
    check_count("samples", samples, least=2)
    with _open_hessian(model, data, loss, **options) as hessian:
        generator = torch.Generator().manual_seed(hessian.evaluator.seed)
        signs = (hessian.draw(generator).sign() for _ in range(samples))
        draws = [float(each @ hessian.multiply(each)) for each in signs]
    value, stderr = mean_and_stderr(torch.tensor(draws, dtype=torch.float64, device="cpu"))
    return Result("hessian_trace", value, stderr, {"samples": samples, "examples": hessian.evaluator.count})


@contextmanager
def _open_hessian(model: Model, data: Any, loss: Loss, **options: Any) -> Iterator["_Hessian"]:
    with Evaluator.open(model, data, loss, **options) as evaluator:
        evaluator.check_loss()
        with double_differentiable(evaluator.module), PlainWeightNorm():
            hessian = _Hessian(evaluator)
            evaluator.once("symmetric Hessian", hessian.check_symmetric)
            yield hessian


class _Hessian:
    """The Hessian of the mean loss, as its products with vectors, in which all weights are concatenated.

    A product H v is the gradient of the gradient along v: two reverse passes. Forward over reverse differentiation
    would be cheaper, but torch's forward derivative of the backward pass of normalization layers is wrong (it treats
    the statistics as constants) and that of SiLU, GroupNorm and others does not exist.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator, self._checked = evaluator, False
        self._leaves = as_leaves(evaluator.weights)
        first = next(iter(self._leaves.values()))
        self._dtype, self._device = torch.promote_types(first.dtype, torch.float32), first.device

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw a standard normal vector, on the CPU, so that a seed gives the same on every device."""
        size = sum(weight.numel() for weight in self._leaves.values())
        drawn = torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")
        return drawn.to(self._device, self._dtype)

    def check_symmetric(self) -> None:
        """Raise if xᵀHy is not yᵀHx for two random vectors: then second derivatives are wrong, or change each time."""
        generator = torch.Generator().manual_seed(self.evaluator.seed)
        x, y = self.draw(generator), self.draw(generator)
        one, other = self.multiply(x), self.multiply(y)
        difference = abs(float(y @ one - x @ other)) / max(float(one.norm() + other.norm()), 1e-300)
        # 1e-4 in float64; 0.02 in float32, some of whose products may run with three digits on a GPU.
        if difference > torch.finfo(self._dtype).eps ** 0.25:
            raise NotApplicable(
                f"the Hessian of the loss is not symmetric (off by {difference:.1g}): an operation in the model has a "
                "wrong second derivative (a custom one?), is random, or lacks precision (use dtype=torch.float64)."
            )

    def multiply(self, vector: Tensor, part: slice | None = None) -> Tensor:
        """Return the product of a vector with the Hessian of the mean loss of some examples, by default of all."""
        weights = list(self._leaves.values())
        pieces = vector.split([weight.numel() for weight in weights])  # type: ignore[no-untyped-call]
        along = [piece.view_as(weight).to(weight) for piece, weight in zip(pieces, weights, strict=True)]
        total = torch.zeros_like(vector)
        problem = "an operation in the model cannot be differentiated twice"

        def add(each: slice, share: float) -> None:
            with torch.enable_grad():
                loss, _ = self.evaluator.loss_and_outputs(each, self._leaves)
                slopes = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
                # Where the loss is linear in a weight, its slope is a constant, without a derivative.
                pairs = zip(slopes, along, strict=True)
                curved = [(slope, v) for slope, v in pairs if slope is not None and slope.requires_grad]
                if not curved:
                    return
                slopes, directions = zip(*curved, strict=True)
                if not self._checked and _is_once_differentiable(slopes):
                    raise NotApplicable(f"{problem}: it is marked once_differentiable.")
                self._checked = True
                try:
                    products = torch.autograd.grad(slopes, weights, directions, materialize_grads=True)
                except RuntimeError as error:
                    if "not implemented" in str(error):
                        raise NotApplicable(f"{problem}: {error}") from error
                    raise
            total.add_(torch.cat([each.flatten().to(total) for each in products]), alpha=share)

        self.evaluator.run_batches(part or self.evaluator.whole, add)
        if not bool(total.isfinite().all()):
            raise NotApplicable(
                "the second derivatives of the loss are NaN or infinite. Run the model in a higher precision "
                "(dtype=torch.float64), or look for a root or a norm of zero in the model."
            )
        return total


def _is_once_differentiable(slopes: Iterable[Tensor]) -> bool:
    """Return whether a graph of derivatives has an operation that is marked as ``once_differentiable``.

    Torch marks the place with a node that raises when it is reached. Derivatives with respect to weights do not reach
    it, since no weight lies behind it: they would be silently wrong.
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
