"""Gradient accumulation: the penalty is a mean, so it is divided as the loss is.

python examples/accumulation.py
"""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from effdeg.demo import load_digits, network

EPOCHS, ACCUMULATED = 60, 4

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
loader = DataLoader(TensorDataset(digits.labeled, digits.labels), batch_size=16, shuffle=True, drop_last=True)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
penalty = effdeg.Penalty(anchor="labels")
weight = effdeg.SineRamp(7.0, steps=EPOCHS * len(loader) // ACCUMULATED // 3)

batches = 0
for _ in range(EPOCHS):
    for x, y in loader:
        logits, degree = penalty(model, x, y)
        loss = cross_entropy(logits, y) + weight(batches // ACCUMULATED) * degree
        (loss / ACCUMULATED).backward()
        batches += 1
        if batches % ACCUMULATED == 0:
            optimizer.step()
            optimizer.zero_grad()

accuracy = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
print(f"held-out accuracy {accuracy:.1%}")
