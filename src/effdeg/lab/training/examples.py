"""The examples of a run, all of them on the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from effdeg.lab.data import Labelled
from effdeg.lab.training.augmentation import Augment, augmented, bordered
from effdeg.lab.training.settings import Training


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs as they are stored, bytes or features, and their labels."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Split":
        """Return the first examples."""
        return Split(self.inputs[:count], self.labels[:count])


class DeviceExamples:
    """What is trained on, and what is tested on: the test set, or training examples that were held out.

    Attributes:
        train: The training examples.
        test: The examples to evaluate on.
        further_tests: The test set changed in ways that the data set names; none where examples were held out.
        classes: How many classes there are.
    """

    def __init__(self, data: Labelled, settings: Training, device: torch.device) -> None:
        kept = len(data.train_labels) - settings.held_out
        count = min(kept, settings.limit or kept)
        if count < settings.batch:
            raise ValueError(
                f"batch={settings.batch} is more than the {max(count, 0)} training examples that limit and held_out "
                f"leave of {len(data.train_labels)}."
            )
        self.classes = data.classes
        augment = settings.augment
        # To recombine images is left to the method, which has the whole batch.
        self._augment: Augment = "none" if augment == "cutmix" or augment == "swap-simple-half" else augment
        self._pixels = data.train_inputs.dtype == torch.uint8
        if not self._pixels and settings.augment != "none":
            raise ValueError(f"augment={settings.augment!r} is for images; {settings.data} has features: use none.")
        whole = Split(data.train_inputs.to(device), data.train_labels.to(device))
        self.train = whole.first(count)
        self.test = (
            Split(whole.inputs[kept:], whole.labels[kept:])
            if settings.held_out
            else Split(data.test_inputs.to(device), data.test_labels.to(device))
        )
        further = {} if settings.held_out else data.further_tests
        self.further_tests = {name: Split(each.to(device), self.test.labels) for name, each in further.items()}
        channels = len(data.mean)
        self._scale = [torch.tensor(each, device=device).view(-1, 1, 1) for each in (data.mean, data.std)]
        if self._pixels and channels != data.train_inputs.shape[1]:
            raise ValueError(f"{settings.data} has {data.train_inputs.shape[1]} channels and the means of {channels}.")
        self._bordered = bordered(self.train.inputs, self._augment)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.inputs.shape[1:])

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return training examples, augmented and normalized, and their labels."""
        return self.normalized(augmented(self._bordered, indices, self._augment)), self.train.labels[indices]

    def normalized(self, inputs: Tensor) -> Tensor:
        """Turn bytes into what a model is given; features stay as they are."""
        return self.standardized(inputs.float() / 255) if self._pixels else inputs

    def standardized(self, shares: Tensor) -> Tensor:
        """Take pixels in [0, 1] to mean 0 and deviation 1, channel by channel; features stay as they are."""
        if not self._pixels:
            return shares
        mean, std = self._scale
        return (shares - mean) / std

    def noise_like(self, inputs: Tensor) -> Tensor:
        """Draw inputs whose every pixel is uniform between black and white, or every feature between 0 and 1."""
        return self.standardized(torch.rand_like(inputs))
