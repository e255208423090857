import math

import torch
from torch.nn.functional import cross_entropy

from effdeg.lab.studies.grokking.equations import all_equations, split
from effdeg.lab.studies.grokking.network import Decoder
from effdeg.lab.studies.grokking.step import GrokkingStep
from tests.lab.studies.grokking.runs import small


def made(settings):
    torch.manual_seed(0)
    model = Decoder(prime=settings.prime, width=settings.width, heads=settings.heads, depth=settings.depth)
    everything = all_equations(settings.operation, settings.prime)
    train, _ = split(everything, settings.train_equations, seed=0, device=torch.device("cpu"))
    return model, train, GrokkingStep(model, train, settings)


def test_steps_are_those_of_adamw_by_hand():
    settings = small(weight_decay=0.5, lr=0.02)
    model, train, step = made(settings)
    twin, _, _ = made(settings)
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in twin.parameters()]
    for number in range(1, 14):
        # Two passes of a batch each, since half of 21, rounded up, is 11.
        order = torch.randperm(21, generator=torch.Generator().manual_seed(number - 1))[:11]
        rate = 0.02 * min(1.0, number / 10)
        loss = cross_entropy(twin(train.tokens[order]), train.answers[order])
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for weight, gradient, (mean, square) in zip(twin.parameters(), gradients, moments, strict=True):
                weight -= rate * 0.5 * weight
                mean.lerp_(gradient, 0.1)
                square.lerp_(gradient**2, 0.02)
                corrected = mean / (1 - 0.9**number), (square / (1 - 0.98**number)).sqrt() + 1e-8
                weight -= rate * corrected[0] / corrected[1]
        step()
    assert step.step == 13
    for ours, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-3, atol=1e-4)


def test_every_equation_has_its_turn():
    settings = small(batch=4)
    _, train, step = made(settings)
    for _ in range(3):
        seen = []
        for _ in range(5):
            step()
            seen += step._rows.tolist()
        # 20 of 21: the one that does not fill a batch waits for another epoch.
        assert len(set(seen)) == 20
        assert set(seen) < set(range(len(train)))


def test_making_a_step_leaves_the_network_as_it_is():
    settings = small()
    model, _, _ = made(settings)
    torch.manual_seed(0)
    fresh = Decoder(prime=settings.prime, width=settings.width, heads=settings.heads, depth=settings.depth)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), fresh.parameters(), strict=True))


def test_a_state_is_put_back_exactly():
    settings = small(batch=4)
    model, _, step = made(settings)
    for _ in range(7):
        step()
    kept = {
        "model": {name: value.clone() for name, value in step.state()["model"].items()},
        "optimizer": {
            index: {name: value.clone() for name, value in values.items()}
            for index, values in step.state()["optimizer"].items()
        },
        "step": 7,
    }
    ends = []
    for _ in range(2):
        for _ in range(6):
            step()
        ends.append([weight.clone() for weight in model.parameters()])
        step.restore(kept)
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


def test_a_softmax_in_float64_pulls_on_answers_that_are_known_by_heart():
    pulls = {}
    for precision in ("float32", "float64"):
        _, train, step = made(small(softmax=precision))
        # All but certain: the other six have e⁻²⁰ each, and 1 less that is 1 in float32.
        logits = (20.0 * torch.nn.functional.one_hot(train.answers, 7)).requires_grad_()
        step._model = lambda _, logits=logits: logits
        step._plain_loss(train.tokens, train.answers).backward()
        pulls[precision] = logits.grad[range(21), train.answers]
    assert float(pulls["float32"].abs().max()) == 0
    torch.testing.assert_close(pulls["float64"], torch.full((21,), -6 * math.exp(-20) / 21))
