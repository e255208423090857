"""The network of IMPALA (Espeholt et al., 2018), an actor and a critic on one trunk, as it is used on Procgen."""

from typing import Literal

import torch
from torch import Tensor, nn

Pooling = Literal["flatten", "average"]


class Residual(nn.Module):
    """Two convolutions around which the input is passed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find."""
        found: Tensor = x + self.second(torch.relu(self.first(torch.relu(x))))
        return found


class Trunk(nn.Sequential):
    """Convolutions and a linear layer; the former by a few kernels of our own, in bf16, if they are to be fused."""

    fused = False

    def forward(self, x: Tensor) -> Tensor:
        """Turn frames into features."""
        layers = list(self)
        if self.fused and x.is_cuda:
            # Not at the top: Triton comes with torch for GPUs alone.
            from effdeg_lab.models import impala_kernels

            if impala_kernels.can_see(x):
                convolutions = [each for each in self.modules() if isinstance(each, nn.Conv2d)]
                x = impala_kernels.see(x, [each for one in convolutions for each in one.parameters()])
                layers = layers[_CONVOLVED:]
        for layer in layers:
            x = layer(x)
        return x


_CONVOLVED = 12  # layers of a trunk that convolve and pool: four in each of three stages


class Agent(nn.Module):
    """The network of IMPALA: a trunk, and on top of it the actor and the critic, one linear layer each."""

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
        """Compute convolutions by kernels of our own where they can be: on a GPU, in bf16 whatever the frames are."""
        self.trunk.fused = fused

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of actions, and the value, of scaled frames."""
        hidden = self.trunk(x)
        return self.actor(hidden).float(), self.critic(hidden).float().squeeze(1)
