"""Losses and whole training steps: forward, backward, clipping and the optimizer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from effdeg import Penalty

Loss = Callable[[Tensor, Tensor], Tensor]


def plain_loss(model: nn.Module) -> Loss:
    """Cross entropy alone."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return cross_entropy(model(x), y)

    return loss


def penalty_loss(model: nn.Module, penalty: Penalty, weight: Tensor) -> Loss:
    """Cross entropy and the penalty, in one joined forward."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits, degree = penalty(model, x, y)
            total: Tensor = cross_entropy(logits, y) + weight * degree
            return total

    return loss


def ordinary_step(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Callable[[], None]:
    """One step of AdamW with clipping."""
    optimizer = adamw(model)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss(x, y).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Make an optimizer that can be captured."""
    rate = torch.tensor(1e-3, device="cuda")
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1, fused=True, capturable=True)
