import pytest
import torch

from effdeg import changes
from effdeg._adapters.partners import name_change

IMAGES = torch.rand(6, 3, 8, 10, generator=torch.Generator().manual_seed(0))
ON_IMAGES = [changes.mirror, changes.shift(2), changes.crop(0.5), changes.noise(0.1)]


@pytest.mark.parametrize("change", ON_IMAGES, ids=name_change)
def test_images_keep_their_shape_and_gradients_flow(change):
    torch.manual_seed(0)
    changed = change(IMAGES)
    assert changed.shape == IMAGES.shape
    assert not torch.equal(changed, IMAGES)
    torch.manual_seed(0)
    assert torch.equal(change({"pixel_values": IMAGES, "mask": torch.ones(6, 2)[:, :1] > 0})["pixel_values"], changed)
    leaf = IMAGES.clone().requires_grad_()
    change(leaf).sum().backward()
    assert leaf.grad.abs().sum() > 0


def test_a_shift_is_a_slice_of_the_image_and_differs_by_example():
    torch.manual_seed(0)
    changed = changes.shift(2)(IMAGES)
    offsets = set()
    for image, moved in zip(IMAGES, changed, strict=True):
        found = [
            (dy, dx)
            for dy in range(-2, 3)
            for dx in range(-2, 3)
            if torch.equal(moved[:, 2:-2, 2:-2], image[:, 2 + dy : 6 + dy, 2 + dx : 8 + dx])
        ]
        assert len(found) == 1
        offsets.add(found[0])
    assert len(offsets) > 1


def test_a_crop_of_a_slope_is_a_gentler_slope():
    slope = torch.linspace(-1, 1, 64).expand(20, 1, 64, 64)
    torch.manual_seed(0)
    rises = changes.crop(0.25)(slope).diff(dim=-1)[:, 0, 32, 32] / slope.diff(dim=-1)[:, 0, 32, 32]
    assert 0.5 <= rises.min() < rises.max() <= 1.0


@pytest.mark.parametrize("change", [changes.mirror, changes.shift(2), changes.crop(0.5)])
def test_frames_of_a_video_change_alike(change):
    torch.manual_seed(0)
    changed = change(IMAGES[:, :, None].expand(-1, -1, 6, -1, -1))
    torch.manual_seed(0)
    torch.testing.assert_close(changed, change(IMAGES)[:, :, None].expand_as(changed))


def test_dropped_tokens_are_neither_first_nor_padding():
    ids, mask = torch.arange(1, 21).repeat(50, 1), torch.ones(50, 20, dtype=torch.long)
    mask[:, 10:] = 0
    dropped = changes.drop_tokens(0.3, 99)({"input_ids": ids, "attention_mask": mask})
    changed = dropped["input_ids"] == 99
    assert changed.sum(1).tolist() == [3] * 50
    assert not changed[:, 0].any()
    assert not changed[:, 10:].any()
    assert changed[:, 1:10].any(0).all()
    assert dropped["attention_mask"] is mask


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: changes.shift(0), "pixels=0 is too small"),
        (lambda: changes.crop(1.0), "scale=1 must lie between 0 and 1"),
        (lambda: changes.noise(-1), "deviation=-1 must be positive"),
        (lambda: changes.compose(changes.mirror, "crop"), "functions of a batch"),
        (lambda: changes.mirror(torch.zeros(5, 8)), "expected one floating-point tensor of images"),
        (lambda: changes.mirror(IMAGES.permute(0, 2, 3, 1)), "have their channels last"),
        (lambda: changes.mirror((IMAGES, IMAGES)), "expected one floating-point tensor of images"),
        (lambda: changes.drop_tokens(0.1)(IMAGES), "drop_tokens takes token ids"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    "change",
    [*ON_IMAGES, changes.drop_tokens(0.1, 103), changes.compose(changes.mirror, changes.shift(2), changes.noise(1e-5))],
    ids=name_change,
)
def test_a_change_is_found_by_its_name(change):
    found = changes.parse(name_change(change))
    assert name_change(found) == name_change(change)
    examples = torch.arange(60).view(3, 20) if "tokens" in name_change(change) else IMAGES
    results = []
    for each in (change, found):
        torch.manual_seed(0)
        results.append(each(examples))
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flip", r"'flip' is not a change. Choose from: mirror, shift\(4\), crop\(0.5\), noise\(0.1\), drop_tokens"),
        ("mirror+", "'mirror\\+': '' is not a change"),
        ("__import__('os')", "is not a change"),
        ("mirror(3)", r"'mirror\(3\)' is not of the form mirror\."),
        ("shift", r"'shift' is not of the form shift\(4\)"),
        ("shift(1, 2)", r"is not of the form shift\(4\)"),
        ("shift(1_0)", r"is not of the form shift\(4\)"),  # Python reads 1_0 as 10
        ("shift(0)", "at least 1"),
    ],
)
def test_texts_that_are_no_changes(text, message):
    with pytest.raises(ValueError, match=message):
        changes.parse(text)


@pytest.mark.parametrize("left", [False, True])
def test_short_texts_keep_their_first_token_and_their_padding(left):
    ids, lengths = torch.arange(1, 8).repeat(4, 1), torch.tensor([[1], [2], [3], [7]])
    mask = (torch.arange(7) < lengths).long()
    mask, first = (mask.flip(1), 7 - lengths) if left else (mask, 0 * lengths)
    dropped = changes.drop_tokens(0.9)({"input_ids": ids, "attention_mask": mask})["input_ids"] == 0
    assert not dropped.gather(1, first).any()
    assert not (dropped & (mask == 0)).any()
    assert dropped.sum(1).tolist() == [0, 1, 2, 6]


def test_a_mask_that_is_added_to_scores_has_no_tokens_to_drop():
    ids = torch.arange(1, 8).repeat(4, 1)
    with pytest.raises(ValueError, match="attention_mask of 0 and 1, not one that is added to scores"):
        changes.drop_tokens(0.5)({"input_ids": ids, "attention_mask": -1e9 * (ids > 4)})
