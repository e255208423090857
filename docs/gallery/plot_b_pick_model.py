"""
Pick a model without labels
===========================

Several networks were trained on digits, each with other settings. Which one to use on new digits, of which nobody
knows the labels? :func:`effdeg.pick` compares how often a prediction changes when noise is added to the digit, and
how far the networks agree.
"""

import torch
from torch.nn.functional import cross_entropy

import effdeg
from effdeg.demo import load_digits, network

torch.manual_seed(0)
networks = {}
for per_class in (3, 10, 30):
    digits = load_digits(per_class=per_class, seed=0)
    for rate in (1e-3, 1e-2):
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        for _ in range(200):
            loss = cross_entropy(model(digits.labeled), digits.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        networks[f"{10 * per_class} digits, {rate:g}"] = model

# %%
# By default such images are moved by a pixel, which is too much for digits of 8 × 8: a note would say so.
change = effdeg.changes.noise(0.2)
choice = effdeg.pick(networks, digits.held_out.view(-1, 1, 8, 8), change=change)
print(choice)

# %%
# Here the labels are known after all:
for name, model in networks.items():
    right = (model(digits.held_out).argmax(1) == digits.held_out_labels).float().mean()
    print(f"{name:17} test accuracy {right:.1%}{'   <- chosen' if name == choice.best else ''}")

# %%
figure = choice.plot()

# sphinx_gallery_start_ignore
ALT = "Inconsistency and disagreement of six networks as bars, and the share of resamples in which each is best."
# sphinx_gallery_end_ignore
