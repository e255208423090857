"""
Compare checkpoints
===================

Which of several checkpoints is the simplest? :func:`effdeg.compare` runs all of them along the same paths, so that
differences are paired: they can be significant where error bars overlap. No labels are needed.
"""

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
checkpoints = {}
for step in range(1, 401):
    loss = cross_entropy(model(digits.labeled), digits.labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in {25, 50, 100, 200, 400}:
        checkpoints[f"step {step}"] = deepcopy(model)

# %%
# Every checkpoint is more complex than the one before. From step 100 on that hardly changes how well it does on digits
# that it has not seen.
comparison = effdeg.compare(checkpoints, digits.held_out, paths=200, nodes=64, seed=0)
print(comparison)
for name, checkpoint in checkpoints.items():
    right = (checkpoint(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
    print(f"{name:9} test accuracy {right:.1%}")

# %%
figure = comparison.plot()

# sphinx_gallery_start_ignore
ALT = "Effective degrees of five checkpoints with their intervals, and how far each is above the simplest."
# sphinx_gallery_end_ignore
