"""The average of a network over its training, whose outputs are steadier than the network's own."""

from copy import deepcopy

import torch
from torch import Tensor, nn


class Teacher(nn.Module):
    """An exponential moving average of a network's weights and running statistics, in evaluation mode.

    In update n the new weights count with 1 − min(decay, 1 − 1/n), so the first ones are forgotten early. Torch's
    ``AveragedModel`` reads n on the CPU, so it cannot be captured in a CUDA graph.
    """

    count: Tensor

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__()
        self.model, self._decay = deepcopy(model).eval().requires_grad_(False), decay
        self.register_buffer("count", torch.zeros((), device=next(model.parameters()).device))

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the network's current weights to the average."""
        self.count += 1
        kept = (1 - 1 / self.count).clamp(max=self._decay)
        averages, values = _list_values(self.model), _list_values(model)
        torch._foreach_mul_(averages, kept)
        torch._foreach_add_(averages, torch._foreach_mul(values, 1 - kept))

    def restore(self, state: dict[str, Tensor] | None, model: nn.Module) -> None:
        """Continue from a state, or begin with the network's weights if there is none."""
        if state is not None:
            self.load_state_dict(state)
            return
        self.model.load_state_dict(model.state_dict())
        self.count.zero_()


def _list_values(model: nn.Module) -> list[Tensor]:
    return [each.detach() for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()]
