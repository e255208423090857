"""Multilayer perceptrons. The defaults are the demonstration's network: two hidden layers of 256."""

from torch import Tensor, nn


class MLP(nn.Module):
    """A ReLU network of equally wide hidden layers, which flattens its inputs."""

    def __init__(self, inputs: int, classes: int, *, width: int = 256, depth: int = 2) -> None:
        super().__init__()
        widths = [inputs, *[width] * depth]
        hidden = [layer for before in widths[:-1] for layer in (nn.Linear(before, width), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(widths[-1], classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Classify a batch."""
        logits: Tensor = self.layers(inputs.flatten(1))
        return logits
