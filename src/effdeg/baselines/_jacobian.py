"""Jacobian regularization: hold down how much the outputs change with the inputs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from effdeg._models.derivatives import check_projections, double_differentiable, squared_norms
from effdeg._models.examples import as_arguments, count_examples
from effdeg._models.layers import Layer, advice_for_integers, as_module, check_layer, find_layer, replace_output
from effdeg._models.outputs import Output, as_values, check_output
from effdeg._utils.checks import check_generator, check_number
from effdeg._utils.tree import Tree, has_rows, map_tensors, named_map
from effdeg.baselines._batchnorm import buffers_lent


@dataclass(frozen=True)
class JacobianSettings:
    """The settings of a Jacobian penalty, checked."""

    projections: int
    share: float
    at: Layer | None
    output: Output
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        check_projections(self.projections)
        meaning = "it is the share of the batch whose Jacobian is taken, above 0 and at most 1"
        check_number("share", self.share, meaning)
        if self.share > 1:
            raise ValueError(f"share={self.share!r} is too much: {meaning}.")
        if self.at is not None:
            check_layer(self.at)
        check_output(self.output)
        check_generator(self.generator)

    def count_taken(self, batch: int) -> int:
        """Count the examples whose Jacobian is taken in a batch of this size."""
        return max(1, round(self.share * batch))


class JacobianPenalty(nn.Module):
    """The size of a model's Jacobian on a batch, |J|² / 2, to be added to the loss (Hoffman et al., 2019).

    J holds the derivatives of all outputs of an example with respect to all its inputs, and its squared Frobenius norm
    is averaged over the batch. It is called as :class:`effdeg.Penalty` is, and its weight means what it means in the
    authors' code::

        penalty = effdeg.baselines.JacobianPenalty()
        logits, size = penalty(model, x, y)
        loss = cross_entropy(logits, y) + 0.01 * size

    The estimate is C |vᵀJ|² / 2, of C outputs, with v uniform on the unit sphere and drawn for each example: unbiased.

    A step differentiates twice. Attention runs by its plain kernel then, recurrent layers run without cuDNN, and
    compiled models as they were written, since ``torch.compile`` cannot do it; nor can FSDP, which frees the weights in
    between. BatchNorm in training makes an example's outputs depend on the other examples. Their derivatives count too:
    the penalty is then an estimate of Σ over b of |J_ba|² / 2, averaged over the examples a, where J_ba holds the
    derivatives of b's outputs with respect to a's inputs. It is unbiased whatever ``projections`` is. (The authors'
    exact value adds up the outputs of all examples first, so that under BatchNorm most of it cancels out.)

    Args:
        projections: How many directions v to average over, each of which costs a backward pass. As many as there are
            outputs, or -1, give the exact value instead (exact but for BatchNorm in training, see above).
        share: The share of the batch whose Jacobian is taken: its first examples, at least one. Below 1 the model runs
            twice: on the whole batch, as usual and compiled if it is, and on these examples alone to be differentiated
            twice. At a quarter a step costs about a plain one and a quarter of one with the full penalty, which is
            several times less where that dwarfs the plain one; it stays unbiased for batches in random order.
            BatchNorm in training normalizes these examples by themselves; buffers such as its running statistics are
            those of the whole batch, for models that are modules.
        at: Differentiate with respect to the output of this layer (a name or a module) instead of the inputs. For
            token ids, and for features after any block.
        output: Of what: ``"identity"``, the logits, as in the paper; ``"softmax"``, ``"sigmoid"``, or a function of
            what the model returned. Of several tensors ``logits``, or else the first, is taken.
        generator: The source of randomness for the directions; by default torch's global one on the outputs' device.
    """

    def __init__(
        self,
        projections: int = 1,
        *,
        share: float = 1.0,
        at: Layer | None = None,
        output: Output = "identity",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        # In one plain object, so that a layer given as a module does not become a part of this one.
        self.settings = JacobianSettings(projections, share, at, output, generator)

    def forward(
        self,
        model: Callable[..., Any],
        x: Tree,
        y: Tensor | None = None,  # noqa: ARG002
        **model_kwargs: Any,
    ) -> tuple[Any, Tensor]:
        """Run a model on a batch and differentiate its outputs.

        Args:
            model: Any callable. It is called as usual, ``model(x)``.
            x: The batch: a tensor, a tuple (which goes in as arguments) or a mapping (as keywords). All floating
                tensors with one row per example count as its inputs, but for ``labels`` in a mapping.
            y: Not needed: penalties are all called alike.
            **model_kwargs: More arguments for the model, treated as ``x`` is.

        Returns:
            What the model returned, and the penalty to add to the loss.
        """
        arguments, keywords = as_arguments(x, **model_kwargs)
        if self.settings.share == 1:
            return _run(self.settings, model, (arguments, keywords))
        # The whole batch comes second: what is wrong with it is found before, and a model may work on it in place.
        _, penalty = _run(self.settings, model, (arguments, keywords))
        return model(*arguments, **keywords), penalty

    def extra_repr(self) -> str:
        """Show the settings."""
        at, share = self.settings.at, self.settings.share
        shown = "" if share == 1 else f", share={share}"
        shown += "" if at is None else f", at={at if isinstance(at, str) else type(at).__name__!r}"
        return f"projections={self.settings.projections}{shown}"


# torch.compile cannot differentiate twice: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(settings: JacobianSettings, model: Callable[..., Any], parts: Tree) -> tuple[Any, Tensor]:
    batch, training = count_examples(parts), torch.is_grad_enabled()
    whole, taken = settings.share == 1, settings.count_taken(batch)
    entered: list[Tensor] = []

    def enter(tensor: Tensor) -> Tensor:
        # Itself, if it carries gradients already, so that they flow on from it.
        source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        # A last dimension, since an example may be a single number; a copy, for models that work in place.
        entered.append(source.unsqueeze(-1))
        return entered[-1].squeeze(-1).clone()

    def prepare(name: str, leaf: Tensor) -> Tensor:
        # A copy, for models that work in place: the whole batch is still to be run.
        rows = leaf if whole else leaf[:taken].clone()
        is_input = settings.at is None and leaf.is_floating_point() and name != "labels"
        return enter(rows) if is_input else rows

    with torch.enable_grad():
        if settings.at is None or not whole:
            parts = _per_example_through(prepare, parts, batch)
        if settings.at is None and not entered:
            raise TypeError(f"inputs hold no floating-point tensor to differentiate by. {advice_for_integers(model)}")
        at_layer = (
            nullcontext() if settings.at is None else replace_output(find_layer(model, settings.at), enter, rows=taken)
        )
        with at_layer, double_differentiable(model), nullcontext(model) if whole else _without_traces(model) as run:
            arguments, keywords = parts
            returned = run(*arguments, **keywords)
        values = as_values(returned, settings.output, points=taken)
        # With as many directions as outputs, the exact value costs no more.
        projections = settings.projections if settings.projections < values.shape[1] else -1
        squares = squared_norms(
            values, entered, projections=projections, generator=settings.generator, create_graph=training
        )
    if not training:
        returned = map_tensors(Tensor.detach, returned)
    return returned, squares.mean() / 2


def _per_example_through(change: Callable[[str, Tensor], Tensor], parts: Tree, batch: int) -> Tree:
    def each(name: str, leaf: Any) -> Any:
        return change(name, leaf) if has_rows(leaf, batch) else leaf

    return named_map(each, parts)


@contextmanager
def _without_traces(model: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Open a model for a pass that is not to count: with copies of its buffers, and without DDP around it.

    DDP with a static graph, if differentiated through before the backward pass, averages wrong gradients.
    """
    inner = getattr(model, "_orig_mod", model)
    with buffers_lent(as_module(model)):
        yield inner.module if isinstance(inner, DistributedDataParallel) else model
