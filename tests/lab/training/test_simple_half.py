from dataclasses import replace

import pytest
import torch

from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.simple_half import half_swapped, simple_half
from tests.lab.training.pictures import SIZE, of_pictures, pictures
from tests.lab.training.runs import small

UPPER = (torch.arange(SIZE[0]) < SIZE[0] // 2).view(1, -1, 1).expand(1, *SIZE)


def on(turn):
    """The examples with their images turned, so that another half is the simple one."""
    data = pictures()
    turned = replace(data, train_inputs=turn(data.train_inputs), test_inputs=turn(data.test_inputs), further_tests={})
    return DeviceExamples(turned, small(limit=None), torch.device("cpu"))


@pytest.mark.parametrize(
    "turn",
    [
        lambda images: images,
        lambda images: images.flip(-2),
        lambda images: images.mT,
        lambda images: images.mT.flip(-1),
    ],
    ids=["upper", "lower", "left", "right"],
)
def test_the_simple_half_is_found_wherever_it_is(turn):
    assert torch.equal(simple_half(on(turn)), turn(UPPER))


def test_where_both_halves_are_as_simple_there_is_none():
    def doubled(images):
        return torch.cat([images, images.flip(-2)], dim=2)

    with pytest.raises(ValueError, match=r"upper 100.0%, lower 100.0%, .*: there is no simple half"):
        simple_half(on(doubled))


def test_every_second_image_is_given_the_half_of_the_one_before():
    torch.manual_seed(0)
    images = torch.arange(400.0).view(400, 1, 1, 1).expand(400, 3, *SIZE)
    labels = torch.arange(400)
    swapped, same = half_swapped(images, labels, half=UPPER)
    assert torch.equal(same, labels)
    assert torch.equal(swapped[:, :, SIZE[0] // 2 :], images[:, :, SIZE[0] // 2 :])
    upper = swapped[:, 0, 0, 0]
    assert all(float(each) in {float(place), float((place - 1) % 400)} for place, each in enumerate(upper))
    assert abs(float((upper != images[:, 0, 0, 0]).float().mean()) - 0.5) < 0.1


def test_the_same_half_is_found_by_every_run_whatever_is_drawn():
    found = []
    for seed in (0, 1):
        examples = of_pictures()
        torch.manual_seed(seed)
        found.append(simple_half(examples))
    assert torch.equal(*found)
