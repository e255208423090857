"""Paths to ends of their own, for a network whose effective degree along them is known in closed form."""

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from effdeg import Penalty
from effdeg._models.paths import draw_pairs_of_batch
from effdeg.lab import models
from effdeg.lab.training.capture import CapturedStep
from effdeg.lab.training.cuts import Cuts
from effdeg.lab.training.ends import ENDS
from effdeg.lab.training.methods import made_method, on_examples
from effdeg.lab.training.step import Step
from tests.lab.training.pictures import SIZE, of_pictures
from tests.lab.training.runs import small
from tests.train.test_loops import run

NEW = ["simple-half", "cuts", "balanced"]
LABELS = torch.arange(12) % 2
# Black and white images: their mean is the probability of their class.
IMAGES = LABELS.view(-1, 1, 1, 1).expand(-1, 3, *SIZE).float()


class Brightness(nn.Module):
    """Says that an image is of class 1 with the probability of its mean."""

    def forward(self, images):
        mean = images.mean((1, 2, 3))
        return torch.stack([1 - mean, mean], dim=1).log()


class Upper(nn.Module):
    """Looks at the upper half, or at the lower half, alone."""

    def __init__(self, rows):
        super().__init__()
        self.rows, self.brightness = rows, Brightness()

    def forward(self, images):
        return self.brightness(images[:, :, self.rows])


def made(ends, **settings):
    return ENDS[ends](Penalty(anchor_labels=ends == "cuts", damping=1e-12, **settings), of_pictures())


def drawn(pairs=6):
    """Draw the pairs as the penalties do: which of them join two classes."""
    torch.manual_seed(0)
    first, second = draw_pairs_of_batch(12, pairs, device=torch.device("cpu"), generator=None).unbind(1)
    return (LABELS[first] != LABELS[second]).double()


def degree(ends, model, **settings):
    penalty = made(ends, **settings)
    torch.manual_seed(0)
    outputs, value = penalty(model, IMAGES, LABELS)
    torch.testing.assert_close(outputs.exp(), one_hot(LABELS, 2).float())
    return float(value)


def test_paths_that_vary_the_simple_half_move_brightness_by_half_of_it():
    # A straight line from 0 to d has the effective degree d / 2.
    assert degree("simple-half", Brightness()) == pytest.approx(float(drawn().mean()) / 4, rel=1e-5)
    assert degree("simple-half", Upper(slice(SIZE[0] // 2))) == pytest.approx(float(drawn().mean()) / 2, rel=1e-5)
    assert degree("simple-half", Upper(slice(SIZE[0] // 2, None))) == pytest.approx(0, abs=1e-6)


def test_cut_ends_have_the_degree_of_a_straight_line_to_the_mixed_label():
    apart = drawn()
    expected = float((apart * Cuts.draw(6, IMAGES).share).mean()) / 2
    assert degree("cuts", Brightness()) == pytest.approx(expected, rel=1e-5)


def test_cut_ends_are_anchored_by_labels_whatever_the_network_says_there():
    class Constant(nn.Module):
        def forward(self, images):
            return images.new_zeros(len(images), 2)

    penalty = made("cuts", nodes=3, degree=2, sampling="chebyshev")
    apart = drawn()
    share = Cuts.draw(6, IMAGES).share
    torch.manual_seed(0)
    _, value = penalty(Constant(), IMAGES, LABELS)
    # The class has 1 at one outer node, 1/2 in the middle, and at the other outer node 1 less the share that is of the
    # other class: through (a, 1/2, b) at -s, 0 and s goes the parabola with T1's coefficient (b - a) / 2s and T2's
    # (a + b - 1) / 4s². The nodes are Chebyshev's, s = cos(pi / 6).
    other, s = 1 - apart * share, 0.75**0.5
    expected = (1 - other).abs() / (2 * s) + 2 * other.abs() / (4 * s**2)
    assert float(value) == pytest.approx(float(expected.mean()), rel=1e-5)


def test_balanced_holds_back_the_part_that_matters_more():
    apart = drawn()
    share = float(Cuts.draw(1, IMAGES).share)
    expected = max(share, 1 - share) * float(apart.mean()) / 2
    assert degree("balanced", Brightness()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("ends", "points"), [("simple-half", 6 * 4), ("cuts", 6 * 2), ("balanced", 2 * 6 * 4)])
def test_the_batch_and_all_points_are_run_at_once(ends, points):
    rows = []

    class Counting(Brightness):
        def forward(self, images):
            rows.append(len(images))
            return super().forward(images)

    degree(ends, Counting())
    assert rows == [12 + points]


PROGRAM = """
import torch
from torch.nn.functional import cross_entropy
from effdeg.lab import models
from tests.lab.training.test_ends import IMAGES, LABELS, NEW, SIZE, made

torch.manual_seed(0)
model, penalties = models.make("mlp", shape=(3, *SIZE), classes=2), [made(ends, nodes=3, degree=2) for ends in NEW]

def loss(x, y):
    found = [penalty(model, x, y) for penalty in penalties]
    return sum(cross_entropy(outputs, y) + 2.0 * value for outputs, value in found)

x = torch.rand_like(IMAGES)
found = []
for run in (loss, torch.compile(loss, fullgraph=True, dynamic=False, backend="eager")):
    torch.manual_seed(1)
    model.zero_grad()
    value = run(x, LABELS)
    value.backward()
    found.append((value.detach(), [each.grad.clone() for each in model.parameters()]))
torch.testing.assert_close(*found)
print("same")
"""


def test_compiled_in_one_graph_they_give_the_same():
    assert run(["-c", PROGRAM]).split() == ["same"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ends": "cuts", "anchor_labels": False}, "ends=cuts mixes the labels .* set anchor_labels=true"),
        ({"ends": "balanced"}, "ends=balanced joins images that have no labels: set anchor_labels=false"),
        ({"ends": "simple-half", "anchor_labels": False, "at": "layers.0"}, "at=none"),
        ({"ends": "cuts", "method": "jacobian"}, "paths of method=ed"),
        ({"augment": "cutmix", "method": "mixup"}, "augment=cutmix and method=mixup both mix the batch"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        made_method(small(**{"method": "ed", **settings}))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("ends", NEW)
@pytest.mark.filterwarnings("ignore")  # of which torch's compiler has many on a GPU
def test_a_captured_step_has_the_penalty_of_the_step(ends, compiled):
    sums = []
    for captured in (True, False):
        settings = small(method="ed", limit=None, ends=ends, anchor_labels=ends == "cuts", compile=compiled)
        examples = of_pictures("cuda")
        torch.manual_seed(0)
        model = models.make("mlp", shape=(3, *SIZE), classes=2).cuda()
        step = Step(model, on_examples(made_method(settings), settings, examples), examples, settings, batch=20)
        step.compile(penalized=True)
        if captured:
            step.capture(penalized=True)
            assert isinstance(step._steps[True], CapturedStep)
        else:
            step._steps[True] = lambda step=step: step._run(True)
        step.penalties.zero_()
        for number in range(200):
            step(torch.arange(number, number + 20) % 400, rate=0.0, weight=1.0)
        sums.append(float(step.penalties))
    # The draws of a graph are not those of the same step without it, so only their means are alike.
    assert sums[0] == pytest.approx(sums[1], rel=0.1)
