"""
What the number means
=====================

A path between two examples turns a network into a function of one variable. Its effective degree is
**Σ k |cₖ|**, where cₖ are the coefficients of Chebyshev polynomials: here for four outputs that go from 0 to 1.
"""

import torch

from effdeg.functional import chebyshev_nodes, effective_degree, fit
from effdeg.plots import open_figure

alpha = chebyshev_nodes(200)
outputs = {
    "a line": alpha,
    "a smooth step": torch.sigmoid(12 * (alpha - 0.5)),
    "a steep step": torch.sigmoid(60 * (alpha - 0.5)),
    "a wave": 0.5 - 0.5 * torch.cos(5 * torch.pi * alpha),
}
coefficients = {name: fit(values[:, None], alpha, degree=40) for name, values in outputs.items()}

# %%
# The line has the single coefficient c₁ = ½. A steep step needs high degrees, and each counts k times: its effective
# degree is limited only by the degree of the fit. The wave has few coefficients, but large ones.
with open_figure("light", (10, 4.4)) as (colors, figure):
    panels = figure.subplots(2, 4, sharex="row", sharey="row")
    for (name, values), above, below in zip(outputs.items(), *panels, strict=True):
        degree = effective_degree(coefficients[name]).item()
        above.plot(alpha.tolist(), values.tolist(), color=colors.simple, lw=2)
        above.set_title(f"{name}: {degree:.2f}")
        sizes = coefficients[name][:, 0].abs()
        below.bar(range(41), (torch.arange(41) * sizes).tolist(), color=colors.complex)
    panels[0, 0].set(xlabel="α", ylabel="output")
    panels[1, 0].set(xlabel="degree k", ylabel="k |cₖ|")

# sphinx_gallery_start_ignore
ALT = "Four functions that go from 0 to 1, and below each its Chebyshev coefficients times their degrees."
# sphinx_gallery_end_ignore
