"""Crops, cuts and simple halves of images, and penalties along paths to ends made of them."""

from dataclasses import replace
from functools import partial
from itertools import product

import engine_runs
import jaxtyping
import pytest
import torch
from engine_runs import SIZE, assert_same_end, break_off, carry_out, make_picture_examples, make_pictures, run_mlp
from torch import nn
from torch.nn.functional import cross_entropy, one_hot, pad

from effdeg import Penalty
from effdeg_lab.engine import classify
from effdeg_lab.engine.examples import DeviceExamples, add_border, crop_batch, draw_cuts, find_simple_half, mix_cuts
from effdeg_lab.engine.regularizers import PenaltyToEnds
from effdeg_lab.models import make_model

IMAGES = torch.arange(5 * 3 * 6 * 6, dtype=torch.float32).view(5, 3, 6, 6) + 1
LABELS = torch.arange(12) % 2
# Black and white images: their mean is the probability of their class.
BLACK_AND_WHITE = LABELS.view(-1, 1, 1, 1).expand(-1, 3, *SIZE).float()
UPPER = (torch.arange(SIZE[0]) < SIZE[0] // 2).view(1, -1, 1).expand(1, *SIZE)
small = partial(engine_runs.small, limit=None, batch=50, epochs=3)


def list_crops(image, *, flips):
    """List all crops of an image of its own size from within a black border of 4, one by one."""
    height, width = image.shape[1:]
    large = pad(image, (4,) * 4)
    for top, left in product(range(9), repeat=2):
        crop = large[:, top : top + height, left : left + width]
        yield from (crop, crop.flip(2)) if flips else (crop,)


def test_all_crops_come_equally_often_and_half_are_flipped():
    batch = torch.tensor([3, 0, 3, 1, 2, 4, 4, 0])
    assert torch.equal(crop_batch(add_border(IMAGES, "none"), batch, "none"), IMAGES[batch])
    for image, index in zip(crop_batch(add_border(IMAGES, "crop"), batch, "crop"), batch, strict=True):
        assert any(torch.equal(image, crop) for crop in list_crops(IMAGES[index], flips=False))
    known = list(list_crops(IMAGES[0], flips=True))
    torch.manual_seed(0)
    drawn = crop_batch(add_border(IMAGES[:1], "crop-flip"), torch.zeros(4000, dtype=torch.int64), "crop-flip")
    counts = torch.stack([(drawn == crop).flatten(1).all(1).sum() for crop in known]).float()
    assert counts.sum() == 4000
    assert abs(float(counts[1::2].sum()) - 2000) < 4 * 4000**0.5 / 2
    # Chi-squared with 161 degrees of freedom stays below 240 but once in 20,000 times.
    assert float(((counts - 4000 / 162) ** 2 / (4000 / 162)).sum()) < 240


def test_cuts_are_straight_and_leave_a_quarter_at_least():
    torch.manual_seed(0)
    cuts, share = draw_cuts(2000, torch.zeros(5, 3, 16, 8))
    part = cuts[:, 0]
    across, first = (part == part[:, :, :1]).all((1, 2)), part[:, 0, 0]
    assert bool((across | (part == part[:, :1]).all((1, 2))).all())
    assert all(
        int((each[:, 0] if down else each[0]).diff().sum()) == 1 for each, down in zip(part, across, strict=True)
    )
    torch.testing.assert_close(share, cuts.float().mean((1, 2, 3)))
    assert 0.25 <= share.min() < share.max() <= 0.75
    # Uniform between those: mean 1/2, standard deviation 1/2 / sqrt(12), up to the rounding to pixels.
    assert (float(share.mean()), float(share.std())) == pytest.approx((0.5, 0.5 / 12**0.5), abs=0.02)
    for kind in (across & first, across & ~first, ~across & first, ~across & ~first):
        assert float(kind.float().mean()) == pytest.approx(0.25, abs=0.04)


def test_cutmix_joins_neighbors_and_mixes_their_labels_by_area():
    torch.manual_seed(0)
    labels = torch.tensor([0, 2, 1, 2, 0])
    images = torch.arange(1.0, 6.0).view(5, 1, 1, 1).expand(5, 3, 16, 8)
    mixed, soft = mix_cuts(images, labels, classes=3)
    for place in range(5):
        own, other = images[place, 0, 0, 0], images[place - 1, 0, 0, 0]
        assert set(mixed[place].unique().tolist()) <= {float(own), float(other)}
        share = float((mixed[place] == own).float().mean())
        expected = share * one_hot(labels[place], 3) + (1 - share) * one_hot(labels[place - 1], 3)
        torch.testing.assert_close(soft[place], expected)


@pytest.mark.parametrize(
    "turn",
    [
        lambda images: images,
        lambda images: images.mT.flip(-1),
        lambda images: torch.cat([images, images.flip(-2)], dim=-2),
    ],
    ids=["upper", "right", "none"],
)
def test_the_simple_half_is_found_wherever_it_is(turn, request):
    data = make_pictures()
    turned = replace(data, train_inputs=turn(data.train_inputs), test_inputs=turn(data.test_inputs), further_tests={})
    examples = DeviceExamples(turned, small(), torch.device("cpu"))
    if "none" in request.node.name:
        with pytest.raises(ValueError, match=r"there is no simple half.*upper 100.0%, lower 100.0%"):
            find_simple_half(examples)
    else:
        assert torch.equal(find_simple_half(examples), turn(UPPER))


class Brightness(nn.Module):
    """Predicts class 1 with the probability of the mean of some rows."""

    def __init__(self, rows=slice(None)):
        super().__init__()
        self.rows, self.seen = rows, []

    def forward(self, images):
        self.seen.append(len(images))
        mean = images[:, :, self.rows].mean((1, 2, 3))
        return torch.stack([1 - mean, mean], dim=1).log()


def make_penalty(ends, **settings):
    penalty = Penalty(anchor="labels" if ends == "cuts" else None, damping=1e-12, **settings)
    return PenaltyToEnds(ends, penalty, make_picture_examples())


def draw_pairs():
    """Draw the pairs as the penalties do: return which of them join two classes."""
    torch.manual_seed(0)
    first, second = Penalty().draw_pairs(BLACK_AND_WHITE).unbind(1)
    return (LABELS[first] != LABELS[second]).double()


def measure(ends, model, **settings):
    penalty = make_penalty(ends, **settings)
    torch.manual_seed(0)
    outputs, value = penalty(model, BLACK_AND_WHITE, LABELS)
    torch.testing.assert_close(outputs.exp(), one_hot(LABELS, 2).float())
    return float(value)


def test_degrees_along_paths_to_other_ends_in_closed_form():
    """A straight line from 0 to d has the effective degree d / 2."""
    apart, half = float(draw_pairs().mean()), SIZE[0] // 2
    model = Brightness()
    assert measure("simple-half", model) == pytest.approx(apart / 4, rel=1e-5)
    assert model.seen == [12 + 6 * 4]  # the batch and all points at once
    assert measure("simple-half", Brightness(slice(half))) == pytest.approx(apart / 2, rel=1e-5)
    assert measure("simple-half", Brightness(slice(half, None))) == pytest.approx(0, abs=1e-6)
    apart, share = draw_pairs(), draw_cuts(6, BLACK_AND_WHITE)[1]
    model = Brightness()
    assert measure("cuts", model) == pytest.approx(float((apart * share).mean()) / 2, rel=1e-5)
    assert model.seen == [12 + 6 * 2]
    apart, share = draw_pairs(), float(draw_cuts(1, BLACK_AND_WHITE)[1])
    model = Brightness()
    assert measure("balanced", model) == pytest.approx(max(share, 1 - share) * float(apart.mean()) / 2, rel=1e-5)
    assert model.seen == [12 + 2 * 6 * 4]


@pytest.mark.filterwarnings("ignore")
def test_compiled_in_one_graph_they_give_the_same(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the checks of `make test` cannot be compiled
    torch.manual_seed(0)
    model = make_model("mlp", shape=(3, *SIZE), classes=2)
    penalties = [make_penalty(ends, nodes=3, degree=2) for ends in ("cuts", "balanced")]

    def loss(x, y):
        found = [penalty(model, x, y) for penalty in penalties]
        return sum(cross_entropy(outputs, y) + 2.0 * value for outputs, value in found)

    torch.compile(make_picture_examples(augment="crop-flip").batch, fullgraph=True, backend="eager")(torch.arange(5))
    x, found = torch.rand_like(BLACK_AND_WHITE), []
    for run in (loss, torch.compile(loss, fullgraph=True, dynamic=False, backend="eager")):
        torch.manual_seed(1)
        model.zero_grad()
        value = run(x, LABELS)
        value.backward()
        found.append((value.detach(), [each.grad.clone() for each in model.parameters()]))
    torch.testing.assert_close(*found)


@pytest.fixture
def _pictures(monkeypatch):
    monkeypatch.setattr(classify, "load", lambda *_: make_pictures())


@pytest.mark.usefixtures("_pictures")
def test_further_tests_are_logged_unless_examples_are_held_out(tmp_path):
    done = carry_out(tmp_path, small(lr=5e-3))
    data = make_pictures()
    hidden = ((data.further_tests["dark"].float() / 255 - 0.4) / 0.2).flatten(1)
    right = float((run_mlp(done.weights, hidden).argmax(1) == data.test_labels).float().mean())
    assert done.summary["test_accuracy"] == 1.0
    assert done.summary["further_tests"] == {"dark": pytest.approx(right)}
    assert done.metrics[-1]["further_tests"] == done.summary["further_tests"]
    assert "further_tests" not in carry_out(tmp_path, small(held_out=100, epochs=1)).summary


@pytest.mark.usefixtures("_pictures")
@pytest.mark.parametrize(
    "settings",
    [
        {"regularizer": "ed", "ends": "cuts", "augment": "cutmix"},
        {"augment": "resized-crop-flip-randaugment", "model": "vit-mu2-mean-sincos", "dropout": 0.1},
    ],
    ids=["cuts", "randaugment"],
)
def test_interrupted_runs_on_images_end_the_same(tmp_path, settings):
    settings = small(**settings)
    whole = carry_out(tmp_path / "whole", settings)
    with break_off(11):
        carry_out(tmp_path / "killed", settings)
    assert_same_end(whole, carry_out(tmp_path / "killed", settings))
