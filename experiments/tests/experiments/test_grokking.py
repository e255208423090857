"""Grokking: equations and steps against hand-written ones, interrupted runs, and courses with known outcomes."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from engine_runs import assert_same_end, break_off, carry_out
from torch.nn.functional import cross_entropy
from toy_results import invent_run

from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.experiments import grokking
from effdeg_lab.experiments.grokking import DEGREE, Course, Grokking, evaluate, judge_course, split_equations, train
from effdeg_lab.models import Decoder

RECIPE = find_recipe("grokking")

CPU = torch.device("cpu")
SMALL = {
    "prime": 7, "fraction": 0.5, "width": 16, "heads": 2, "depth": 2, "steps": 40, "evaluations": 6,
    "measure_paths": 8, "measure_nodes": 16, "measure_degree": 6,
}  # fmt: skip


def small(**changes):
    return Grokking(**{**SMALL, **changes})


def test_every_equation_is_true_and_there_once():
    prime = 7
    equations = grokking.list_equations(prime)
    for (x, sign, y, equals), answer in zip(equations.inputs.tolist(), equations.labels.tolist(), strict=True):
        assert (answer * y - x) % prime == 0
        assert (0 <= answer < prime, sign, equals) == (True, prime, prime + 1)
    pairs = [(x, y) for x, _, y, _ in equations.inputs.tolist()]
    assert sorted(pairs) == [(x, y) for x in range(prime) for y in range(1, prime)]


def test_what_is_trained_on_does_not_validate_and_nothing_is_lost():
    settings = Grokking(prime=11, seed=3)
    train, validation = split_equations(settings, CPU)
    assert len(train) == settings.train_equations == round(0.3 * 110)
    seen, kept = ({tuple(row) for row in part.inputs.tolist()} for part in (train, validation))
    assert not seen & kept
    assert len(seen | kept) == 110
    x, _, y, _ = validation.inputs.unbind(1)
    assert bool(((validation.labels * y - x) % 11 == 0).all())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prime": 91}, "prime=91 is not a prime number"),
        ({"fraction": 1.0}, "leaves 9312 to train on"),
        ({"fraction": 0.0001}, "leaves 1 to train on"),
        ({"width": 20}, "width=20 cannot be divided among 4 heads.*multiple of 8"),
        ({"evaluations": 1}, "evaluations=1 is out of range: it must be at least 2"),
        ({"measure_nodes": 40}, "measure_nodes=40 cannot determine a polynomial of measure_degree=40"),
    ],
)
def test_what_is_impossible_is_refused(changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Grokking(**changes)


def test_steps_are_those_of_adamw_by_hand(tmp_path):
    settings = small(weight_decay=0.5, lr=0.02, steps=13, evaluations=2)
    done = carry_out(tmp_path, settings, train)
    torch.manual_seed(0)
    twin, (equations, _) = Decoder(prime=7, width=16, heads=2, depth=2), split_equations(settings, CPU)
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in twin.parameters()]
    for number in range(1, 14):
        # An epoch is one batch: half of 21, rounded up, is 11.
        order = torch.randperm(21, generator=torch.Generator().manual_seed(number - 1))[:11]
        rate = 0.02 * min(1.0, number / 10)
        loss = cross_entropy(twin(equations.inputs[order]), equations.labels[order])
        gradients = torch.autograd.grad(loss, list(twin.parameters()))
        with torch.no_grad():
            for weight, gradient, (mean, square) in zip(twin.parameters(), gradients, moments, strict=True):
                weight -= rate * 0.5 * weight
                mean.lerp_(gradient, 0.1)
                square.lerp_(gradient**2, 0.02)
                weight -= rate * (mean / (1 - 0.9**number)) / ((square / (1 - 0.98**number)).sqrt() + 1e-8)
    for name, weight in twin.state_dict().items():
        torch.testing.assert_close(done.weights[name], weight, rtol=1e-3, atol=1e-4)


def test_a_run_ends_the_same_wherever_it_is_interrupted(tmp_path):
    settings = small(batch=4, softmax="float64")
    whole = carry_out(tmp_path / "whole", settings, train)
    assert [entry["step"] for entry in whole.metrics] == grokking.choose_evaluation_steps(40, 6)
    assert whole.metrics[-1]["train_loss"] < whole.metrics[0]["train_loss"]
    assert whole.summary[DEGREE] == whole.metrics[-1][DEGREE]
    with break_off(17):
        carry_out(tmp_path / "killed", settings, train)
    assert_same_end(whole, carry_out(tmp_path / "killed", settings, train))
    # How often it is evaluated does not change it.
    rarely = carry_out(tmp_path / "rarely", settings.change({"evaluations": 2, "measure_paths": 2}), train)
    assert all(torch.equal(whole.weights[name], rarely.weights[name]) for name in whole.weights)


@pytest.fixture(scope="module")
def case():
    torch.manual_seed(0)
    model = Decoder(prime=7, width=16, heads=2, depth=2)
    with torch.no_grad():
        model.answer.weight.mul_(3.0)
    equations, validation = split_equations(small(), CPU)
    return model, equations, validation, evaluate(model, equations, validation, small())


def test_the_effective_degree_is_along_paths_between_embedded_equations(case):
    """By numpy's own least squares, from the network run behind its embedding."""
    model, _, validation, found = case
    trace = grokking.effdeg.trace(model, validation.inputs, paths=8, nodes=16, at="embed")
    raw, normalized, degrees = [], [], np.arange(7)[:, None]
    for pair, alpha in zip(trace.pairs.tolist(), trace.alpha.expand(8, 16).double().numpy(), strict=True):
        with torch.no_grad():
            one, other = model.embed(validation.inputs[pair])
            x = torch.stack([node * one + (1 - node) * other for node in alpha.tolist()])
            x = model.blocks[1](model.blocks[0](x, last=False), last=True)
            logits = model.answer(x[:, -1]).double()
        for values, sums in ((logits.softmax(-1), raw), (logits, normalized)):
            fitted = np.abs(np.polynomial.chebyshev.chebfit(2 * alpha - 1, values.numpy(), 6))
            total = (degrees * fitted).sum(0)
            sums.append((total / fitted.sum(0) if sums is normalized else total).mean())
    measured = found["validation_effective_degree"]
    assert measured["value"] == pytest.approx(np.mean(raw), rel=1e-4)
    assert measured["stderr"] == pytest.approx(np.std(raw, ddof=1) / math.sqrt(8), rel=1e-4)
    assert measured["normalized"] == pytest.approx(np.mean(normalized), rel=1e-3)


def test_evaluating_changes_nothing_and_divergence_is_an_error(case):
    model, equations, validation, found = case
    torch.manual_seed(5)
    weights, state = [weight.clone() for weight in model.parameters()], torch.get_rng_state()
    assert evaluate(model, equations, validation, small()) == found
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), weights, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    broken = deepcopy(model)
    with torch.no_grad():
        broken.answer.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"train loss is no longer a number.*smaller lr than 0\.001"):
        evaluate(broken, equations, validation, small())


# Made-up runs, evaluated after 10, 20, 40, … 163,840 steps; memorized after 40, generalized between 640 and 1,280.
ACCURACIES = [0.0, 0.0, 0.01, 0.01, 0.02, 0.05, 0.2, 0.95, *[1.0] * 7]
LOSSES = [4.0, 4.5, 5.0, 6.0, 8.0, 7.0, 5.0, 2.0, 0.1, 9.0, *[0.1] * 5]
AS_THE_PAPER = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.8, 0.4, 0.2, *[0.1] * 5]
EARLY = [0, 0.1, 0.2, 0.9, 0.4, 0.3, 0.2, *[0.1] * 8]
NEVER = {"accuracies": [0.01] * 15, "losses": list(range(1, 16))}
RISING = [float(number) for number in range(1, 16)]


def make_run(method="paper", degrees=AS_THE_PAPER, accuracies=ACCURACIES, losses=LOSSES, seed=0):
    steps = [10 * 2**number for number in range(15)]
    metrics = []
    for at, step in enumerate(steps):
        measured = {"value": degrees[at], "stderr": 0.01, "normalized": 1.0, "normalized_stderr": 0.01}
        metrics.append({
            "step": step, "train_accuracy": 1.0 if step >= 40 else 0.5, "train_loss": 0.1, DEGREE: measured,
            "validation_accuracy": accuracies[at], "validation_loss": losses[at],
            "parameter_norm": 1.0, "sharpness": 0.5, "adaptive_sharpness": 0.5,
        })  # fmt: skip
    return invent_run(RECIPE, method, {}, metrics, steps=steps[-1], seed=seed)


@pytest.mark.parametrize(
    ("degrees", "word", "quantity"),
    [
        (AS_THE_PAPER, "holds", "rise of ED"),
        # At 2,560, twice the step of the drop, it is still near; at 5,120 no more.
        ([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 0.2, *[0.1] * 5], "holds", "rise of ED"),
        ([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.2, 0.9, *[0.1] * 5], "does not hold", "step of the highest ED"),
        (EARLY, "does not hold", "step of the highest ED"),
        # A plateau: the peak may be anywhere on it.
        ([0, 0.1, 0.2, *[0.9] * 8, *[0.1] * 4], "not decided", "step of the highest ED"),
        # Level, or falling, while it memorizes.
        ([0.2, 0.2, 0.22, 0.3, 0.4, 0.5, 0.9, 0.8, 0.4, 0.2, *[0.1] * 5], "not decided", "rise of ED"),
        ([0.3, 0.2, 0.1, 0.3, 0.4, 0.5, 0.9, 0.8, 0.4, 0.2, *[0.1] * 5], "does not hold", "rise of ED"),
        # Falls by less than its error bars.
        ([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 0.85, *[0.89] * 7], "not decided", "step of the highest ED"),
    ],
)
def test_the_claim_comes_out_either_way(degrees, word, quantity):
    found = judge_course(Course(make_run(degrees=degrees)))
    assert found.word == word
    assert found.quantity.startswith(quantity)


def test_runs_that_do_not_generalize_or_disagree_decide_nothing():
    never, early = make_run(**NEVER), make_run(degrees=EARLY)
    assert judge_course(Course(never)) is None
    assert grokking.judge_runs([]).word == grokking.judge_runs([never]).word == "not decided"
    assert grokking.judge_runs([never, make_run()]).word == "holds"
    assert grokking.judge_runs([make_run(), early]).word == "not decided"
    assert grokking.judge_runs([early, early]).word == "does not hold"
    assert RECIPE.study.claim(collect(RECIPE, [never, make_run("decay")])[0]).word == "not decided"


def test_tables():
    higher = [1.1 * each for each in AS_THE_PAPER]
    later = [0.01, *ACCURACIES[:-1]]
    runs = [make_run(), make_run(degrees=higher, accuracies=later, seed=1), make_run(seed=2, **NEVER)]
    others = [make_run("half", degrees=RISING, **NEVER), make_run("decay", degrees=EARLY)]
    results = collect(RECIPE, [*runs, *others])[0]
    steps, degrees = RECIPE.study.tables(results)
    cells = {row[0]: row[1:] for row in steps.rows}
    assert cells["30%, no weight decay"] == (
        "40", "1,280 to 2,560 (2 of 3)", "2,560 to 5,120 (2 of 3)", "160 (2 of 3)", "1,280 (2 of 3)", "640 (2 of 3)",
        "640",
    )  # fmt: skip
    assert cells["50%, no weight decay"] == ("40", *["never"] * 5, "163,840")
    assert cells["50%, weight decay 1"] == ("not run", *["–"] * 6)
    cells = {row[0]: row[1:] for row in degrees.rows}
    assert cells["30%, weight decay 1"] == (
        "0.000 ± 0.010", "0.200 ± 0.010", "0.900 ± 0.010", "0.100 ± 0.010", "0.900 ± 0.010", "0.100 ± 0.010",
    )  # fmt: skip
    # Two seeds, the second a tenth higher, each with a standard error of 0.01.
    assert cells["30%, no weight decay"][2] == "0.945 ± 0.007"
    assert cells["50%, no weight decay"][2:4] == ("–", "–")
    headline = RECIPE.study.headline(results.methods[0].runs[0])
    assert headline == "validation accuracy up to 100.00%, highest ED 0.900 at step 640"


def test_figures():
    results = collect(RECIPE, [make_run("half", **NEVER), make_run("decay"), make_run("decay", seed=1)])[0]
    shown = RECIPE.study.figures(results)
    assert [each.name for each in shown] == ["with-decay", "without-decay"]
    _, degree, *_ = shown[0].draw("light").axes
    (dot,) = [line for line in degree.lines if line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (640, 0.9)
    assert len(shown[1].draw("dark").axes) == 6
