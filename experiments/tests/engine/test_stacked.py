"""Runs that are trained together end as each would alone, however they are interrupted."""

from dataclasses import replace

import pytest
import torch
from engine_runs import TIMES, assert_close, carry_out, make_job, make_picture_examples, small, stop_after, stop_in
from torch import nn

from effdeg_lab.core import workers
from effdeg_lab.core.recipe import find_recipe
from effdeg_lab.core.results import collect
from effdeg_lab.core.runs import CannotStackError, RunFolder, StoppedError
from effdeg_lab.core.sweep import Plan, _bundle, sweep
from effdeg_lab.core.workers import Planned, Workplace
from effdeg_lab.engine import evaluation, loop, stacked, train_stacked
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.stacked import StackedStep
from effdeg_lab.engine.step import Step

CPU = torch.device("cpu")
RATES = (1e-3, 3e-3, 1e-3)
SEVERAL = [small(seed=seed, lr=rate, weight_decay=rate) for seed, rate in enumerate(RATES)]  # two groups


class Normed(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, classes))
        self.layers(torch.zeros(2, 144 if classes == 2 else 64))

    def forward(self, x):
        return self.layers(x)


class Deciding(Normed):
    def forward(self, x):
        return self.layers(x if x.mean() > -1e9 else -x)


def carry_out_together(folder, several, **given):
    jobs = [make_job(folder, settings, **given) for settings in several]
    with torch.random.fork_rng(devices=[]):
        try:
            train_stacked(jobs)
        finally:
            for job in jobs:
                job.close()
    return [job.read() for job in jobs]


def load_weights(run):
    return torch.load(run.file.with_suffix("") / "weights.pt", weights_only=True)


def flatten(entry, prefix=""):
    """Return an entry of a run without its times, with dotted keys."""
    found = {}
    for key, value in entry.items():
        if key not in TIMES:
            found |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def assert_like(one, two, **tolerances):
    """Compare all that two runs left but their times: exactly, unless tolerances are given."""
    tolerances = tolerances or {"rtol": 0, "atol": 0}
    assert_close(load_weights(one), load_weights(two), **tolerances)
    for first, second in zip([*one.metrics, one.summary], [*two.metrics, two.summary], strict=True):
        first, second = flatten(first), flatten(second)
        assert first.keys() == second.keys()
        for key, value in first.items():
            expected = second[key]
            if tolerances["rtol"] and isinstance(expected, float):
                expected = pytest.approx(expected, rel=2e-3, abs=2e-3)
            assert value == expected, key


def make_tasks(several, examples):
    def batch(indices):
        x, y = examples.batch(indices)
        return x.double(), y

    networks = [make_network(settings, examples, CPU).train().double() for settings in several]
    tasks = [make_task(settings, examples, each) for settings, each in zip(several, networks, strict=True)]
    return [replace(task, batch=batch) for task in tasks]


def make_stack(tasks, *, penalized):
    """Make a step of all tasks, with their first weights."""
    fresh = [{name: value.clone() for name, value in task.model.state_dict().items()} for task in tasks]
    stack = StackedStep(tasks, RATES)
    stack.compile(penalized=penalized)
    stack.capture(penalized=penalized)
    for number, state in enumerate(fresh):
        stack.get_row(number).restore({"model": state, "optimizer": {}, "penalties": torch.zeros(())})
    return stack


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd", "lr": 0.05, "clip": None}])
def test_runs_end_as_they_would_alone(tmp_path, settings):
    several = [each.change(settings) for each in SEVERAL]
    for run, each in zip(carry_out_together(tmp_path / "together", several), several, strict=True):
        assert_like(run, carry_out(tmp_path / "alone", each).run, rtol=1e-4, atol=1e-5)
        assert (run.environment["together"], run.environment["shared"]) == (3, True)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": f"{__name__}:Normed"},
        {"regularizer": "mixup+ed"},
        {"regularizer": "ed", "ends": "cuts"},
        {"regularizer": "ed", "ends": "random-pixels", "anchor": "none"},
        {"augment": "swap-simple-half"},
    ],
)
def test_draws_within_the_step(settings, monkeypatch):
    """If all networks are given the same draws, a step is the one that each makes alone with these draws."""
    examples = make_picture_examples(batch=10)
    several = [small(seed=seed, batch=10, weight_decay=rate, **settings) for seed, rate in enumerate(RATES)]
    penalized = "ed" in settings.get("regularizer", "")
    monkeypatch.setattr(stacked, "vmap", lambda function, **_: torch.vmap(function, randomness="same"))
    one, two = (make_tasks(several, examples) for _ in range(2))
    stack = make_stack(one, penalized=penalized)
    indices, weights = torch.arange(30).view(3, 10), torch.tensor([7.0, 7.0, 2.0]) * penalized
    torch.manual_seed(5)
    stack(indices, torch.tensor(RATES, dtype=torch.float64), weights, penalized=penalized)
    for number, task in enumerate(two):
        step = Step(task, size=10)
        step.capture(penalized=penalized)
        torch.manual_seed(5)
        step(indices[number], rate=RATES[number], weight=float(weights[number]))
        assert_close(one[number].model.state_dict(), task.model.state_dict(), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(stack.penalties[number], step.penalties)


def test_runs_that_are_killed_or_stopped_end_where_others_do(tmp_path, monkeypatch):
    several = [each.change({"regularizer": "mixup+ed"}) for each in SEVERAL]
    whole = carry_out_together(tmp_path / "whole", several)
    call, calls = StackedStep.__call__, []

    def kill(self, *arguments, **given):
        calls.append(self)
        if len(calls) == 8:
            raise KeyboardInterrupt
        call(self, *arguments, **given)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "SECONDS_AT_RISK", -1.0)
        patch.setattr(StackedStep, "__call__", kill)
        with pytest.raises(KeyboardInterrupt):
            carry_out_together(tmp_path / "killed", several)
    with pytest.raises(StoppedError):
        carry_out_together(tmp_path / "stopped", several, asked_to_stop=stop_after(5))
    for name in ("killed", "stopped"):
        for one, two in zip(whole, carry_out_together(tmp_path / name, several), strict=True):
            assert_like(one, two)


def test_runs_that_are_stopped_in_an_evaluation_or_in_their_last_measures(tmp_path, monkeypatch):
    whole = carry_out_together(tmp_path / "whole", SEVERAL)
    with stop_in(evaluation, "evaluate", call=5) as asked, pytest.raises(StoppedError):  # the second evaluation of two
        carry_out_together(tmp_path / "stopped", SEVERAL, asked_to_stop=asked)
    with stop_in(evaluation, "measure_degree", call=2) as asked, pytest.raises(StoppedError):
        carry_out_together(tmp_path / "stopped", SEVERAL, asked_to_stop=asked)
    # The first run has ended by then, and the others do not train again.
    monkeypatch.setattr(StackedStep, "__call__", lambda *_, **__: pytest.fail("they train again"))
    (first,) = (run for run in RunFolder(tmp_path / "stopped").read() if run.finished)
    for one, two in zip(whole, [first, *carry_out_together(tmp_path / "stopped", SEVERAL[1:])], strict=True):
        assert_like(one, two)
    assert not [*tmp_path.rglob("checkpoint-*")]


def test_a_run_that_fails_leaves_the_others(tmp_path):
    several = [small(seed=seed, optimizer="sgd", clip=None, lr=lr) for seed, lr in enumerate((0.05, 1e30, 0.05))]
    one, failed, two = carry_out_together(tmp_path / "together", several)
    assert "training diverged: the loss at step 3 is not finite" in failed.failure
    assert not failed.finished
    for run, each in zip((one, two), several[::2], strict=True):
        assert_like(run, carry_out(tmp_path / "alone", each).run, rtol=1e-4, atol=1e-5)


def test_networks_that_cannot_be_stacked(tmp_path, monkeypatch):
    several = [small(seed=seed, model=f"{__name__}:Deciding", epochs=1) for seed in range(2)]
    with pytest.raises(CannotStackError, match=r"2 networks of .*Deciding cannot be trained together"):
        carry_out_together(tmp_path / "runs", several)
    with pytest.raises(CannotStackError) as raised:
        carry_out_together(tmp_path / "sam", [small(seed=seed, regularizer="sam") for seed in range(2)])
    assert "sam steps with an optimizer of its own" in str(raised.value.__cause__)
    # A worker then carries them out one after another.
    monkeypatch.setattr(workers, "_print_to", lambda _: None)
    place = Workplace("digits-methods", tmp_path / "runs", None, "cpu")
    ended = place.work([Planned("plain", each, "final") for each in several])
    assert [each.ending for each in ended] == ["finished", "finished"]
    assert all("together" not in run.environment for run in RunFolder(tmp_path / "runs").read())


def test_which_runs_are_trained_together():
    def plan(**settings):
        return Planned("method", small(**settings), "final")

    seeds = [plan(seed=seed) for seed in range(5)]
    sam = [plan(seed=seed, regularizer="sam") for seed in range(2)]
    ed = [plan(regularizer="ed", weight=weight, lr=lr) for weight in (2.0, 7.0) for lr in (0.1, 0.2)]
    other = [plan(regularizer="ed", weight=0.0), plan(batch=10), plan(regularizer="ed", at="layers.0")]
    planned = [*seeds, *sam, *ed, *other]
    alone = [[each] for each in (*sam, *other)]
    assert _bundle(planned, 1) == [[each] for each in planned]
    assert _bundle(planned, 4) == [seeds[:4], seeds[4:], *alone[:2], ed, *alone[2:]]
    assert _bundle([seeds[0], sam[0], seeds[1]], 2) == [[seeds[0], seeds[1]], [sam[0]]]
    for settings in ({"regularizer": "jacobian"}, {"regularizer": "ed", "components": 3}, {"at": "layers.0"}):
        assert small(**settings).stack_key() is None


@pytest.mark.parametrize(
    ("recipe", "plan", "together", "message"),
    [
        ("digits-methods", {}, 0, "--together 0 is too small"),
        ("cifar10-methods", {}, 2, "--together 2: runs of cifar10-methods are trained one by one"),
        ("digits-methods", {"equal_time": "ed"}, 2, "--together 2 and --equal-time ed cannot be combined"),
    ],
)
def test_bad_sweeps_are_refused_before_they_start(tmp_path, recipe, plan, together, message):
    with pytest.raises(ValueError, match=message):
        sweep(Plan(find_recipe(recipe), **plan), runs=RunFolder(tmp_path / "runs"), device=CPU, together=together)
    assert not (tmp_path / "runs").exists()


def test_the_runs_of_a_sweep(tmp_path, monkeypatch):
    """Seeds together, methods that cannot be by themselves; tables have the times of runs that were alone."""
    monkeypatch.setattr(workers, "_print_to", lambda _: None)  # in a process of its own, a worker prints to its log
    recipe, place = find_recipe("digits-methods"), Workplace("digits-methods", tmp_path, None, "cpu")
    short = {"epochs": 2, "evaluate_every": 1, "measure_every": 0, "limit": 100}
    planned = [
        Planned(name, recipe.resolve(recipe.method(name), {**short, "seed": seed}), "final")
        for name in ("plain", "sam")
        for seed in range(3)
    ]
    for bundle in _bundle(planned, 2):
        assert {each.ending for each in place.work(bundle)} == {"finished"}
    found = {(run.method, run.seed): run for run in RunFolder(tmp_path).read()}
    together = {key: run.environment.get("together", 1) for key, run in found.items()}
    assert together == {(name, seed): 2 if seed < 2 and name != "sam" else 1 for name, seed in found}
    (results,) = collect(recipe, [*found.values()])
    alone = {"plain": [found["plain", 2]], "sam": [found["sam", seed] for seed in range(3)]}
    for name, runs in alone.items():
        assert results.find(name).time() == pytest.approx(sum(run.summary["seconds"] for run in runs) / len(runs))
