"""The Jacobian: how much the outputs change with the inputs."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from effdeg.inference import Model
from effdeg.jacobian import check_projections, squared_norms
from effdeg.layers import advice_for_integers, find_layer, first_tensor, hooked, ran_not_once, with_first_tensor
from effdeg.outputs import Output, as_values, check_output, output_name
from effdeg.paths import check_interpolable
from effdeg.proxies.result import Result
from effdeg.proxies.study import Running, Study, opened
from effdeg.statistics import mean_and_stderr
from effdeg.tree import Tree, tensors, tree_map


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
        study.check_data()
        if study.at is None:
            check_interpolable(study.inputs, advice=lambda: advice_for_integers(study.subject.model))
        generator = torch.Generator().manual_seed(study.seed)

        def run(part: slice) -> Tensor:
            points = part.stop - part.start
            with torch.enable_grad():
                returned, inputs = _watched(study, study.fetch(part)[0])
                values = as_values(returned, output, points=points)
                return squared_norms(values, inputs, projections=projections, generator=generator).double().cpu()

        mean, stderr = mean_and_stderr(torch.cat(study.batches.run(run, study.count)))
        value = math.sqrt(mean)
        settings = {"projections": projections, "output": output_name(output), "examples": study.count}
        return Result("jacobian_norm", value, stderr / (2 * value) if value > 0 else 0.0, settings)


def _watched(study: Study, inputs: Tree) -> tuple[Any, list[Tensor]]:
    """Run the model and give what it returned and the tensors that it is to be differentiated by."""
    if study.at is None:

        def leaf(each: Any) -> Any:
            floating = isinstance(each, Tensor) and each.is_floating_point()
            return each.detach().requires_grad_() if floating else each

        inputs = tree_map(leaf, inputs)
        return study.subject(inputs), [each for each in tensors(inputs) if each.requires_grad]
    name, layer = find_layer(study.subject.model, study.at)
    seen: list[Tensor] = []

    def keep(_: nn.Module, __: Any, returned: Any) -> Any:
        seen.append(first_tensor(returned, name).detach().requires_grad_())
        return with_first_tensor(returned, seen[-1])

    with hooked(layer, keep):
        returned = study.subject(inputs)
    if len(seen) != 1:
        raise ran_not_once(name, len(seen))
    return returned, seen
