"""The examples of a run, all of them on the device, and what is done to a batch of images there: crops, flips, cuts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate, one_hot, pad

from effdeg_lab.core.settings import format_setting
from effdeg_lab.data import ImageSet, Labeled
from effdeg_lab.engine.augment import RESIZED, augment_batch, randaugment
from effdeg_lab.engine.settings import Training
from effdeg_lab.models import PRETRAINED

JOINING = ("cutmix", "crop-flip-cutmix", "swap-simple-half")
"""The augmentations that join images of a batch."""
_BORDER = 4
# A cut lies between a quarter and three quarters of the height or of the width, so that neither part is a sliver.
_LEAST = 0.25
# A half is simple only if a linear function of it classifies this share of examples more than one of the other half.
_LEAST_ADVANTAGE = 0.1
# The search for it: training examples, half of them fitted and half predicted, and pixels a side of their images.
_EXAMPLES, _PIXELS, _DAMPING = 2000, 16, 1.0


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs as they are stored, bytes or features, and their labels."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Split":
        return Split(self.inputs[:count], self.labels[:count])

    def load(self) -> "Split":
        """Return the same examples, all of them on the device."""
        return self

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.inputs, size), torch.split(self.labels, size), strict=True)


class DeviceExamples:
    """Training and test examples: the test set and changed versions of it, or examples that were held out."""

    def __init__(self, data: Labeled, settings: Training, device: torch.device) -> None:
        kept, count = count_examples(len(data.train_labels), settings)
        self._pixels = data.train_inputs.dtype == torch.uint8
        self.classes, self.shape = data.classes, tuple(data.train_inputs.shape[1:])
        check_images(settings, self.shape)
        self._side = settings.pixels
        if self._side is not None:
            self.shape = (self.shape[0], self._side, self._side)
        whole = Split(data.train_inputs.to(device), data.train_labels.to(device))
        self.train, self.further_tests, self.count = whole.first(count), dict[str, Split](), count
        # The true labels of training examples, if some of the given labels are known to be wrong.
        self.truth = None if data.true_labels is None else data.true_labels[:count].to(device)
        self.corrupted = None if settings.held_out else data.corrupted  # large: not on the device yet
        self.shifted = {} if settings.held_out else dict(data.shifted)  # nor these
        if settings.held_out:
            self.test = Split(whole.inputs[kept:], whole.labels[kept:])
        else:
            self.test = Split(data.test_inputs.to(device), data.test_labels.to(device))
            self.further_tests = {
                name: Split(inputs.to(device), self.test.labels) for name, inputs in data.further_tests.items()
            }
        self._set_scale(data, settings, device)
        self._augment, self._crop_scale = settings.augment, settings.crop_scale
        self._images = add_border(self.train.inputs, self._augment)
        self._labels, self._labeled = self.train.labels, None
        self._unlabeled_batch = settings.unlabeled_batch
        if settings.labeled is not None:
            self._labeled = _choose_labeled(self.train.labels, settings.labeled, self.classes, settings.seed)
            self.train = Split(self.train.inputs[self._labeled], self.train.labels[self._labeled])
            self.truth = None if self.truth is None else self.truth[self._labeled]

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return training examples, cropped and normalized, their labels, and perhaps examples without labels.

        If few examples have labels, indices of all examples cycle through the labeled ones.
        """
        chosen = indices if self._labeled is None else self._labeled[indices % len(self._labeled)]
        found = self._crop(chosen), self._labels[chosen]
        if not self._unlabeled_batch:
            return found
        return *found, self._crop(torch.randint(self.count, (self._unlabeled_batch,), device=indices.device))

    def normalize(self, inputs: Tensor) -> Tensor:
        """Turn bytes into a model's inputs; features stay as they are."""
        return self._standardize(resize(inputs.float() / 255, self._side)) if self._pixels else inputs

    def summarize(self) -> dict[str, int]:
        return {"train_examples": self.count, "test_examples": len(self.test), "classes": self.classes}

    def draw_noise(self, inputs: Tensor) -> Tensor:
        """Draw inputs of this shape, every pixel uniform between black and white, or every feature between 0 and 1."""
        noise = torch.rand_like(inputs)
        return self._standardize(noise) if self._pixels else noise

    def strengthen(self, inputs: Tensor) -> Tensor:
        """Return images as inputs of the model after RandAugment, a strong change."""
        pixels = 255 * (inputs * self._std + self._mean)
        return self._standardize(randaugment(pixels.round().clamp(0, 255).byte()).float() / 255)

    def _set_scale(self, data: Labeled | ImageSet, settings: Training, device: torch.device) -> None:
        known = PRETRAINED.get(settings.model)
        self.scale = (data.mean, data.std) if known is None else known.scale
        self._mean, self._std = (torch.tensor(each, device=device).view(-1, 1, 1) for each in self.scale)

    def _crop(self, indices: Tensor) -> Tensor:
        if self._augment in RESIZED:
            return self.normalize(augment_batch(self._images, indices, self._augment, crop_scale=self._crop_scale))
        return self.normalize(crop_batch(self._images, indices, self._augment))

    def _standardize(self, pixels: Tensor) -> Tensor:
        return (pixels - self._mean) / self._std


def resize(images: Tensor, side: int | None) -> Tensor:
    """Resize images to pixels × pixels, bilinear and antialiased; None leaves them as they are."""
    if side is None or images.shape[-2:] == (side, side):
        return images
    # Only shrinking needs antialiasing, and without it the compiler can fuse this with what comes next.
    shrinks = max(images.shape[-2:]) > side
    return interpolate(images, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)


def count_examples(total: int, settings: Any) -> tuple[int, int]:
    """Return how many training examples are not held out, and how many of them are used; raise if a batch has more."""
    kept = total - settings.held_out
    count = min(kept, settings.limit or kept)
    if settings.limit is not None and settings.limit > total:
        raise ValueError(f"limit={settings.limit} is more than the {total} training examples: set limit=none for all.")
    if count < settings.batch:
        raise ValueError(
            f"batch={settings.batch} is more than the {max(count, 0)} training examples that limit="
            f"{format_setting(settings.limit)} and held_out={settings.held_out} leave of {total}."
        )
    return kept, count


def check_images(settings: Training, shape: tuple[int, ...]) -> None:
    needed = {
        "augment": settings.augment != "none",
        "pixels": settings.pixels is not None,
        "ends": settings.ends not in {"data", "random-pixels"},
        "loss_on": settings.loss_on == "boxes",
        "regularizer": bool({"uda", "fixmatch", "ed-copies", "consistency"} & {*settings.regularizer.split("+")}),
        "observe": settings.observe > 0,
    }
    for name, needs_images in needed.items():
        if needs_images and len(shape) != 3:
            raise ValueError(f"{name}={getattr(settings, name)} is for images; {settings.data} has features.")


def check_labeled(count: int, classes: int) -> None:
    if count < classes:
        raise ValueError(
            f"labeled={count} leaves some of the {classes} classes without a label: use {classes} or more."
        )


def _choose_labeled(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """Choose examples to have labels: the same number of each class, or one more of some to reach the count."""
    check_labeled(count, classes)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    of_classes = [order[labels.cpu()[order] == each] for each in range(classes)]
    wanted = [count // classes + (each < count % classes) for each in range(classes)]
    if short := [each for each in range(classes) if len(of_classes[each]) < wanted[each]]:
        available = len(of_classes[short[0]])
        raise ValueError(f"labeled={count} takes {wanted[short[0]]} examples of each class; one has {available}.")
    chosen = torch.cat([found[:number] for found, number in zip(of_classes, wanted, strict=True)])
    return chosen[torch.randperm(count, generator=torch.Generator().manual_seed(seed))].to(labels.device)


def add_border(images: Tensor, augment: str) -> Tensor:
    """Put a black border around images for crops to reach into, if there will be crops."""
    return pad(images, (_BORDER,) * 4) if augment.startswith("crop") else images


def crop_batch(images: Tensor, batch: Tensor, augment: str) -> Tensor:
    """Pick a batch out of images with a border, each cropped at random and, unless ``crop``, flipped or not."""
    if not augment.startswith("crop"):
        return images[batch]
    channels, height, width = images.shape[1], *(side - 2 * _BORDER for side in images.shape[2:])
    device = images.device
    top, left = torch.randint(0, 2 * _BORDER + 1, (2, len(batch), 1), device=device)
    rows, columns = top + torch.arange(height, device=device), left + torch.arange(width, device=device)
    if augment.startswith("crop-flip"):
        flipped = torch.rand(len(batch), 1, device=device) < 0.5
        columns = torch.where(flipped, columns.flip(1), columns)
    channel = torch.arange(channels, device=device)[:, None, None]
    # One gather does it all, where slices image by image would be hundreds of kernels.
    return images[batch[:, None, None, None], channel, rows[:, None, :, None], columns[:, None, None, :]]


def draw_cuts(count: int, images: Tensor) -> tuple[Tensor, Tensor]:
    """Cut images of this size in two by straight lines, horizontal or vertical, each in its own way.

    Returns the pixels on one side of the line, count × 1 × height × width, and their share of all pixels.
    """
    height, width = images.shape[-2:]
    device = images.device
    place = _LEAST + (1 - 2 * _LEAST) * torch.rand(count, 1, 1, 1, device=device)
    across, beyond = torch.rand(2, count, 1, 1, 1, device=device) < 0.5
    down = ((torch.arange(height, device=device) + 0.5) / height).view(height, 1).expand(height, width)
    right = ((torch.arange(width, device=device) + 0.5) / width).expand(height, width)
    part = (torch.where(across, down, right) < place) ^ beyond
    return part, part.float().mean((1, 2, 3))


def draw_boxes(shares: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a box in images of this size for each share of their pixels, wherever it fits.

    Returns its pixels, count × 1 × height × width, and their share, which differs by the rounding to pixels.
    """
    height, width = images.shape[-2:]
    side = shares.sqrt()
    corners = torch.rand(2, len(shares), device=images.device) * (1 - side)

    def within(corner: Tensor, size: int) -> Tensor:
        centers = (torch.arange(size, device=images.device) + 0.5) / size
        return (centers > corner[:, None]) & (centers < (corner + side)[:, None])

    rows, columns = (within(corner, size) for corner, size in zip(corners, (height, width), strict=True))
    box = rows[:, None, :, None] & columns[:, None, None, :]
    return box, box.float().mean((1, 2, 3))


def soften(labels: Tensor, classes: int) -> Tensor:
    """Return class ids as one-hot labels, and soft labels as they are."""
    if labels.is_floating_point():
        return labels
    # Not torch's one_hot, which waits for the GPU to check the ids.
    return (labels[:, None] == torch.arange(classes, device=labels.device)).float()


def mix_cuts(images: Tensor, labels: Tensor, *, classes: int) -> tuple[Tensor, Tensor]:
    """Replace the part of each image beyond a straight line by that of the image before it; mix labels by area."""
    (part, share), soft = draw_cuts(len(images), images), soften(labels, classes)
    return torch.where(part, images.roll(1, 0), images), torch.lerp(soft, soft.roll(1, 0), share[:, None])


def swap_half(images: Tensor, labels: Tensor, *, half: Tensor) -> tuple[Tensor, Tensor]:
    """Replace one half of about every second image by that of the image before it in the shuffled batch."""
    swapped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(half & swapped, images.roll(1, 0), images), labels


def find_simple_half(examples: DeviceExamples) -> Tensor:
    """Find the half of the images from which a linear function predicts the classes far better than from the other.

    Ridge regression on coarse pixels is tried on the upper, lower, left and right half of some training examples, the
    same in every run on the same data. The result marks the pixels, 1 × height × width.
    """
    _, height, width = examples.shape
    upper = (torch.arange(height) < height // 2).view(1, height, 1).expand(1, height, width)
    left = (torch.arange(width) < width // 2).view(1, 1, width).expand(1, height, width)
    halves = {"upper": upper, "lower": ~upper, "left": left, "right": ~left}
    found = {name: _fit_linear(examples, half) for name, half in halves.items()}
    opposite = {"upper": "lower", "lower": "upper", "left": "right", "right": "left"}
    best = max(found, key=lambda name: found[name] - found[opposite[name]])
    if found[best] - found[opposite[best]] < _LEAST_ADVANTAGE:
        accuracies = ", ".join(f"{name} {accuracy:.1%}" for name, accuracy in found.items())
        raise ValueError(
            f"there is no simple half to hold back: a linear function of no half of these images classifies "
            f"{_LEAST_ADVANTAGE:.0%} more examples than one of the other half ({accuracies})."
        )
    return halves[best].to(examples.train.labels.device)


def _fit_linear(examples: DeviceExamples, half: Tensor) -> float:
    """Fit ridge regression to half of some examples, and return its accuracy on the rest; the same on every device."""
    split = examples.train.first(_EXAMPLES).load()
    images = examples.normalize(split.inputs).cpu().double() * half
    coarse = adaptive_avg_pool2d(images, _PIXELS).flatten(1)
    features = torch.cat([coarse, torch.ones_like(coarse[:, :1])], dim=1)
    labels, fitted = split.labels.cpu(), len(split) // 2
    known, targets = features[:fitted], one_hot(labels[:fitted], examples.classes).double()
    gram = known.mT @ known + _DAMPING * torch.eye(known.shape[1], dtype=known.dtype)
    predicted = features[fitted:] @ torch.linalg.solve(gram, known.mT @ targets)
    return float((predicted.argmax(1) == labels[fitted:]).double().mean())
