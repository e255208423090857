"""The Jacobian: how much the outputs change with the inputs."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._models.derivatives import check_projections, squared_norms
from effdeg._models.inference import Model
from effdeg._models.layers import find_layer, replace_output
from effdeg._models.outputs import Output, as_values, check_output, output_name
from effdeg._utils.statistics import mean_and_stderr
from effdeg._utils.tree import Tree, map_tensors
from effdeg.proxies._result import Result
from effdeg.proxies._study import Running, Study, check_finite, opened, proxy


@proxy
def jacobian_norm(
    model: Model | Study,
    data: Any = None,
    *,
    projections: int = 1,
    output: Output = "identity",
    **running: Unpack[Running],
) -> Result:
    """Measure the Frobenius norm of the Jacobian of the outputs with respect to the inputs, at the examples.

    Args:
        model: Any callable; with ``at=`` a layer, its Jacobian with respect to the output of that layer.
        data: Examples; labels are not needed.
        projections: How many random projections of the outputs to differentiate; -1 for the exact norm, one backward
            pass per output.
        output: Of what: ``"identity"`` (the logits), ``"softmax"``, ``"sigmoid"`` or a function of what was returned.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The root of the mean square over examples, and its standard error over examples and projections.
    """
    check_projections(projections)
    check_output(output)
    with opened(model, data, **running) as study:
        study.check_interpolable()
        drawn: list[Tensor] = []

        def run(part: slice) -> Tensor:
            points = part.stop - part.start
            with torch.enable_grad():
                returned, inputs = _watched(study, study.fetch(part)[0], points)
                values = as_values(returned, output, points=points)
                if projections == -1:
                    return squared_norms(values, inputs, projections=-1).double().cpu()
                if not drawn:
                    # For all examples at once, so that no example's depend on the size of batches.
                    generator = torch.Generator().manual_seed(study.seed)
                    drawn.append(torch.randn(study.count, projections, values.shape[1], generator=generator))
                squares = squared_norms(values, inputs, projections=projections, directions=drawn[0][part])
                return squares.double().cpu()

        squares = torch.cat(study.batches.run(run, study.count))
        check_finite("derivatives of the outputs", squares)
        mean, stderr = mean_and_stderr(squares)
        value = math.sqrt(mean)
        settings = {"projections": projections, "output": output_name(output), "examples": study.count}
        return Result("jacobian_norm", value, stderr / (2 * value) if value > 0 else 0.0, settings)


def _watched(study: Study, inputs: Tree, points: int) -> tuple[Any, list[Tensor]]:
    """Run the model and give what it returned and the tensors that it is to be differentiated by."""
    seen: list[Tensor] = []

    def enter(each: Tensor) -> Tensor:
        seen.append(each.detach().requires_grad_())
        # Who works in place does so on the copy.
        return seen[-1].clone()

    if study.at is None:
        floating = map_tensors(lambda leaf: enter(leaf) if leaf.is_floating_point() else leaf, inputs)
        return study.subject(floating), seen
    with replace_output(find_layer(study.subject.model, study.at), enter, rows=points):
        return study.subject(inputs), seen
