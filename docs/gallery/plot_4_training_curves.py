"""
Train with and without the penalty
==================================

The same network on the same 100 digits, a fifth of them with wrong labels: once plain, once with
:class:`effdeg.Penalty`. Two lines of the loop differ.
"""

import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network
from effdeg.plots import open_figure

digits = load_digits(per_class=10, seed=0)
labels = digits.labels.clone()
labels[::5] = (labels[::5] + 1) % 10  # wrong ones


def train(weight):
    """Train a network; return its test accuracy and its effective degree along training."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    penalty = effdeg.Penalty(anchor="labels")
    schedule = effdeg.SineRamp(weight, steps=60)
    steps, accuracies, degrees = [], [], []
    for step in range(201):
        if step % 25 == 0:
            measured = effdeg.measure(model, digits.held_out, paths=60, nodes=32, degree=20, seed=0)
            right = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean().item()
            steps.append(step)
            accuracies.append(100 * right)
            degrees.append(measured.value)
        logits, degree = penalty(model, digits.labeled, labels)
        loss = cross_entropy(logits, labels) + schedule(step) * degree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steps, accuracies, degrees


curves = {"plain": train(0.0), "with the penalty": train(4.0)}

# %%
# Without the penalty the network bends itself to fit the wrong labels, and its effective degree rises with every step.
# With it the degree stays lower. The accuracy differs little: the labels at the ends of paths are wrong, too, and the
# penalty asks for a simple way to fit them.
with open_figure("light", (9, 3.6)) as (colors, figure):
    left, right = figure.subplots(1, 2)
    for (name, (steps, accuracies, degrees)), color in zip(
        curves.items(), (colors.complex, colors.simple), strict=True
    ):
        left.plot(steps, accuracies, color=color, lw=2, label=name)
        right.plot(steps, degrees, color=color, lw=2, label=name)
    left.set(title="test accuracy, %", xlabel="step")
    right.set(title="effective degree", xlabel="step", ylim=(0, None))
    left.legend()

# sphinx_gallery_start_ignore
ALT = "Test accuracy and effective degree along training, without and with the penalty."
# sphinx_gallery_end_ignore
