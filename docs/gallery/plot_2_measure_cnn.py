"""
Measure a CNN
=============

Train a small convolutional network on 200 digits, and look at it along paths between digits that it has not seen.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits

torch.manual_seed(0)
digits = load_digits(per_class=20, seed=0)
images = digits.labeled.unflatten(1, (1, 8, 8))
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(150):
    loss = cross_entropy(model(images), digits.labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# :func:`effdeg.trace` runs the network along the paths and keeps its outputs. Their fit is the measurement that
# :func:`effdeg.measure` returns.
unseen = digits.held_out.unflatten(1, (1, 8, 8))
trace = effdeg.trace(model, unseen, paths=300, nodes=80, seed=0)
print(trace.fit())

# %%
# The same outputs can be fitted again, and drawn.
figure = trace.plot()

# sphinx_gallery_start_ignore
ALT = "Paths between digits, outputs of the network along a simple and a complex one, their fits and coefficients."
# sphinx_gallery_end_ignore
