"""The examples of a run, all of them on the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from effdeg_lab.data import Labelled
from effdeg_lab.engine.augmentation import add_border, crop_batch
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
    """What is trained on, and what is tested on: the test set, and changed ones, or examples that were held out."""

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
        self.classes, self.shape = data.classes, tuple(data.train_inputs.shape[1:])
        whole = Split(data.train_inputs.to(device), data.train_labels.to(device))
        self.train, self.further_tests = whole.first(count), dict[str, Split]()
        if settings.held_out:
            self.test = Split(whole.inputs[kept:], whole.labels[kept:])
        else:
            self.test = Split(data.test_inputs.to(device), data.test_labels.to(device))
            self.further_tests = {
                name: Split(inputs.to(device), self.test.labels) for name, inputs in data.further_tests.items()
            }
        self._mean, self._std = (torch.tensor(each, device=device).view(-1, 1, 1) for each in (data.mean, data.std))
        self._augment = settings.augment
        self._images = add_border(self.train.inputs, self._augment)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return training examples, cropped and normalized, and their labels."""
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
