import copy

import numpy as np
import pytest
import torch
from torch import nn

from effdeg import Penalty
from tests.batches import X, same_draw, seeded, tokens
from tests.models import Tokens, mlp, with_batchnorm
from tests.oracles import reference
from tests.properties import assert_same_gradients


def test_the_gradient_through_a_layer_reaches_the_layers_before_it():
    """Against the same paths made by hand from the features of the batch."""
    model = mlp().double()
    penalty = Penalty(at="1")
    points = same_draw(penalty, X)
    penalty(model, X)[1].backward()
    joined = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    hidden = model[:2](X)
    penalty.degree(model[2](points.interpolate(hidden)), points).backward()
    for parameter, expected in zip(model.parameters(), joined, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_layers_of_wrapped_models_go_by_their_own_names():
    model = mlp().double()
    wrapped = nn.DataParallel(model) if not torch.cuda.is_available() else model
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for each in (model, wrapped, averaged, torch.compile(model, backend="eager")):
        for name in ("1", "module.1"):
            outputs, degree = seeded(Penalty(at=name), each, X)
            torch.testing.assert_close(outputs, model(X))
            assert degree == seeded(Penalty(at="1"), model, X)[1]


def test_joint_is_one_batch():
    model, reference_model, penalty = with_batchnorm(), with_batchnorm(), Penalty()
    points = same_draw(penalty, X)
    outputs, _ = penalty(model, X)
    torch.testing.assert_close(outputs, reference_model(points.append_to(X))[:12])
    torch.testing.assert_close(model[1].running_mean, reference_model[1].running_mean)


def test_frozen_leaves_the_batch_as_it_would_be_alone():
    model, alone, penalty = with_batchnorm(), with_batchnorm(), Penalty(batchnorm="frozen")
    points = same_draw(Penalty(), X)
    outputs, degree = penalty(model, X)
    assert torch.equal(outputs, alone(X))
    for buffer, expected in zip(model.buffers(), alone.buffers(), strict=True):
        assert torch.equal(buffer, expected)
    # The points by hand, statistics and their gradients included.
    hidden = alone[0](X)
    mean, variance = hidden.mean(0), hidden.var(0, correction=0)
    normalized = (alone[0](points.inputs) - mean) / (variance + alone[1].eps).sqrt() * alone[1].weight + alone[1].bias
    expected = penalty.degree(alone[3](alone[2](normalized)), points)
    assert_same_gradients(degree, expected, model, alone)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("at", ["1", "2"])
def test_before_the_layer_of_the_paths_only_the_batch_is_counted(at):
    model, alone = with_batchnorm(), with_batchnorm()
    outputs, _ = Penalty(at=at)(model, X)
    torch.testing.assert_close(outputs, alone(X))
    torch.testing.assert_close(model[1].running_var, alone[1].running_var)
    # Behind it they share the statistics.
    behind = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 4)).double()
    plain = copy.deepcopy(behind)
    Penalty(at="1")(behind, X)
    plain(X)
    assert not torch.allclose(behind[2].running_var, plain[2].running_var)


def test_a_bound_method_is_run_with_its_modules_batchnorm():
    model, alone = with_batchnorm(), with_batchnorm()
    outputs, _ = Penalty(batchnorm="frozen")(model.forward, X)
    assert torch.equal(outputs, alone(X))
    with pytest.raises(TypeError, match="the model is a plain function"):
        Penalty(batchnorm="frozen")(lambda x: model(x), X)


def test_only_what_is_split_must_be_torchs_own_batchnorm():
    class Activated(nn.BatchNorm1d):
        def forward(self, x):
            return super().forward(x).relu()

    model = nn.Sequential(nn.Linear(6, 6), Activated(6), nn.Linear(6, 4)).double()
    Penalty()(model, X)
    Penalty(at="0")(model, X)
    for settings in ({"at": "2"}, {"batchnorm": "frozen"}):
        with pytest.raises(TypeError, match="'1' is a Activated"):
            Penalty(**settings)(model, X)


def test_a_path_at_the_embeddings_joins_the_masks():
    model, inputs = Tokens().double(), tokens()
    labels = torch.randint(3, (10,), generator=torch.Generator().manual_seed(2))
    penalty = Penalty(at="embed", anchor="labels")
    points = same_draw(penalty, inputs, labels)
    outputs, degree = penalty(model, inputs, labels)
    torch.testing.assert_close(outputs, model(**inputs))
    total = 0.0
    for (first, second), alpha in zip(points.pairs.tolist(), points.alpha, strict=True):
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        weight = (mask[first] | mask[second])[:, None].double()
        values = [np.eye(3)[labels[second]]]
        for a in alpha[1:-1]:
            embedded = a * model.embed(ids[first]) + (1 - a) * model.embed(ids[second])
            pooled = (torch.tanh(model.mix(embedded)) * weight).sum(0) / weight.sum()
            values.append(reference.softmax(model.head(pooled).detach().numpy()))
        values.append(np.eye(3)[labels[first]])
        coefficients = reference.damped_fit(np.stack(values), alpha.numpy(), 3, "chebyshev", 1e-3)
        total += reference.effective_degree(coefficients) / len(points.pairs)
    np.testing.assert_allclose(degree.item(), total, rtol=1e-8)
