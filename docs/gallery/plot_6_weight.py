"""
How much weight?
================

The weight of the penalty trades the effective degree against the loss. Small networks train in a second, so here are
five weights with three seeds each.
"""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network
from effdeg.plots import open_figure

weights = (0.0, 2.0, 7.0, 20.0, 60.0)


def train(weight, seed):
    """Train a network on 50 digits; return its test accuracy and its effective degree."""
    digits = load_digits(per_class=5, seed=seed)
    torch.manual_seed(seed)
    model, penalty = network(), effdeg.Penalty(anchor="labels")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = effdeg.SineRamp(weight, steps=25)
    for step in range(80):
        logits, degree = penalty(model, digits.labeled, digits.labels)
        loss = cross_entropy(logits, digits.labels) + schedule(step) * degree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean().item()
    measured = effdeg.measure(model, digits.held_out, paths=60, nodes=32, degree=20, seed=0)
    return 100 * right, measured.value


found = np.array([[train(weight, seed) for seed in range(3)] for weight in weights])

# %%
# Gray lines are seeds, the blue one is their mean. The degree falls all the way; the accuracy stays within the spread
# of the seeds. On 50 digits simpler is not better.
with open_figure("light", (9, 3.6)) as (colors, figure):
    for axes, title, values in zip(
        figure.subplots(1, 2), ("test accuracy, %", "effective degree"), found.transpose(2, 0, 1), strict=True
    ):
        for seed in values.T:
            axes.plot(range(len(weights)), seed, color=colors.faint, lw=1.5)
        axes.plot(range(len(weights)), values.mean(1), "o-", color=colors.simple, lw=2)
        axes.set(title=title, xlabel="weight λ")
        axes.set_xticks(range(len(weights)), [f"{weight:g}" for weight in weights])

# sphinx_gallery_start_ignore
ALT = "Test accuracy and effective degree against the weight of the penalty, for three seeds and their mean."
# sphinx_gallery_end_ignore
