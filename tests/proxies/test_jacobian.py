"""The Jacobian norm against torch.func.jacrev."""

import pytest
import torch
from torch import nn

from effdeg.proxies import NotApplicable, jacobian_norm
from tests.batches import X, tokens
from tests.models import Tokens, TwoInputs, mlp


def root_mean_square(function, x):
    jacobians = torch.stack([torch.func.jacrev(function)(row) for row in x])
    return float(jacobians.detach().flatten(1).square().sum(1).mean().sqrt())


def test_of_a_small_network():
    model = mlp().double()
    assert jacobian_norm(model, X, projections=-1).value == pytest.approx(root_mean_square(model, X), rel=1e-10)


def test_random_projections_are_right_on_average():
    model = mlp().double()
    many = X.repeat(400, 1)
    found = jacobian_norm(model, many, batch_size=999)
    assert abs(found.value - root_mean_square(model, X)) < 4 * found.stderr
    assert found.stderr < 0.03 * found.value
    more = jacobian_norm(model, many, projections=4)
    assert more.stderr < found.stderr
    assert jacobian_norm(model, many, seed=1).value != found.value


def test_of_any_outputs_and_inputs():
    images = torch.randn(5, 1, 6, 6, dtype=torch.float64)
    model = nn.Conv2d(1, 2, 3).double()
    assert jacobian_norm(model, images, projections=-1).value == pytest.approx(root_mean_square(model, images))
    two = TwoInputs().double()
    left, right = torch.randn(2, 7, 3, dtype=torch.float64)
    joined = torch.cat([left, right], dim=1)
    expected = root_mean_square(lambda row: two(row[:3], row[3:]), joined)
    found = jacobian_norm(two, ((left, right), torch.zeros(7)), projections=-1)
    assert found.value == pytest.approx(expected)


@pytest.mark.parametrize("form", [dict, lambda **given: (tuple(given.values()), None)], ids=["dict", "tuple"])
def test_a_mask_is_no_input(form):
    inner = mlp().double()

    def model(x, mask):
        return inner(x * mask)

    expected, found = (jacobian_norm(model, form(x=X, mask=mask)).value for mask in (X > 0, (X > 0).double()))
    assert found == expected
    assert jacobian_norm(lambda mask: inner(mask), {"mask": X}).value == jacobian_norm(inner, X).value


def test_at_a_layer():
    model, batch = Tokens().double(), tokens()

    def rest(embedded, mask):
        weight = mask[:, None].double()
        hidden = torch.tanh(model.mix(embedded)) * weight
        return model.head(hidden.sum(0) / weight.sum(0))

    squares = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        jacobian = torch.func.jacrev(rest)(model.embed(ids).detach(), mask)
        squares.append(float(jacobian.detach().square().sum()))
    found = jacobian_norm(model, batch, at="embed", projections=-1)
    assert found.value == pytest.approx((sum(squares) / len(squares)) ** 0.5)
    with pytest.raises(NotApplicable, match="at='embed'"):
        jacobian_norm(model, batch)


def test_a_layer_that_works_in_place_behind_the_inputs():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)).double()
    plain = nn.Sequential(model[0], nn.ReLU(), model[2])
    for at in (None, "0"):
        found = jacobian_norm(model, X, at=at, projections=-1).value
        assert found == pytest.approx(jacobian_norm(plain, X, at=at, projections=-1).value)
