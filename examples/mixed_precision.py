"""bf16 autocast, or fp16 with a gradient scaler: the penalty's arithmetic stays in float64.

python examples/mixed_precision.py bf16
python examples/mixed_precision.py fp16
"""

import sys

import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network

STEPS = 60
half = sys.argv[1:] == ["fp16"]
device = "cuda" if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
images, labels = digits.labeled.to(device), digits.labels.to(device)
model = network().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler(device, enabled=half)
penalty = effdeg.Penalty(anchor="labels")
weight = effdeg.SineRamp(7.0, steps=STEPS // 3)

for step in range(STEPS):
    batch = torch.randperm(len(labels), device=device)[:32]
    x, y = images[batch], labels[batch]
    with torch.autocast(device, torch.float16 if half else torch.bfloat16):
        logits, degree = penalty(model, x, y)
        loss = cross_entropy(logits, y) + weight(step) * degree
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

accuracy = (model(digits.held_out.to(device)).argmax(1).cpu() == digits.held_out_labels).float().mean()
print(f"held-out accuracy {accuracy:.1%}")
