import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from effdeg._models.paths import draw_nodes, draw_pairs
from effdeg.lab.studies.grokking.equations import all_equations, split
from effdeg.lab.studies.grokking.network import Decoder
from effdeg.lab.studies.grokking.tracking import looked_at
from tests.lab.studies.grokking.runs import small

SETTINGS = small()


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    model = Decoder(prime=7, width=16, heads=2, depth=2)
    with torch.no_grad():
        model.answer.weight.mul_(3.0)
    train, validation = split(all_equations("divide", 7), 21, seed=0, device=torch.device("cpu"))
    return model, train, validation, looked_at(model, train, validation, SETTINGS)


def degree_by_hand(model, equations, output):
    """The effective degree of each path by numpy's own least squares, from the network run at every node by itself."""
    found = []
    pairs = draw_pairs(len(equations), SETTINGS.measure_paths, seed=0)
    alpha = draw_nodes("cosine", SETTINGS.measure_nodes, slice(0, SETTINGS.measure_paths), seed=0)
    with torch.no_grad():
        for (one, other), nodes in zip(pairs.tolist(), alpha.double().numpy(), strict=True):
            ends = model.embed(equations.tokens[[one, other]])
            values = []
            for node in nodes:
                x = node * ends[:1] + (1 - node) * ends[1:]
                x = model.blocks[1](model.blocks[0](x.float(), last=False), last=True)
                values.append(output(model.answer(x[:, -1]).double())[0].numpy())
            fitted = np.polynomial.chebyshev.chebfit(2 * nodes - 1, np.array(values), SETTINGS.measure_degree)
            found.append(np.abs(fitted))
    return np.array(found)


@pytest.mark.parametrize("name", ["train", "validation"])
def test_the_effective_degree_is_along_paths_between_embedded_equations(case, name):
    model, train, validation, found = case
    equations = {"train": train, "validation": validation}[name]
    degrees = np.arange(SETTINGS.measure_degree + 1)[:, None]
    raw = (degrees * degree_by_hand(model, equations, lambda logits: logits.softmax(-1))).sum(1).mean(1)
    measured = found[f"{name}_effective_degree"]
    assert measured["value"] == pytest.approx(raw.mean(), rel=1e-4)
    assert measured["stderr"] == pytest.approx(raw.std(ddof=1) / math.sqrt(len(raw)), rel=1e-4)
    coefficients = degree_by_hand(model, equations, lambda logits: logits)
    normalized = ((degrees * coefficients).sum(1) / coefficients.sum(1)).mean(1)
    assert measured["normalized"] == pytest.approx(normalized.mean(), rel=1e-3)


def test_losses_accuracies_and_the_norm(case):
    model, train, validation, found = case
    for name, equations in (("train", train), ("validation", validation)):
        logits = model(equations.tokens).detach().double()
        chosen = logits.log_softmax(1)[range(len(equations)), equations.answers]
        assert found[f"{name}_loss"] == pytest.approx(-float(chosen.mean()), rel=1e-6)
        right = [int(row.argmax()) == int(answer) for row, answer in zip(logits, equations.answers, strict=True)]
        assert found[f"{name}_accuracy"] == sum(right) / len(right)
    squares = sum(float((weight.detach().double() ** 2).sum()) for weight in model.parameters())
    assert found["parameter_norm"] == pytest.approx(math.sqrt(squares))


@pytest.mark.parametrize("adaptive", [False, True])
def test_sharpness_is_the_rise_of_the_training_loss_a_step_up(case, adaptive):
    model, train, _, found = case
    model = deepcopy(model).double()
    weights = dict(model.named_parameters())
    loss = cross_entropy(model(train.tokens), train.answers)
    gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
    # As in ASAM, |w| + 0.01 for weights and 1 for biases.
    scales = {
        name: weight.detach().abs() + 0.01 if adaptive and "weight" in name else torch.ones_like(weight)
        for name, weight in weights.items()
    }
    norm = sum(float((scales[name] * gradients[name]).square().sum()) for name in weights) ** 0.5
    moved = {name: weights[name] + 0.05 * scales[name] ** 2 * gradients[name] / norm for name in weights}
    risen = cross_entropy(torch.func.functional_call(model, moved, (train.tokens,)), train.answers)
    name = "adaptive_sharpness" if adaptive else "sharpness"
    assert found[name] == pytest.approx(float((risen - loss).detach()), rel=1e-3)


def test_looking_changes_nothing(case):
    model, train, validation, found = case
    torch.manual_seed(5)
    weights, state = [weight.clone() for weight in model.parameters()], torch.get_rng_state()
    assert looked_at(model, train, validation, SETTINGS) == found
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), weights, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(weight.grad is None for weight in model.parameters())


def test_divergence_is_an_error(case):
    _, train, validation, _ = case
    broken = Decoder(prime=7, width=16, heads=2, depth=2)
    with torch.no_grad():
        broken.answer.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"train loss is no longer a number.*smaller lr than 0\.001"):
        looked_at(broken, train, validation, SETTINGS)
