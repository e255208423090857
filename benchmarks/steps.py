"""Whole training steps, each captured in one CUDA graph: forward, backward, clipping and the optimizer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from effdeg import Penalty

Loss = Callable[[Tensor, Tensor], Tensor]


class CapturedStep:
    """A training step that is replayed by calling it."""

    def __init__(self, model: nn.Module, step: Callable[[], None]) -> None:
        # The graph works in the memory of what the step holds on to: the model, the optimizer's state and the batch.
        self.step = step
        # Work that is to be captured runs on a stream of its own a few times before.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()

    def __call__(self) -> None:
        """Replay the step."""
        self.graph.replay()


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
