"""1,797 handwritten digits of 8 × 8 pixels, and a small network for them.

The data are the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, CC BY 4.0), as scikit-learn ships them.
"""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor, nn

POOL = 797


@dataclass(frozen=True)
class Digits:
    """A few labelled digits to train on, a pool without labels to measure on, and digits held out for the truth."""

    labelled: Tensor
    labels: Tensor
    pool: Tensor
    held_out: Tensor
    held_out_labels: Tensor


def load_digits(*, per_class: int, seed: int) -> Digits:
    """Split the digits: a pool without labels, ``per_class`` labelled ones of each kind from it, the rest held out."""
    with files("effdeg.demo").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        images = torch.from_numpy(stored["images"]).float().flatten(1) / 16
        labels = torch.from_numpy(stored["labels"]).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    pool, held_out = order[:POOL], order[POOL:]
    chosen = torch.cat([pool[labels[pool] == digit][:per_class] for digit in range(10)])
    return Digits(images[chosen], labels[chosen], images[pool], images[held_out], labels[held_out])


def network() -> nn.Module:
    """Make the demonstration's network: two hidden layers of 256, far more than the few labels determine."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
