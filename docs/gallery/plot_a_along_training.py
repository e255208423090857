"""
The degree along a long training
================================

ViT-Tiny on CIFAR-10 for 300 epochs, as in the paper's Table 1. These runs took minutes on a GPU; here they are read
from ``results/cifar10-contest``.
"""

from pathlib import Path

from effdeg.plots import open_figure
from effdeg_lab import RunFolder

runs = [run for run in RunFolder(Path("../../results")).read() if run.recipe == "cifar10-contest"]
longest = {run.method: run for run in sorted(runs, key=lambda run: run.settings["epochs"])}
methods = {"plain": "plain", "mixup": "mixup", "ed": "penalty"}

# %%
# Plain training goes on to make the network more complex long after it fits its training images. Mixup and the penalty
# keep it simple, and end with about the same degree and accuracy.
with open_figure("light", (9, 3.8)) as (colors, figure):
    left, right = figure.subplots(1, 2)
    for (name, label), color in zip(methods.items(), (colors.complex, "#7b61b8", colors.simple), strict=True):
        entries = longest[name].metrics
        measured = [each for each in entries if "effective_degree" in each]
        left.plot(
            [each["epoch"] for each in entries],
            [100 * each["test_accuracy"] for each in entries],
            color=color,
            lw=2,
            label=label,
        )
        right.errorbar(
            [each["epoch"] for each in measured],
            [each["effective_degree"]["value"] for each in measured],
            [each["effective_degree"]["stderr"] for each in measured],
            fmt="o-",
            color=color,
            lw=2,
            label=label,
        )
    left.set(title="test accuracy, %", xlabel="epoch", ylim=(70, None))
    right.set(title="effective degree", xlabel="epoch", ylim=(0, None))
    right.legend()

# sphinx_gallery_start_ignore
ALT = "Test accuracy and effective degree of a ViT-Tiny over 300 epochs: plain, with mixup and with the penalty."
# sphinx_gallery_end_ignore
