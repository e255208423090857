"""
Spectra of coefficients
=======================

The effective degree is one number; behind it stands a spectrum, the mean size of the coefficients at each degree. A
network before training is nearly linear along its paths; training adds high degrees, and regularizers remove them.
"""

import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import baselines
from effdeg.demo import load_digits, network
from effdeg.plots import open_figure

digits = load_digits(per_class=20, seed=0)


def train(name, steps=150, **settings):
    """Train a network by a method, see :func:`effdeg.baselines.method`."""
    torch.manual_seed(0)
    model, method = network(), baselines.method(name, **settings)
    optimizer = method.optimizer(model, torch.optim.AdamW, lr=1e-3)
    for _ in range(steps):
        x, y = method.batch(digits.labeled, digits.labels)
        loss = method.loss(model, x, y, cross_entropy)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


models = {
    "untrained": train("plain", steps=0),
    "plain": train("plain"),
    "mixup": train("mixup", alpha=1.0, classes=10),
    "penalty": train("ed", weight=7.0),
}
measured = {
    name: effdeg.measure(model, digits.held_out, paths=200, nodes=64, degree=30, seed=0)
    for name, model in models.items()
}

# %%
# Each number in the legend is the effective degree: the sum of k times the height of the curve at k.
with open_figure("light", (8, 4)) as (colors, figure):
    axes = figure.subplots()
    shades = ("#8b949e", colors.complex, "#7b61b8", colors.simple)
    for (name, each), color in zip(measured.items(), shades, strict=True):
        sizes = each.spectrum[1:]
        axes.plot(range(1, len(sizes) + 1), sizes, color=color, lw=2, label=f"{name}: {each.value:.2f}")
    axes.set(title="mean |cₖ| over paths and classes", xlabel="degree k", yscale="log")
    axes.legend()

# sphinx_gallery_start_ignore
ALT = "Mean size of Chebyshev coefficients against their degree, for an untrained, a plain, a mixup and an ED network."
# sphinx_gallery_end_ignore
