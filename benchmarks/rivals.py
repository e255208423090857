"""What other regularizers do in a step, as their papers have it, for the price list beside the penalty's."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from benchmarks.steps import Loss, adamw


def sam_step(model: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, rho: float = 0.05) -> Callable[[], None]:
    """Sharpness-aware minimization (Foret et al. 2021): climb by rho along the gradient, and descend from there."""
    optimizer = adamw(model)
    parameters: list[Tensor] = list(model.parameters())

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss(x, y).backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        scale = rho / (torch.stack(torch._foreach_norm(gradients)).norm() + 1e-12)
        climbs = list(torch._foreach_mul(gradients, scale))
        with torch.no_grad():
            torch._foreach_add_(parameters, climbs)
        model.zero_grad(set_to_none=True)
        loss(x, y).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            torch._foreach_sub_(parameters, climbs)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def jacobian_loss(model: nn.Module, *, weight: float = 0.01) -> Loss:
    """Jacobian regularization with one random projection (Hoffman et al. 2019)."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        # Only this attention kernel can be differentiated twice, and torch.compile cannot do it at all.
        with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            x = x.detach().requires_grad_()
            logits = model(x)
            direction = torch.randn_like(logits)
            direction = direction / direction.norm(dim=1, keepdim=True)
            (product,) = torch.autograd.grad(logits, x, direction, create_graph=True)
            squared = logits.shape[1] * product.square().sum() / len(x)
            total: Tensor = cross_entropy(logits, y) + weight / 2 * squared
            return total

    return loss
