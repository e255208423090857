"""Jacobian regularization: hold down how much the outputs change with the inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from effdeg.double_backward import double_differentiable
from effdeg.inference import as_arguments
from effdeg.jacobian import check_projections, squared_norms
from effdeg.layers import Layer, advice_for_integers, changed_output
from effdeg.outputs import Output, as_values, check_output
from effdeg.points import count_examples
from effdeg.rivals.checks import check_generator
from effdeg.tree import Tree, named_map, tree_map


@dataclass(frozen=True)
class JacobianSettings:
    """The settings of a Jacobian penalty, checked."""

    projections: int
    at: Layer | None
    output: Output
    generator: torch.Generator | None

    def __post_init__(self) -> None:
        check_projections(self.projections)
        if self.at is not None and not isinstance(self.at, str | nn.Module):
            raise TypeError(f"at={self.at!r} must be the name of a layer or a module.")
        check_output(self.output)
        check_generator(self.generator)


class JacobianPenalty(nn.Module):
    """The size of a model's Jacobian on a batch, |J|² / 2, to be added to the loss (Hoffman et al., 2019).

    J holds the derivatives of all outputs of an example with respect to all its inputs, and its squared Frobenius norm
    is averaged over the batch. It is called as :class:`effdeg.Penalty` is, and its weight means what it means in the
    authors' code::

        penalty = effdeg.rivals.JacobianPenalty()
        logits, size = penalty(model, x, y)
        loss = cross_entropy(logits, y) + 0.01 * size

    The estimate is C |vᵀJ|² / 2, of C outputs, with v uniform on the unit sphere and drawn for each example: unbiased.

    A step differentiates twice. Attention runs by its plain kernel then, recurrent layers run without cuDNN, and
    compiled models as they were written, since ``torch.compile`` cannot do it; nor can FSDP, which frees the weights in
    between. BatchNorm in training makes an example's outputs depend on the other examples; their derivatives are
    counted too, as in the authors' code.

    Args:
        projections: How many directions v to average over, each of which costs a backward pass. As many as there are
            outputs, or -1, give the exact value instead.
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
        at: Layer | None = None,
        output: Output = "identity",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        # In one plain object, so that a layer given as a module does not become a part of this one.
        self.settings = JacobianSettings(projections, at, output, generator)

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
        arguments, keywords = as_arguments(x)
        if twice := sorted(set(keywords) & set(model_kwargs)):
            raise TypeError(f"{', '.join(twice)}: given both in x and as keywords.")
        return _run(self.settings, model, (arguments, {**keywords, **model_kwargs}))

    def extra_repr(self) -> str:
        """Show the settings."""
        at = self.settings.at
        shown = "" if at is None else f", at={at if isinstance(at, str) else type(at).__name__!r}"
        return f"projections={self.settings.projections}{shown}"


# torch.compile cannot differentiate twice: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(settings: JacobianSettings, model: Callable[..., Any], parts: Tree) -> tuple[Any, Tensor]:
    batch, training = count_examples(parts), torch.is_grad_enabled()
    entered: list[Tensor] = []

    def enter(tensor: Tensor) -> Tensor:
        # Itself, if it carries gradients already, so that they flow on from it.
        source = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        # A last dimension, since an example may be a single number; a copy, for models that work in place.
        entered.append(source.unsqueeze(-1))
        return entered[-1].squeeze(-1).clone()

    with torch.enable_grad():
        if settings.at is None:
            parts = _inputs_through(enter, parts, batch)
            if not entered:
                raise TypeError(
                    f"inputs hold no floating-point tensor to differentiate by. {advice_for_integers(model)}"
                )
            returned = _called(model, parts)
        else:
            with changed_output(model, settings.at, batch, enter):
                returned = _called(model, parts)
        values = as_values(returned, settings.output, points=batch)
        # So many directions and more can be had exactly for the same price.
        projections = settings.projections if settings.projections < values.shape[1] else -1
        squares = squared_norms(
            values, entered, projections=projections, generator=settings.generator, create_graph=training
        )
    if not training:
        returned = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, returned)
    return returned, squares.mean() / 2


def _called(model: Callable[..., Any], parts: Tree) -> Any:
    arguments, keywords = parts
    with double_differentiable(model):
        return model(*arguments, **keywords)


def _inputs_through(enter: Callable[[Tensor], Tensor], parts: Tree, batch: int) -> Tree:
    def change(name: str, leaf: Any) -> Any:
        rows = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == batch
        return enter(leaf) if rows and leaf.is_floating_point() and name != "labels" else leaf

    return named_map(change, parts)
