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
"""The number of digits in the pool, from which the labeled ones are taken."""


@dataclass(frozen=True)
class Digits:
    """A few labeled digits to train on, a pool without labels to measure on, and digits held out to test on.

    Digits are rows of 64 pixels in [0, 1], labels lie between 0 and 9. The pool has 797 digits, the labeled ones among
    them; the other 1,000 are held out.

    Example:
        >>> from effdeg.demo import load_digits
        >>> load_digits(per_class=2, seed=0).labels.bincount()
        tensor([2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """

    labeled: Tensor
    labels: Tensor
    pool: Tensor
    held_out: Tensor
    held_out_labels: Tensor


def load_digits(*, per_class: int, seed: int) -> Digits:
    """Split the digits into a pool without labels, a few labeled ones from it, and the rest, which is held out.

    Args:
        per_class: The number of labeled digits in each of the 10 classes; all of the pool with :data:`POOL`.
        seed: Determines the split.

    Example:
        >>> from effdeg.demo import load_digits
        >>> digits = load_digits(per_class=5, seed=0)
        >>> digits.labeled.shape, digits.pool.shape, digits.held_out.shape
        (torch.Size([50, 64]), torch.Size([797, 64]), torch.Size([1000, 64]))
    """
    with files("effdeg.demo").joinpath("digits.npz").open("rb") as file, np.load(file) as stored:
        images = torch.from_numpy(stored["images"]).float().flatten(1) / 16
        labels = torch.from_numpy(stored["labels"]).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    pool, held_out = order[:POOL], order[POOL:]
    chosen = torch.cat([pool[labels[pool] == digit][:per_class] for digit in range(10)])
    return Digits(images[chosen], labels[chosen], images[pool], images[held_out], labels[held_out])


def network() -> nn.Module:
    """Make the demonstration's network, from rows of 64 pixels or images of 8 × 8 to 10 logits.

    It has two hidden layers of 256 units, far more than the few labels determine; torch's global generator draws the
    weights.

    Example:
        >>> import torch
        >>> from effdeg.demo import network
        >>> network()(torch.rand(3, 64)).shape
        torch.Size([3, 10])
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
