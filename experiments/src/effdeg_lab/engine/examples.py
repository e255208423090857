"""The examples of a run, all of them on the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from effdeg_lab.data import Labelled
from effdeg_lab.engine.augmentation import Augment, add_border, crop_batch
from effdeg_lab.engine.settings import Training


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
        classes: The number of classes.
    """

    def __init__(self, data: Labelled, settings: Training, device: torch.device) -> None:
        kept = len(data.train_labels) - settings.held_out
        count = min(kept, settings.limit or kept)
        if count < settings.batch:
            raise ValueError(
                f"batch={settings.batch} is more than the {max(count, 0)} training examples that limit and held_out "
                f"leave of {len(data.train_labels)}."
            )
        self._pixels = data.train_inputs.dtype == torch.uint8
        if not self._pixels and settings.augment != "none":
            raise ValueError(f"augment={settings.augment!r} is for images; {settings.data} has features: use none.")
        if self._pixels and len(data.mean) != data.train_inputs.shape[1]:
            channels = data.train_inputs.shape[1]
            raise ValueError(f"{settings.data} has {channels} channels and the means of {len(data.mean)}.")
        self.classes = data.classes
        whole = Split(data.train_inputs.to(device), data.train_labels.to(device))
        self.train = whole.first(count)
        self.test = (
            Split(whole.inputs[kept:], whole.labels[kept:])
            if settings.held_out
            else Split(data.test_inputs.to(device), data.test_labels.to(device))
        )
        further = {} if settings.held_out else data.further_tests
        self.further_tests = {name: Split(each.to(device), self.test.labels) for name, each in further.items()}
        self._mean, self._std = (torch.tensor(each, device=device).view(-1, 1, 1) for each in (data.mean, data.std))
        # What joins images of a batch is left to the regularizer, which sees the whole batch.
        augment = settings.augment
        self._augment: Augment = "none" if augment == "cutmix" or augment == "swap-simple-half" else augment
        self._images = add_border(self.train.inputs, self._augment)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.inputs.shape[1:])

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return training examples, augmented and normalized, and their labels."""
        return self.normalize(crop_batch(self._images, indices, self._augment)), self.train.labels[indices]

    def normalize(self, inputs: Tensor) -> Tensor:
        """Turn bytes into what a model is given; features stay as they are."""
        return self._standardize(inputs.float() / 255) if self._pixels else inputs

    def draw_noise(self, inputs: Tensor) -> Tensor:
        """Draw inputs of this shape, every pixel uniform between black and white, or every feature between 0 and 1."""
        noise = torch.rand_like(inputs)
        return self._standardize(noise) if self._pixels else noise

    def _standardize(self, pixels: Tensor) -> Tensor:
        return (pixels - self._mean) / self._std
