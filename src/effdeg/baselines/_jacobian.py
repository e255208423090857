"""Jacobian regularization: penalize how much the outputs change with the inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.derivatives import (
    check_gradients_enabled,
    check_projections,
    double_differentiable,
    squared_norms,
)
from effdeg._adapters.layers import Layer, advice_for_integers, as_module, find_layer, replace_output
from effdeg._adapters.outputs import shaped_values
from effdeg._adapters.paths import is_floating_mask
from effdeg._utils.checks import check_number
from effdeg._utils.tree import has_rows, map_tensors, named_map
from effdeg.baselines._shared import Call, Regularizer


@dataclass(eq=False, repr=False)
class JacobianPenalty(Regularizer):
    """The size of a model's Jacobian on a batch, to be added to the loss (Hoffman et al., 2019).

    The penalty is |J|² / 2, averaged over the batch, where J holds the derivatives of all C outputs (the logits) of an
    example with respect to all its inputs, and |J| is its Frobenius norm. It is estimated without bias by C |vᵀJ|² / 2,
    with v drawn uniformly from the unit sphere for each example. Its weight has the same meaning as in the authors'
    code.

    A step differentiates twice. Attention then uses its unfused kernel, recurrent layers run without cuDNN, and
    compiled models uncompiled, since ``torch.compile`` cannot differentiate twice. Nor can FSDP, which frees the
    weights in between. With BatchNorm in training, an example's outputs depend on the other examples, and these
    derivatives count too: the penalty then estimates Σ over b of |J_ba|² / 2, averaged over the examples a, where J_ba
    holds the derivatives of b's outputs with respect to a's inputs, without bias for any ``projections``.

    Example:
        >>> import torch
        >>> from effdeg.baselines import JacobianPenalty
        >>> model, x, y = torch.nn.Linear(3, 2), torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
        >>> outputs, penalty = JacobianPenalty(projections=-1)(model, x, y)
        >>> bool(torch.isclose(penalty, model.weight.square().sum() / 2))
        True
        >>> loss = torch.nn.functional.cross_entropy(outputs, y) + 0.01 * penalty

    Args:
        projections: The number of directions v to average over, each of which costs a backward pass. With as many as
            there are outputs, or -1, the value is exact instead (except with BatchNorm in training, see above).
        share: The share of the batch whose Jacobian is computed: its first examples, at least one. Below 1 the model
            runs twice: on the whole batch as usual, compiled if it is, and on these examples alone, to be
            differentiated twice. With ``share=0.25`` a step costs about a plain step plus a quarter of a step with the
            full penalty, which stays unbiased for batches in random order. BatchNorm in training normalizes these
            examples by themselves; its running statistics are those of the whole batch if the model is a module.
        at: Differentiate with respect to the output of this layer (a name or a module) instead of the inputs, which are
            all floating-point tensors with one row per example but ``labels`` and masks, by name: for token ids, and
            for features.
        generator: The source of randomness for the directions; by default torch's global one on the outputs' device.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If a setting is out of range or not known.
    """

    projections: int = 1
    _: KW_ONLY
    share: float = 1.0
    at: Layer | None = None
    generator: torch.Generator | None = None

    allows_labels = True

    def __post_init__(self) -> None:
        check_projections(self.projections)
        meaning = "it is the share of the batch whose Jacobian is computed, above 0 and at most 1"
        if check_number("share", self.share, meaning) > 1:
            raise ValueError(f"share={self.share!r} is too large: {meaning}.")
        super().__post_init__()

    def _regularize(self, model: Callable[..., Any], call: Call, rows: int, y: Any) -> tuple[Any, Tensor]:  # noqa: ARG002
        look = self._is_first_call(model, call)
        outputs, penalty = _run(self, model, call, rows, look)
        if look:
            self._checked.add(model)
        if self.share < 1:
            # The whole batch runs second: by then it has been checked, and the model may modify it in place.
            arguments, keywords = call
            outputs = model(*arguments, **keywords)
        return outputs, penalty


# torch.compile cannot differentiate twice: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(
    settings: JacobianPenalty, model: Callable[..., Any], call: Call, batch: int, look: bool
) -> tuple[Any, Tensor]:
    training = torch.is_grad_enabled()
    whole, taken = settings.share == 1, max(1, round(settings.share * batch))
    entered: list[Tensor] = []

    def enter(tensor: Tensor) -> Tensor:
        check_gradients_enabled()
        # The tensor itself if it requires gradients already, so that they flow on from it.
        source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        # A last dimension, since an example may be a single number; a copy, for models that work in place.
        entered.append(source.unsqueeze(-1))
        return entered[-1].squeeze(-1).clone()

    def prepare(name: str, leaf: Any) -> Any:
        if not has_rows(leaf, batch):
            return leaf
        # A copy, for models that work in place: the whole batch is still to be run.
        rows = leaf if whole else leaf[:taken].clone()
        is_input = leaf.is_floating_point() and name != "labels" and not is_floating_mask(name, leaf)
        return enter(rows) if settings.at is None and is_input else rows

    with torch.enable_grad():
        if settings.at is None:
            arguments, keywords = named_map(prepare, (name_arguments(call[0], model), call[1]))
            call = tuple(arguments.values()), keywords
        elif not whole:
            call = named_map(prepare, call)
        if settings.at is None and not entered:
            raise TypeError(f"a Jacobian needs floating-point inputs, but there are none. {advice_for_integers(model)}")
        at_layer = (
            nullcontext() if settings.at is None else replace_output(find_layer(model, settings.at), enter, rows=taken)
        )
        run, inner = model, getattr(model, "_orig_mod", model)
        if not whole and isinstance(inner, DistributedDataParallel):
            # With a static graph, DDP averages wrong gradients if it is differentiated before the backward pass.
            run = inner.module
        # A pass over a part of the batch must not change the buffers.
        with at_layer, double_differentiable(model), use_buffer_copies(None if whole else as_module(model)):
            arguments, keywords = call
            returned = run(*arguments, **keywords)
        values = shaped_values(returned, "identity", points=taken, look=look, whose="network").reshape(taken, -1)
        # With as many directions as outputs, the exact value costs no more.
        projections = settings.projections if settings.projections < values.shape[1] else -1
        squares = squared_norms(
            values, entered, projections=projections, generator=settings.generator, create_graph=training
        )
    if not training:
        returned = map_tensors(Tensor.detach, returned)
    return returned, squares.mean() / 2


@contextmanager
def use_buffer_copies(module: nn.Module | None) -> Iterator[None]:
    """Let a module work on copies of its buffers, for a forward pass whose backward pass comes later.

    Buffers that are restored in place would look modified to that backward pass.
    """
    owners = list(module.modules()) if module is not None else []
    kept = [(owner, name, buffer) for owner in owners for name, buffer in owner._buffers.items() if buffer is not None]
    # Keyed by the buffers themselves, so that a buffer shared by several layers stays shared.
    copies = {buffer: buffer.clone() for _, _, buffer in kept}
    try:
        for owner, name, buffer in kept:
            owner._buffers[name] = copies[buffer]
        yield
    finally:
        for owner, name, buffer in kept:
            owner._buffers[name] = buffer
