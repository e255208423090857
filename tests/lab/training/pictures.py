"""Tiny images whose upper half tells the class to a linear function, while the lower one tells it to nobody."""

import torch

from effdeg.lab.data import Labelled
from effdeg.lab.training.examples import DeviceExamples
from tests.lab.training.runs import small

SIZE = (8, 6)


def pictures(count=400, tests=50, seed=0):
    """Draw noise, with an upper half that is bright in every second image; in a further test the halves are alike."""
    torch.manual_seed(seed)
    images = torch.randint(0, 128, (count + tests, 3, *SIZE), dtype=torch.uint8)
    labels = torch.arange(count + tests) % 2
    images[labels == 1, :, : SIZE[0] // 2] += 127
    dark = images[count:].clone()
    dark[:, :, : SIZE[0] // 2] %= 127
    return Labelled(
        train_inputs=images[:count],
        train_labels=labels[:count],
        test_inputs=images[count:],
        test_labels=labels[count:],
        classes=2,
        mean=(0.4, 0.4, 0.4),
        std=(0.2, 0.2, 0.2),
        further_tests={"dark": dark},
    )


def of_pictures(device="cpu", **settings):
    """The examples of a run on them."""
    return DeviceExamples(pictures(), small(limit=None, **settings), torch.device(device))
