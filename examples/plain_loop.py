"""An ordinary training loop with the penalty: two lines are new, one is changed.

python examples/plain_loop.py
"""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from effdeg.demo import load_digits, network

EPOCHS = 60

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
loader = DataLoader(TensorDataset(digits.labeled, digits.labels), batch_size=64, shuffle=True)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

penalty = effdeg.Penalty(anchor="labels")
weight = effdeg.SineRamp(7.0, steps=EPOCHS * len(loader) // 3)

step = 0
for _ in range(EPOCHS):
    for x, y in loader:
        logits, degree = penalty(model, x, y)
        loss = cross_entropy(logits, y) + weight(step) * degree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1

accuracy = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
print(f"held-out accuracy {accuracy:.1%}")
