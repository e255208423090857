import torch

from effdeg.lab.training.cuts import Cuts, cut_mixed

IMAGES = torch.zeros(5, 3, 16, 8)


def drawn(count=2000):
    torch.manual_seed(0)
    return Cuts.draw(count, IMAGES)


def test_a_part_is_on_one_side_of_a_line_across_or_upright():
    cuts = drawn()
    assert cuts.part.shape == (2000, 1, 16, 8)
    for part in cuts.part[:200, 0]:
        across = bool((part == part[:, :1]).all())
        line = part[:, 0] if across else part[0]
        assert across or bool((part == part[:1]).all())
        assert int(line.diff().sum()) == 1


def test_shares_are_those_of_the_pixels_between_a_quarter_and_three_quarters():
    cuts = drawn()
    torch.testing.assert_close(cuts.share, cuts.part.float().mean((1, 2, 3)))
    assert cuts.share.min() >= 0.25
    assert cuts.share.max() <= 0.75
    # Uniform between those: mean 1/2, standard deviation 1/2 / sqrt(12), up to the rounding to pixels.
    assert abs(float(cuts.share.mean()) - 0.5) < 0.02
    assert abs(float(cuts.share.std()) - 0.5 / 12**0.5) < 0.02


def test_both_kinds_of_lines_and_both_sides_are_as_frequent():
    part = drawn().part[:, 0]
    across = (part == part[:, :, :1]).all((1, 2))
    first = part[:, 0, 0]
    for kind in (across & first, across & ~first, ~across & first, ~across & ~first):
        assert abs(float(kind.float().mean()) - 0.25) < 0.04


def test_cutmix_joins_neighbours_and_mixes_their_labels_by_area():
    torch.manual_seed(0)
    labels = torch.tensor([0, 2, 1, 2, 0])
    images = torch.arange(1.0, 6.0).view(5, 1, 1, 1).expand(5, 3, 16, 8)
    mixed, soft = cut_mixed(images, labels, classes=3)
    assert soft.shape == (5, 3)
    for place in range(5):
        own, other = images[place, 0, 0, 0], images[place - 1, 0, 0, 0]
        assert set(mixed[place].unique().tolist()) == {float(own), float(other)}
        share = float((mixed[place] == own).float().mean())
        expected = torch.zeros(3)
        expected[labels[place]] += share
        expected[labels[place - 1]] += 1 - share
        torch.testing.assert_close(soft[place], expected)
