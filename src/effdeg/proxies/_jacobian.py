"""The Jacobian: how much the outputs change with the inputs."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._adapters.derivatives import check_gradients_enabled, check_projections, squared_norms
from effdeg._adapters.inference import Model
from effdeg._adapters.layers import find_layer, replace_output
from effdeg._adapters.outputs import shaped_values
from effdeg._adapters.paths import floating_inputs
from effdeg._utils.statistics import mean_and_stderr
from effdeg._utils.tree import Tree, map_tensors
from effdeg.proxies._evaluator import Evaluator, Result, RunOptions, check_finite, check_options


@check_options
def jacobian_norm(model: Model, data: Any, *, projections: int = 1, **options: Unpack[RunOptions]) -> Result:
    """Measure the Frobenius norm of the Jacobian of the outputs f (logits) with respect to the inputs x, √E|∂f/∂x|².

    With C outputs and a random unit vector v, C |vᵀ∂f/∂x|² is an unbiased estimate of |∂f/∂x|² (Hoffman et al. 2019).

    Args:
        model: Any callable. With ``at=``, x is the output of that layer.
        data: Examples, as for :func:`evaluate`; labels are not needed. Masks, by their names, are no part of x.
        projections: Number of random vectors v per example; -1 for the exact norm, one backward pass per output.

    Returns:
        The root of the mean square over examples, and its standard error over examples and projections.

    Raises:
        ValueError: Derivatives are NaN or infinite.
        NotApplicable: The inputs are not continuous: give a layer with ``at=``.

    Example:
        >>> import torch, effdeg
        >>> effdeg.proxies.jacobian_norm(lambda x: 3 * x, torch.randn(10, 4), projections=-1).value
        6.0
    """
    check_projections(projections)
    drawn: list[Tensor] = []
    with Evaluator.open(model, data, **options) as evaluator:
        evaluator.check_interpolable()

        def run(part: slice) -> Tensor:
            points = part.stop - part.start
            with torch.enable_grad():
                returned, inputs = _run_differentiable(evaluator, evaluator.fetch(part)[0], points)
                values = shaped_values(returned, "identity", points=points, look=part.start == 0, whose="network")
                values = values.reshape(points, -1)
                if projections != -1 and not drawn:
                    # For all examples at once, so that they do not depend on the batch size.
                    generator = torch.Generator().manual_seed(evaluator.seed)
                    shape = evaluator.count, projections, values.shape[1]
                    drawn.append(torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu"))
                directions = drawn[0][part] if drawn else None
                return squared_norms(values, inputs, projections=projections, directions=directions).double().cpu()

        squares = torch.cat(evaluator.batches.run(run, evaluator.count))
    check_finite("derivatives of the outputs", squares)
    mean, stderr = mean_and_stderr(squares)
    value = math.sqrt(mean)
    settings = {"projections": projections, "examples": evaluator.count}
    return Result("jacobian_norm", value, stderr / (2 * value) if value > 0 else 0.0, settings)


def _run_differentiable(evaluator: Evaluator, inputs: Tree, points: int) -> tuple[Any, list[Tensor]]:
    seen: list[Tensor] = []

    def enter(each: Tensor) -> Tensor:
        check_gradients_enabled()
        seen.append(each.detach().requires_grad_())
        # A copy, since the next operation may work in place, which a leaf does not allow.
        return seen[-1].clone()

    if evaluator.at is None:
        own = floating_inputs(inputs)
        entered = map_tensors(lambda leaf: enter(leaf) if any(leaf is each for each in own) else leaf, inputs)
        return evaluator.runner(entered), seen
    with replace_output(find_layer(evaluator.runner.model, evaluator.at), enter, rows=points):
        return evaluator.runner(inputs), seen
