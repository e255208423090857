from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import effdeg
from effdeg import Penalty
from tests.batches import X, Y, seeded
from tests.models import Counted, Pair, TwoInputs, mlp


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"anchor": "labels"}, 12 + 6 * 2),
        ({}, 12 + 6 * 4),
        ({"sampling": "uniform"}, 12 + 6 * 2),
        ({"pairs": 1.0}, 12 + 12 * 4),
        ({"pairs": 2}, 12 + 2 * 4),
        ({"pairs": 1 / 12}, 12 + 4),
        ({"pairs": 1 / 3, "anchor": "labels", "nodes": 15, "degree": 7}, 12 + 4 * 13),
    ],
)
def test_one_forward_runs_the_batch_and_no_more_points_than_it_must(settings, rows):
    model = Counted(mlp().double())
    Penalty(**settings)(model, X, Y)
    assert model.rows == rows


@pytest.mark.parametrize("settings", [{}, {"pairs": 3}, {"pairs": 1.0, "anchor": "labels"}])
def test_pairs_can_be_drawn_for_ends_of_ones_own(settings):
    penalty = Penalty(**settings)
    assert torch.equal(seeded(penalty.draw_pairs, {"x": X}), seeded(penalty.points, X, Y).pairs)
    own = [Penalty(generator=torch.Generator().manual_seed(seed)).draw_pairs(X) for seed in (0, 0, 1)]
    assert torch.equal(own[0], own[1])
    assert not torch.equal(own[0], own[2])
    with pytest.raises(ValueError, match="rounds to none"):
        Penalty(pairs=0.01).draw_pairs(X)


class Returning(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.model, self.wrap = mlp().double(), wrap

    def forward(self, x):
        return self.wrap(self.model(x))


STRUCTURES = {
    "tuple": lambda logits: (logits, logits.sum(1)),
    "dict": lambda logits: {"features": logits * 2, "logits": logits},
    "nested": lambda logits: {"logits": logits, "hidden": (logits * 3, {"deep": logits[:, :1]})},
    "with a shared scalar": lambda logits: {"logits": logits, "temperature": torch.tensor(2.0)},
    "dataclass": lambda logits: Pair(logits, -logits),
}


@pytest.mark.parametrize("wrap", STRUCTURES.values(), ids=STRUCTURES)
def test_outputs_are_what_the_model_returns_for_the_batch(wrap):
    model = Returning(wrap)
    several = pytest.warns(UserWarning, match=r"left is used, not right; to choose another one, write output=lambda")
    with several if wrap is STRUCTURES["dataclass"] else nullcontext():
        outputs, degree = seeded(Penalty(), model, X)
    assert degree == seeded(Penalty(), model.model, X)[1]
    expected = model(X)
    assert type(outputs) is type(expected)
    flat, flat_expected = ([leaf for _, leaf in effdeg._utils.tree.named_leaves(tree)] for tree in (outputs, expected))
    for leaf, other in zip(flat, flat_expected, strict=True):
        if isinstance(leaf, torch.Tensor):
            torch.testing.assert_close(leaf, other)
        else:
            assert leaf is other is None


def test_inputs_may_be_tuples_mappings_and_keywords():
    model = TwoInputs().double()
    left, right = X[:, :3], X[:, 3:]
    degrees = []
    for call in (
        lambda p: p(model, (left, right)),
        lambda p: p(model, {"left": left, "right": right}),
        lambda p: p(model, left, right=right),
        lambda p: p(model, Pair(left, right)),
        lambda p: p(lambda both: model(both[:, :3], both[:, 3:]), X),
    ):
        outputs, degree = seeded(call, Penalty())
        torch.testing.assert_close(outputs, model(left, right))
        degrees.append(degree)
    for degree in degrees[1:]:
        torch.testing.assert_close(degree, degrees[0])


def test_placeholders_have_the_masks_of_both_ends_and_else_what_the_first_has():
    seen, ids = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    x = {"ids": ids, "attention_mask": seen, "nested": {"pad_mask": 1.0 - seen, "masked": {"types": seen}}}
    penalty, pairs = Penalty(at="embed", anchor="labels", nodes=3, degree=2), torch.tensor([[1, 0], [1, 1]])
    made = penalty.points(x, Y[:2], pairs=pairs).inputs
    assert torch.equal(made["attention_mask"], seen)
    assert torch.equal(made["nested"]["pad_mask"], 1.0 - seen)
    assert torch.equal(made["nested"]["masked"]["types"], seen[[1, 1]])
    assert torch.equal(made["ids"], ids[[1, 1]])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss, logits: (logits, loss),
        lambda loss, logits: {"loss": loss, "logits": logits},
        lambda loss, logits: (loss.view(1), logits),
    ],
    ids=["tuple", "dict", "of one row"],
)
def test_a_models_own_loss_is_not_taken_for_the_batchs(wrap):
    model = mlp().double()

    def with_loss(x, targets):
        logits = model(x)
        return wrap(cross_entropy(logits, targets), logits)

    with pytest.raises(ValueError, match="a loss of its own"):
        Penalty(at=model[0])(with_loss, (X, Y))


def test_what_is_given_twice_is_refused():
    with pytest.raises(TypeError, match="s: given both"):
        Penalty()(lambda x, s: x * s, {"x": X, "s": 2.0}, s=3.0)
