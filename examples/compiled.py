"""A whole step in one compiled graph: the model, the paths, the fit and the loss.

The weight is a tensor, so that its changes do not compile the step anew.

    python examples/compiled.py
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network

STEPS = 60

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
penalty = effdeg.Penalty(anchor="labels")
ramp = effdeg.SineRamp(7.0, steps=STEPS // 3)


@torch.compile(fullgraph=True)
def loss_of(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    logits, degree = penalty(model, x, y)
    return cross_entropy(logits, y) + weight * degree


for step in range(STEPS):
    loss = loss_of(digits.labeled, digits.labels, torch.tensor(ramp(step)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

accuracy = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
print(f"held-out accuracy {accuracy:.1%}")
