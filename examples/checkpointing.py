"""Gradient checkpointing: activations are computed again in the backward pass, those of the points too.

python examples/checkpointing.py
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import effdeg
from effdeg.demo import load_digits, network

STEPS = 60


class Checkpointed(nn.Module):
    """Keeps only what goes into the hidden layers, not what they compute."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.hidden, self.head = model[:-1], model[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.hidden, x, use_reentrant=False))


torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
model = Checkpointed(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
penalty = effdeg.Penalty(anchor="labels")
weight = effdeg.SineRamp(7.0, steps=STEPS // 3)

for step in range(STEPS):
    logits, degree = penalty(model, digits.labeled, digits.labels)
    loss = cross_entropy(logits, digits.labels) + weight(step) * degree
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

accuracy = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
print(f"held-out accuracy {accuracy:.1%}")
