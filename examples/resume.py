"""Kill it and start it again: it arrives at the same weights. The penalty has no state; torch's random state is enough.

On a GPU paths are drawn there: save torch.cuda.get_rng_state() as well.

python examples/resume.py checkpoint.pt
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network

STEPS = 100
if len(sys.argv) != 2:
    raise SystemExit("usage: python examples/resume.py checkpoint.pt")
file = Path(sys.argv[1])

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
penalty = effdeg.Penalty(anchor="labels")
weight = effdeg.SineRamp(7.0, steps=STEPS // 3)
start = 0

if file.exists():
    saved = torch.load(file, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
    start = saved["step"]
    print(f"going on at step {start}", flush=True)

for step in range(start, STEPS):
    if step % 20 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "random": torch.get_rng_state(), "step": step}, file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)  # never half a checkpoint
    batch = torch.randperm(len(digits.labels))[:64]
    x, y = digits.labeled[batch], digits.labels[batch]
    logits, degree = penalty(model, x, y)
    loss = cross_entropy(logits, y) + weight(step) * degree
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

torch.save(model.state_dict(), file.with_suffix(".final"))
accuracy = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
print(f"held-out accuracy {accuracy:.1%}")
