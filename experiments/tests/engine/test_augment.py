"""Crops, flips and RandAugment on the device: each operation against Pillow, image by image."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.nn.functional import interpolate

from effdeg_lab.data.images import draw_boxes_to_crop
from effdeg_lab.engine import augment
from effdeg_lab.engine.augment import RESIZED, augment_batch, randaugment, resize_boxes

SIZE = (30, 22)
MATRICES = {
    augment.rotate: lambda sign: rotation(sign * math.pi / 6),
    augment.shear_x: lambda sign: (1, sign * 0.3, 0, 0, 1, 0),
    augment.shear_y: lambda sign: (1, 0, 0, sign * 0.3, 1, 0),
    augment.translate_x: lambda sign: (1, 0, sign * round(22 * 100 / 224), 0, 1, 0),
    augment.translate_y: lambda sign: (1, 0, 0, 0, 1, sign * round(30 * 100 / 224)),
}
PILLOW = {
    augment.autocontrast: ImageOps.autocontrast,
    augment.equalize: ImageOps.equalize,
    augment.invert: ImageOps.invert,
    augment.posterize: lambda image: ImageOps.posterize(image, 4),
    augment.solarize: lambda image: ImageOps.solarize(image, 256),
    augment.color: lambda image: ImageEnhance.Color(image).enhance(1.9),
    augment.contrast: lambda image: ImageEnhance.Contrast(image).enhance(1.9),
    augment.brightness: lambda image: ImageEnhance.Brightness(image).enhance(1.9),
    augment.sharpness: lambda image: ImageEnhance.Sharpness(image).enhance(1.9),
}


def make_images(count=12, channels=3):
    """Draw smooth and rough images, dark and light ones, two of a few values, and one of a single value."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, channels, 5, 4, generator=generator)
    images = 255 * interpolate(coarse, SIZE, mode="bilinear") * torch.linspace(0.3, 1, count).view(-1, 1, 1, 1)
    images[::2] += 20 * torch.randn(images[::2].shape, generator=generator)
    images[-3] = 100 * (images[-3] > 90)
    images[-2] = 60 + 3 * (images[-2] > 120)
    images[-1] = 77
    return images.clamp(0, 255).byte()


def to_pillow(image):
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array if array.shape[2] == 3 else array[..., 0])


def from_pillow(image):
    array = np.asarray(image)
    return torch.from_numpy(array.reshape(*array.shape[:2], -1).copy()).permute(2, 0, 1)


def rotation(angle):
    """Pillow's map from new places to old ones, for a rotation about the center."""
    (y, x), cosine, sine = (size / 2 for size in SIZE), math.cos(angle), math.sin(angle)
    return cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y


def count_different(one, other):
    return int((one != other).any(0).sum())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("operation", PILLOW)
def test_shades_and_colors_are_changed_as_by_pillow(operation, channels):
    images = make_images(channels=channels)
    before = images.clone()
    changed = operation(images)
    assert changed.dtype == torch.uint8
    assert torch.equal(images, before)
    for found, image in zip(changed, images, strict=True):
        assert torch.equal(found, from_pillow(PILLOW[operation](to_pillow(image))))


def test_dark_pixels_become_lighter():
    added, images = augment.solarize_add(make_images()).int(), make_images().int()
    assert torch.equal(added, torch.where(images < 128, torch.minimum(images + 110, torch.tensor(255)), images))


@pytest.mark.parametrize("operation", MATRICES)
def test_geometry_is_changed_as_by_pillow_one_way_or_the_other(operation):
    """Pillow rounds maps to multiples of 1/65,536, so that a pixel on the edge of two may be the other one."""
    torch.manual_seed(0)
    ways = Counter()
    for found, image in zip(operation(make_images(11)), make_images(11), strict=True):
        options = {
            sign: to_pillow(image).transform(
                SIZE[::-1], Image.Transform.AFFINE, MATRICES[operation](sign), fillcolor=(128,) * 3
            )
            for sign in (-1, 1)
        }
        different = {sign: count_different(found, from_pillow(option)) for sign, option in options.items()}
        assert min(different.values()) <= 4
        ways[min(different, key=different.get)] += max(different.values()) > 4
    assert len(ways) == 2


def test_cutout_is_a_gray_square_around_any_pixel():
    torch.manual_seed(0)
    images = torch.full((400, 3, 28, 28), 5, dtype=torch.uint8)
    cut = augment.cutout(images)[:, 0] == 128
    rows, columns = cut.any(2).sum(1), cut.any(1).sum(1)
    assert torch.equal(cut.sum((1, 2)), rows * columns)
    assert (int(rows.max()), int(columns.max())) == (10, 10)  # 80 of 224 pixels
    assert (int(rows.min()), int(columns.min())) == (5, 5)  # where the center is in the first row
    # A square has its center in each of 28 rows equally often; cut off at 8 of them.
    assert float((rows < 10).float().mean()) == pytest.approx(9 / 28, abs=0.1)


def test_every_image_gets_two_operations_each_equally_often(monkeypatch):
    """The operations are replaced by digits that they append to a number, in base 16."""
    monkeypatch.setattr(augment, "OPERATIONS", [lambda part, number=number: 16 * part + number for number in range(16)])
    torch.manual_seed(0)
    images = torch.zeros(3, 1, 1, 1, dtype=torch.int64)
    drawn = torch.stack([randaugment(images).flatten() for _ in range(800)])
    for image in range(3):
        for digit in (drawn[:, image] // 16, drawn[:, image] % 16):
            counts = torch.bincount(digit, minlength=16).double()
            assert len(counts) == 16
            # Chi-squared with 15 degrees of freedom stays below 50 but once in 90,000 times.
            assert float(((counts - 50) ** 2 / 50).sum()) < 50
    # In a whole batch, equally many images get each.
    batch = randaugment(torch.zeros(32, 1, 1, 1, dtype=torch.int64)).flatten()
    assert set(torch.bincount(batch % 16).tolist()) == {2}


def test_crops_are_resized_as_by_pillow():
    """Pillow rounds after each of the two directions, so that it may differ by 1."""
    images, (height, width) = make_images(), SIZE
    torch.manual_seed(0)
    indices = torch.randint(len(images), (40,))
    boxes = draw_boxes_to_crop(40, SIZE, 0.08)
    found = resize_boxes(images, indices, *boxes)
    for image, index, top, left, down, across in zip(found, indices, *(each.int() for each in boxes), strict=True):
        cropped = to_pillow(images[index]).crop((int(left), int(top), int(left + across), int(top + down)))
        expected = from_pillow(cropped.resize((width, height), Image.Resampling.BILINEAR))
        assert int((image.int() - expected.int()).abs().max()) <= 1
        part = images[index][None, :, top : top + down, left : left + across].double()
        exact = interpolate(part, SIZE, mode="bilinear")[0]
        assert float((image - exact).abs().max()) < 0.501


def test_boxes_have_the_areas_ratios_and_places_that_they_should():
    torch.manual_seed(0)
    top, left, down, across = draw_boxes_to_crop(4000, (200, 200), 0.25)
    for start, length in ((top, down), (left, across)):
        assert bool(((start >= 0) & (length >= 1) & (start + length <= 200)).all())
    # Where all boxes fit, which those below a half do: uniform areas and logarithms of ratios, and places.
    area, ratio = down * across / 200**2, across / down
    assert float(area.min()) > 0.24
    small = area < 0.5
    assert float(area[small].mean()) == pytest.approx(0.375, abs=0.01)
    assert float(ratio[small].log().mean()) == pytest.approx(0, abs=0.02)
    assert float(ratio.log().abs().max()) < math.log(4 / 3) + 0.03
    assert float((left / (200 - across))[small].mean()) == pytest.approx(0.5, abs=0.03)
    # No box fits into a strip: it is left whole.
    top, left, down, across = draw_boxes_to_crop(5, (4, 200), 0.9)
    assert (down.tolist(), across.tolist(), left.tolist()) == ([4.0] * 5, [200.0] * 5, [0.0] * 5)


@pytest.mark.parametrize("name", RESIZED)
def test_what_each_augmentation_does(name):
    images, indices = make_images(), torch.tensor([3, 3, 7, 0, 5] * 8)
    torch.manual_seed(0)
    cropped = resize_boxes(images, indices, *draw_boxes_to_crop(40, SIZE, 0.3))
    torch.manual_seed(0)
    found = augment_batch(images, indices, name, crop_scale=0.3)
    assert (found.dtype, found.shape) == (torch.uint8, (40, 3, *SIZE))
    same, flipped = ((found == each).flatten(1).all(1) for each in (cropped, cropped.flip(3)))
    if name == "resized-crop":
        assert bool(same.all())
    elif name == "resized-crop-flip":
        assert bool((same ^ flipped).all())
        assert 10 < int(flipped.sum()) < 30
    else:
        assert int((same | flipped).sum()) < 10
