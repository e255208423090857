"""The network of IMPALA (Espeholt et al., 2018) as used on Procgen: an actor and a critic on one trunk."""

from typing import Literal

import torch
from torch import Tensor, nn

Pooling = Literal["flatten", "average"]


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(torch.relu(x))))


class Trunk(nn.Sequential):
    """Convolutions and a linear layer; with ``fused``, the convolutions run in custom kernels, in bf16."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        if self.fused and x.is_cuda:
            # Imported late: only builds of torch for GPUs include Triton.
            import effdeg_lab.models.impala_kernels as impala_kernels

            if impala_kernels.can_see(x):
                convolutions = [each for each in self.modules() if isinstance(each, nn.Conv2d)]
                x = impala_kernels.see(x, [each for one in convolutions for each in one.parameters()])
                layers = layers[_CONVOLVED:]
        for layer in layers:
            x = layer(x)
        return x


_CONVOLVED = 12  # the layers of a trunk that convolve and pool: four in each of three stages


class Agent(nn.Module):
    """The network of IMPALA: a trunk, with the actor and the critic, one linear layer each, on top."""

    def __init__(self, frame: tuple[int, int], *, actions: int, pooling: Pooling = "flatten") -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before, (height, width) = 3, frame
        for channels in (16, 32, 32):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [Residual(channels), Residual(channels)]
            before, height, width = channels, -(-height // 2), -(-width // 2)
        if pooling == "average":
            layers, height, width = [*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1)], 1, 1
        self.trunk = Trunk(*layers, nn.Flatten(), nn.ReLU(), nn.Linear(before * height * width, 256), nn.ReLU())
        self.actor, self.critic = nn.Linear(256, actions), nn.Linear(256, 1)
        for head, scale in ((self.actor, 0.01), (self.critic, 1.0)):
            nn.init.orthogonal_(head.weight, scale)
            nn.init.zeros_(head.bias)

    def fuse(self, fused: bool = True) -> None:
        """Use custom kernels for the convolutions where possible: on a GPU, in bf16 for frames of any dtype."""
        self.trunk.fused = fused

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the actions, and the values, for a batch of scaled frames."""
        hidden = self.trunk(x)
        return self.actor(hidden).float(), self.critic(hidden).float().squeeze(1)
