import pytest
import torch

from effdeg.lab.studies.grokking import run as running
from effdeg.lab.studies.grokking.run import evaluation_steps
from tests.lab.studies.grokking.runs import breaking_off, carried_out, small, summary
from tests.lab.training.runs import metrics, weights

TIMES = {"seconds", "milliseconds_per_step"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return carried_out(tmp_path_factory.mktemp("whole"), small())


def assert_same_end(one, two):
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics(one) == metrics(two)
    ends = [{key: value for key, value in summary(folder).items() if key not in TIMES} for folder in (one, two)]
    assert ends[0] == ends[1]


def test_a_run_says_what_it_saw(whole):
    logged, found = metrics(whole), summary(whole)
    assert [line["step"] for line in logged] == evaluation_steps(40, 6)
    assert logged[-1]["train_loss"] < logged[0]["train_loss"]
    assert found["validation_effective_degree"] == logged[-1]["validation_effective_degree"]
    assert (found["steps"], found["parameters"]) == (40, sum(each.numel() for each in weights(whole).values()))
    assert found["milliseconds_per_step"] == pytest.approx(1e3 * found["seconds"] / 40)


@pytest.mark.parametrize("step", [1, 17, 40])
def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path, whole, step):
    settings = small()
    with breaking_off(step):
        carried_out(tmp_path, settings)
    assert bool(list(tmp_path.rglob("*.pt"))) == (step > 1)
    assert_same_end(whole, carried_out(tmp_path, settings))


def test_how_often_a_run_is_looked_at_does_not_change_it(tmp_path, whole):
    rarely = carried_out(tmp_path, small(evaluations=2, measure_paths=2))
    assert len(metrics(rarely)) < len(metrics(whole))
    for name, value in weights(whole).items():
        assert torch.equal(weights(rarely)[name], value)


def test_random_numbers_are_left_as_they_were(tmp_path):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    carried_out(tmp_path, small(steps=3, evaluations=2))
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_differ(tmp_path):
    losses = [metrics(carried_out(tmp_path, small(seed=seed, steps=1, evaluations=2)))[0] for seed in (0, 1)]
    assert losses[0]["train_loss"] != losses[1]["train_loss"]


def test_a_network_learns(tmp_path):
    settings = small(operation="add", fraction=0.8, lr=1e-2, steps=120, evaluations=2)
    found = summary(carried_out(tmp_path, settings))
    assert found["train_accuracy"] > 0.95


def test_divergence_ends_a_run_that_can_be_begun_again(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "looked_at", lambda *_: (_ for _ in ()).throw(ValueError("diverged")))
    with pytest.raises(ValueError, match="diverged"):
        carried_out(tmp_path, small(steps=3))
    monkeypatch.undo()
    # The lock is gone with the error.
    assert summary(carried_out(tmp_path, small(steps=3)))["steps"] == 3


def test_progress_is_shown(tmp_path, capsys):
    carried_out(tmp_path, small(steps=3), progress=True)
    shown = capsys.readouterr().err
    assert "divide modulo 7, seed 0" in shown
    assert "3/3" in shown
