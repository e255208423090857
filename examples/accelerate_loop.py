"""Hugging Face Accelerate: the plain loop, as it is.

pip install accelerate
accelerate launch examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import effdeg
from effdeg.demo import load_digits, network

EPOCHS = 20

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
digits = load_digits(per_class=20, seed=0)
loader = DataLoader(TensorDataset(digits.labeled, digits.labels), batch_size=32, shuffle=True)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
penalty = effdeg.Penalty(anchor="labels")
weight = effdeg.SineRamp(7.0, steps=EPOCHS * len(loader) // 3)

step = 0
for _ in range(EPOCHS):
    for x, y in loader:
        with accelerator.accumulate(model):
            logits, degree = penalty(model, x, y)
            accelerator.backward(cross_entropy(logits, y) + weight(step) * degree)
            optimizer.step()
            optimizer.zero_grad()
            step += 1

correct = model(digits.held_out.to(accelerator.device)).argmax(1).cpu() == digits.held_out_labels
accelerator.print(f"held-out accuracy {correct.float().mean():.1%}")
