"""CutMix, against loops over images and pixels."""

import pytest
import torch

from effdeg.baselines import cutmix
from effdeg.baselines._mixup import draw_shares
from tests.batches import Y

IMAGES = torch.randn(12, 3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")


def drawn(images, alpha=1.0, seed=3):
    """Draw what the next call after the same seed draws: λ, the centers of the boxes, and the partners."""
    torch.manual_seed(seed)
    shares = draw_shares(len(images), alpha, device=CPU, generator=None)
    centers = torch.rand(2, len(images), 1, dtype=torch.float64)
    partners = torch.randperm(len(images))
    torch.manual_seed(seed)
    return shares.tolist(), centers[..., 0].T.tolist(), partners.tolist()


def mix_slowly(images, labels, classes, shares, centers, partners):
    *_, height, width = images.shape
    mixed, soft = images.clone(), torch.zeros(len(images), classes, dtype=torch.float64)
    for number, partner in enumerate(partners):
        side = (1 - shares[number]) ** 0.5
        middle_row, middle_column = centers[number][0] * height, centers[number][1] * width
        replaced = 0
        for row in range(height):
            for column in range(width):
                inside = abs(row + 0.5 - middle_row) < side * height / 2
                if inside and abs(column + 0.5 - middle_column) < side * width / 2:
                    mixed[number, ..., row, column] = images[partner, ..., row, column]
                    replaced += 1
        area = replaced / (height * width)
        soft[number, labels[number]] += 1 - area
        soft[number, labels[partner]] += area
    return mixed, soft


@pytest.mark.parametrize("alpha", [0.1, 5.0])
@pytest.mark.parametrize("shape", [(12, 3, 7, 5), (36, 7, 5), (12, 3, 1, 7, 5)], ids=["images", "gray", "volumes"])
def test_pixel_by_pixel(alpha, shape):
    images = IMAGES.view(shape)[:12]
    for seed in range(3):
        expected = mix_slowly(images, Y, 4, *drawn(images, alpha, seed))
        mixed, soft = cutmix(images, Y, alpha=alpha, classes=4)
        assert torch.equal(mixed, expected[0])
        torch.testing.assert_close(soft, expected[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_pixels_keep_their_type_and_nothing_is_changed_in_place(dtype):
    images = (IMAGES * 20 + 100).to(dtype)
    before, labels = images.clone(), Y.clone()
    mixed, soft = cutmix(images, Y, classes=4)
    assert (mixed.dtype, soft.dtype) == (dtype, torch.float32)
    torch.testing.assert_close(soft.sum(1), torch.ones(12))
    assert torch.equal(images, before)
    assert torch.equal(Y, labels)


def test_targets_are_mixed_and_gradients_flow():
    leaf, targets = IMAGES.clone().requires_grad_(), torch.ones(12, 2, requires_grad=True)
    mixed, soft = cutmix(leaf, targets)
    (mixed.sum() + soft.sum()).backward()
    # Each pixel is taken from one image, at times from two and at times not at all.
    assert set(leaf.grad.unique().tolist()) <= {0.0, 1.0, 2.0}
    assert leaf.grad.sum() == leaf.numel()
    torch.testing.assert_close(targets.grad.sum(), torch.tensor(24.0))


@pytest.mark.parametrize(
    ("arguments", "settings", "kind", "message"),
    [
        ((IMAGES.permute(0, 2, 3, 1), Y), {"classes": 4}, TypeError, "have their channels last"),
        ((IMAGES.flatten(1), Y), {"classes": 4}, ValueError, r"x of shape \(12, 105\) has no height and width"),
        (((IMAGES,), Y), {"classes": 4}, TypeError, "x is tuple; cutmix needs a tensor of images"),
        ((IMAGES[:0], Y[:0]), {"classes": 4}, TypeError, "x holds no examples"),
    ],
)
def test_bad_input(arguments, settings, kind, message):
    with pytest.raises(kind, match=message):
        cutmix(*arguments, **settings)
