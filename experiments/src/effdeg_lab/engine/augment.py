"""Augmentation of a batch of images on its device: random resized crops, flips and RandAugment.

Images are bytes, N × 3 × height × width (gray ones have one channel), and stay bytes. Every image has its own random
numbers. Nothing waits for the device, and all shapes are fixed, so a step can be compiled and captured in a graph.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from effdeg_lab.data.images import draw_boxes_to_crop

RESIZED = ("resized-crop", "resized-crop-flip", "resized-crop-flip-randaugment")
"""The augmentations of this file: each does what its name lists, in this order."""
# The value of pixels that come from outside the image.
_GRAY = 128
# RandAugment(2, 10) as in big_vision: two operations, each at the highest magnitude of AutoAugment's scale.
_LAYERS = 2
_DEGREES, _SHEAR, _FACTOR = 30.0, 0.3, 1.9
_BITS, _ADDED = 4, 110
# 100 pixels, and a square of 80, in images of 224 pixels; as shares, so that smaller images are treated alike.
_TRANSLATED, _CUT = 100 / 224, 80 / 224


def augment_batch(images: Tensor, indices: Tensor, augment: str, *, crop_scale: float) -> Tensor:
    """Pick a batch out of images, as bytes, and augment it; crops cover at least a share of ``crop_scale`` each."""
    height, width = images.shape[2:]
    boxes = draw_boxes_to_crop(len(indices), (height, width), crop_scale, device=images.device)
    return augment_crops(resize_boxes(images, indices, *boxes), augment)


def augment_crops(images: Tensor, augment: str) -> Tensor:
    """Apply the rest of one of :data:`RESIZED` to images that are already cropped, such as those decoded by workers."""
    if "flip" in augment:
        flipped = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
        images = torch.where(flipped, images.flip(3), images)
    return randaugment(images) if augment.endswith("randaugment") else images


def resize_boxes(images: Tensor, indices: Tensor, top: Tensor, left: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Cut a box out of each image and resize it to the image's size, bilinearly.

    Boxes are not larger than images, so nothing shrinks and no antialiasing is needed. Up to a rounding of 1/255, the
    result is Pillow's for an image that was cropped before.
    """
    channels, height, width = images.shape[1:]
    above, below, lower = _interpolate(top, down, height)
    before, behind, right = _interpolate(left, across, width)
    chosen = indices[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]

    def take(rows: Tensor, columns: Tensor) -> Tensor:
        return images[chosen, channel, rows[:, None, :, None], columns[:, None, None, :]].float()

    lower, right = lower[:, None, :, None], right[:, None, None, :]
    upper_row = torch.lerp(take(above, before), take(above, behind), right)
    lower_row = torch.lerp(take(below, before), take(below, behind), right)
    return torch.lerp(upper_row, lower_row, lower).round().byte()


def _interpolate(start: Tensor, length: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two pixels of a line between which each pixel of a resized part lies, and how near to the second."""
    centers = (torch.arange(size, device=start.device) + 0.5) / size
    places = (centers * length[:, None] - 0.5).clamp(min=0)
    first = places.floor().clamp(max=length[:, None] - 1)
    second = torch.minimum(first + 1, length[:, None] - 1)
    return (start[:, None] + first).long(), (start[:, None] + second).long(), places - first


def randaugment(images: Tensor) -> Tensor:
    """Apply two random operations to each image, one after the other: RandAugment(2, 10) (Cubuk et al., 2020).

    The 16 operations and their magnitudes are those of big_vision, which the stronger ViT recipe uses (Beyer et al.,
    2022): AutoContrast, Equalize, Invert, Rotate by ±30°, Posterize to 4 bits, Solarize, Color, Contrast, Brightness
    and Sharpness by 1.9, ShearX and ShearY by ±0.3, TranslateX and TranslateY by ±100 of 224 pixels, Cutout of a square
    of 80 of 224 pixels, SolarizeAdd of 110. Pixels from outside become gray. timm's list is the same without Cutout.

    Each operation is Pillow's, where Pillow has it. Two of big_vision's differ: its Contrast uses the number of pixels
    divided by 256 as the mean, and its Solarize compares bytes with 256, which no byte can hold. Here, as with Pillow,
    all bytes are below 256, and Solarize leaves an image as it is.

    An image gets each operation with the same probability. But in a batch of 16 n, every operation gets n images, so
    all shapes are fixed and no operation is computed in vain.
    """
    for _ in range(_LAYERS):
        images = _apply_each(images)
    return images


def _apply_each(images: Tensor) -> Tensor:
    """Distribute the images of a batch over the operations, equally many to each, and apply them."""
    count = len(images)
    places = math.ceil(count / len(OPERATIONS)) * len(OPERATIONS)
    # Places that are left over get an image too, which is not kept.
    order = torch.rand(places, device=images.device).argsort()
    dealt = images[order.clamp(max=count - 1)].chunk(len(OPERATIONS))
    done = torch.cat([operation(part) for operation, part in zip(OPERATIONS, dealt, strict=True)])
    return done[order.argsort()[:count]]


def invert(images: Tensor) -> Tensor:
    return 255 - images


def posterize(images: Tensor) -> Tensor:
    """Keep the highest bits of every byte."""
    return images.bitwise_and(256 - 2 ** (8 - _BITS))


def solarize(images: Tensor) -> Tensor:
    """Invert what is not below a threshold. At this magnitude it is 256, so nothing is inverted."""
    return images


def solarize_add(images: Tensor) -> Tensor:
    """Make pixels of the darker half lighter."""
    return torch.where(images < 128, (images.int() + _ADDED).clamp(max=255).byte(), images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel, so that its darkest pixel becomes 0 and its lightest 255."""
    low, high = images.amin((2, 3), keepdim=True).double(), images.amax((2, 3), keepdim=True).double()
    # A number divided by a tensor is rounded twice; Pillow's is not.
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)
    return torch.where(high > low, (images * scale - low * scale).clamp(0, 255).byte(), images)


def equalize(images: Tensor) -> Tensor:
    """Make all values of a channel about equally frequent."""
    flat = images.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    step = (flat.shape[2] - counts.gather(2, flat.amax(2, keepdim=True))) // 255
    below = counts.cumsum(2) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    # An image with almost a single value stays as it is.
    same = torch.arange(256, device=images.device).expand_as(table)
    return torch.where(step > 0, table, same).gather(2, flat).view_as(images).byte()


def brightness(images: Tensor) -> Tensor:
    """Scale all pixels, away from black."""
    return _blend(torch.zeros_like(images), images)


def contrast(images: Tensor) -> Tensor:
    """Scale all pixels, away from the mean shade."""
    mean = _to_gray(images).double().mean((1, 2, 3), keepdim=True).add(0.5).floor().byte()
    return _blend(mean, images)


def color(images: Tensor) -> Tensor:
    """Scale all pixels, away from their own shade of gray."""
    return _blend(_to_gray(images), images)


def sharpness(images: Tensor) -> Tensor:
    """Scale all pixels, away from an average with their neighbors; those at the border, which have fewer, stay."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    shifted = [images[:, :, i : height - 2 + i, j : width - 2 + j].int() for i in range(3) for j in range(3)]
    inner = torch.div(sum(shifted) + 4 * shifted[4] + 6, 13, rounding_mode="floor").byte()
    smooth = torch.cat([images[:, :, 1:-1, :1], inner, images[:, :, 1:-1, -1:]], dim=3)
    return _blend(torch.cat([images[:, :, :1], smooth, images[:, :, -1:]], dim=2), images)


def cutout(images: Tensor) -> Tensor:
    """Make a square gray; its center lies anywhere in the image."""
    inside = []
    for size in images.shape[2:]:
        center = torch.randint(size, (len(images), 1), device=images.device)
        distance = torch.arange(size, device=images.device) - center
        half = round(_CUT * size / 2)
        inside.append((distance >= -half) & (distance < half))
    return torch.where(inside[0][:, None, :, None] & inside[1][:, None, None, :], _GRAY, images)


def rotate(images: Tensor) -> Tensor:
    """Rotate about the center, one way or the other."""
    y, x = (size / 2 for size in images.shape[2:])
    sine = math.sin(math.radians(_DEGREES)) * _draw_signs(images)
    cosine = (1 - sine.square()).sqrt()
    across = torch.stack([cosine, -sine, x - cosine * x + sine * y], dim=1)
    down = torch.stack([sine, cosine, y - sine * x - cosine * y], dim=1)
    return transform(images, torch.stack([across, down], dim=1))


def shear_x(images: Tensor) -> Tensor:
    """Shear sideways, from the top."""
    return _transform_by(images, (0, 1), _SHEAR * _draw_signs(images))


def shear_y(images: Tensor) -> Tensor:
    """Shear up or down, from the left."""
    return _transform_by(images, (1, 0), _SHEAR * _draw_signs(images))


def translate_x(images: Tensor) -> Tensor:
    return _transform_by(images, (0, 2), round(_TRANSLATED * images.shape[3]) * _draw_signs(images))


def translate_y(images: Tensor) -> Tensor:
    return _transform_by(images, (1, 2), round(_TRANSLATED * images.shape[2]) * _draw_signs(images))


def transform(images: Tensor, matrices: Tensor) -> Tensor:
    """Map each image by an affine map from the positions of new pixels, (x, y, 1), to those they are taken from.

    The nearest pixel is taken. Positions are measured from the upper left corner, in pixels, to a pixel's center.
    """
    channels, height, width = images.shape[1:]
    device = images.device
    y, x = (torch.arange(size, dtype=torch.float64, device=device) + 0.5 for size in (height, width))
    places = torch.stack([x.expand(height, width), y[:, None].expand(height, width)])
    moved = torch.einsum("nij,jhw->nihw", matrices[:, :, :2], places) + matrices[:, :, 2, None, None]
    column, row = moved.floor().long().unbind(1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    image = torch.arange(len(images), device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[:, None, None]
    taken = images[image, channel, row.clamp(0, height - 1)[:, None], column.clamp(0, width - 1)[:, None]]
    return torch.where(inside[:, None], taken, _GRAY)


def _transform_by(images: Tensor, entry: tuple[int, int], values: Tensor) -> Tensor:
    """Map each image by the identity with one entry replaced."""
    unit = torch.eye(2, 3, dtype=torch.float64, device=images.device)
    place = torch.zeros_like(unit)
    place[entry].fill_(1.0)  # an assignment would copy a number from the CPU, which a captured graph cannot do
    return transform(images, unit + values[:, None, None] * place)


def _draw_signs(images: Tensor) -> Tensor:
    return 2.0 * torch.randint(2, (len(images),), device=images.device).double() - 1.0


def _to_gray(images: Tensor) -> Tensor:
    """Return the shade of each pixel, by the weights of ITU-R 601-2 in whole numbers, as Pillow has them."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().chunk(3, dim=1)
    return (19595 * red + 38470 * green + 7471 * blue + 32768).bitwise_right_shift(16).byte()


def _blend(degenerate: Tensor, images: Tensor) -> Tensor:
    """Go from one image toward another and beyond it."""
    start = degenerate.float()
    return (start + _FACTOR * (images.float() - start)).clamp(0, 255).byte()


OPERATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    *(autocontrast, equalize, invert, rotate, posterize, solarize, color, contrast, brightness, sharpness),
    *(shear_x, shear_y, translate_x, translate_y, cutout, solarize_add),
)
"""The operations of :func:`randaugment`."""
