from functools import partial

import pytest
import torch
from torch import nn

import effdeg
from effdeg._adapters.derivatives import double_differentiable, squared_norms, steepest_ascent, weight_scales
from tests.models import mlp
from tests.train.test_loops import Checkpointed

X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def jacobian_norms(model):
    return torch.stack([torch.autograd.functional.jacobian(model, x).square().sum() for x in X])


def test_all_outputs_in_turn_are_exact():
    model, inputs = mlp().double(), X.clone().requires_grad_()
    found = squared_norms(model(inputs), [inputs], projections=-1)
    torch.testing.assert_close(found, jacobian_norms(model))


def test_given_directions_are_normalized():
    model, inputs = mlp().double(), X.clone().requires_grad_()
    directions = torch.randn(5, 2, 4, dtype=torch.float64)
    one, other = (squared_norms(model(inputs), [inputs], projections=2, directions=by * directions) for by in (1, 7))
    torch.testing.assert_close(one, other)


def test_steepest_ascent_has_length_one_in_its_scale():
    gradients, scales = [torch.randn(3, 2), torch.randn(4)], [torch.rand(3, 2) + 0.1, None]
    plain = torch.cat([step.flatten() for step in steepest_ascent(gradients)])
    torch.testing.assert_close(plain, torch.cat([each.flatten() for each in gradients]) / _norm(gradients))
    first, second = steepest_ascent(gradients, scales)
    assert _norm([first / scales[0], second]) == pytest.approx(1, rel=1e-5)
    assert all(not step.any() for step in steepest_ascent([torch.zeros(3)]))
    assert steepest_ascent([]) == []


def _norm(tensors):
    return float(torch.cat([each.flatten() for each in tensors]).norm())


def test_only_weights_are_scaled():
    layer = nn.Linear(2, 3)
    weight, bias = weight_scales(layer.named_parameters(), eta=0.5)
    assert torch.equal(weight, layer.weight.detach().abs() + 0.5)
    assert bias is None


@pytest.mark.parametrize("recurrent", [False, True])
def test_cudnn_is_off_for_recurrent_models_only(recurrent):
    model = nn.LSTM(2, 2) if recurrent else nn.Linear(2, 2)
    before = torch.backends.cudnn.enabled
    with double_differentiable(model):
        assert torch.backends.cudnn.enabled is (before and not recurrent)
    assert torch.backends.cudnn.enabled is before


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_that_runs_without_gradients_is_refused(reentrant):
    # The first pass of reentrant checkpointing is without gradients; the other kind's is not.
    proxy = partial(effdeg.proxies.jacobian_norm, projections=-1, at="block.0")
    penalty = effdeg.baselines.JacobianPenalty(-1, at="block.0")
    model, plain = Checkpointed(reentrant).eval(), Checkpointed(None).eval()
    if reentrant:
        for call in (lambda: proxy(model, X), lambda: penalty(model, X)):
            with pytest.raises(ValueError, match=r"runs without gradients.*use_reentrant=False"):
                call()
    else:
        assert proxy(model, X).value == pytest.approx(proxy(plain, X).value, rel=1e-9)
        torch.testing.assert_close(penalty(model, X)[1], penalty(plain, X)[1])
        assert proxy(model, X).value > 0
