"""
Rescale the layers
==================

Multiply one layer of a ReLU network by s and divide the next by s: no output changes, so a measure of generalization
should not change either. Which ones notice?
"""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from effdeg import proxies
from effdeg.demo import load_digits
from effdeg.plots import open_figure

torch.manual_seed(0)
digits = load_digits(per_class=10, seed=0)
model = nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 10, bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(300):
    loss = cross_entropy(model(digits.labeled), digits.labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

names = ["effective_degree", "path_norm", "jacobian_norm", "sharpness@0.05", "parameter_norm", "spectral_sum"]
scales, rows = [1 / 16, 1 / 4, 1, 4, 16], []
for scale in scales:
    rescaled = copy.deepcopy(model)
    with torch.no_grad():
        rescaled[0].weight.mul_(scale)
        rescaled[2].weight.div_(scale)
    data = (digits.labeled, digits.labels)
    settings = {"names": names, "dtype": torch.float64, "paths": 50, "nodes": 32, "degree": 20}
    rows.append(proxies.evaluate(rescaled, data, cross_entropy, **settings).row())

# %%
# Blue: the measures that stay the same.
with open_figure("light", (8, 4)) as (colors, figure):
    axes = figure.subplots()
    for name in names:
        values = [row[name] / rows[2][name] for row in rows]
        color = colors.simple if max(values) < 1.01 else colors.complex
        axes.plot(scales, values, "o-", color=color)
        if color == colors.complex:
            label = name.replace("_", " ").replace("@", " ")
            axes.text(18, values[-1], label, va="center", color=color)
    axes.text(18, 1, "effective degree,\npath norm, Jacobian norm", va="center", color=colors.simple)
    axes.set(title="value relative to s = 1", xlabel="s", xscale="log", yscale="log", xlim=(None, 200))
    axes.set_xticks(scales, ["1/16", "1/4", "1", "4", "16"])

# sphinx_gallery_start_ignore
ALT = "Six measures of one function against the scale of its first layer: three stay, sharpness and norms change."
# sphinx_gallery_end_ignore
