"""The size of a Jacobian, exact or by random projections."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from effdeg._checks import check_count
from effdeg._shapes import Float
from effdeg._transfer import send


def check_projections(projections: int) -> None:
    """Raise unless it is a number of random projections, or -1 for all outputs in turn."""
    if projections != -1:
        try:
            check_count("projections", projections, least=1)
        except ValueError:
            raise ValueError(f"projections={projections} must be at least 1, or -1 for the exact value.") from None


def squared_norms(
    values: Float[Tensor, "examples outputs"],
    inputs: Sequence[Tensor],
    *,
    projections: int,
    generator: torch.Generator | None = None,
    directions: Float[Tensor, "examples projections outputs"] | None = None,
    create_graph: bool = False,
) -> Float[Tensor, " examples"]:
    """Return the squared Frobenius norm of each example's Jacobian.

    A direction v uniform on the unit sphere of C outputs has C E[v vᵀ] = I, so that C |vᵀJ|² is right on average
    (Hoffman et al. 2019). One backward pass serves all examples.

    Where an output depends on other examples too, as under BatchNorm in training, an example's Jacobian is that of all
    outputs of the batch with respect to its inputs. The directions of different examples are independent and of mean
    zero, so that products of different examples' derivatives cancel out on average. That is why unit vectors, which are
    exact otherwise, get a random sign for each example.

    Args:
        values: The outputs, one row per example.
        inputs: What to differentiate by, each with the examples first.
        projections: How many directions to draw for each example; -1 takes every output in turn, which is exact where
            examples do not depend on each other, and right on average where they do.
        generator: The source of the directions and signs; torch's own when absent.
        directions: Directions of any length, instead of drawn ones.
        create_graph: Let the result be differentiated in turn.

    Returns:
        One square per example.
    """
    count = values.shape[1] if projections == -1 else projections
    total = values.new_zeros(len(values))
    signs = torch.where(_draw(values, generator) < 0, -1.0, 1.0) if projections == -1 else None
    for number in range(count):
        if signs is not None:
            direction = torch.zeros_like(values)
            direction[:, number] = signs[:, number].to(direction)
        else:
            drawn = _draw(values, generator) if directions is None else send(directions[:, number], values.device)
            direction = normalize(drawn.to(values.dtype), dim=1)
        # The graph of the forward pass serves once more, until the last.
        keep = create_graph or number < count - 1
        gradients = torch.autograd.grad(
            values, inputs, direction, retain_graph=keep, create_graph=create_graph, allow_unused=True
        )
        for gradient in gradients:
            if gradient is not None:
                total = total + gradient.reshape(len(total), -1).to(total.dtype).square().sum(1)
    return total if projections == -1 else total * (values.shape[1] / count)


def _draw(values: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.randn_like(values)
    return send(torch.randn(values.shape, generator=generator, device=generator.device), values.device)
