import pytest
import torch

from effdeg.lab.training.augmentation import augmented, bordered

IMAGES = torch.arange(5 * 3 * 6 * 6, dtype=torch.float32).view(5, 3, 6, 6) + 1
BATCH = torch.tensor([3, 0, 3, 1, 2, 4, 4, 0])


def crops(image, *, flips):
    """All crops of an image of its own size from within a black border of 4, one by one."""
    height, width = image.shape[1:]
    large = torch.zeros(image.shape[0], height + 8, width + 8)
    large[:, 4:-4, 4:-4] = image
    for top in range(9):
        for left in range(9):
            crop = large[:, top : top + height, left : left + width]
            yield crop
            if flips:
                yield crop.flip(2)


@pytest.mark.parametrize("augment", ["crop", "crop-flip"])
def test_every_image_is_one_of_its_crops(augment):
    batch = augmented(bordered(IMAGES, augment), BATCH, augment)
    for picked, index in zip(batch, BATCH, strict=True):
        assert any(torch.equal(picked, crop) for crop in crops(IMAGES[index], flips=augment == "crop-flip"))


def test_all_crops_come_equally_often_and_half_are_flipped():
    image = IMAGES[:1]
    known = list(crops(image[0], flips=True))
    torch.manual_seed(0)
    drawn = augmented(bordered(image, "crop-flip"), torch.zeros(4000, dtype=torch.int64), "crop-flip")
    counts = torch.stack([(drawn == crop).flatten(1).all(1).sum() for crop in known]).float()
    assert counts.sum() == 4000
    flipped = float(counts[1::2].sum())
    assert abs(flipped - 2000) < 4 * 4000**0.5 / 2
    # Chi-squared with 161 degrees of freedom stays below 240 but once in 20,000 times.
    assert float(((counts - 4000 / 162) ** 2 / (4000 / 162)).sum()) < 240


def test_none_picks_the_images_as_they_are():
    assert torch.equal(augmented(bordered(IMAGES, "none"), BATCH, "none"), IMAGES[BATCH])
