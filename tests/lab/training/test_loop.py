import signal
import subprocess
import sys
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import effdeg
from effdeg.lab import data, models
from effdeg.lab.settings import identity
from effdeg.lab.store import Store
from effdeg.lab.task import Task
from effdeg.lab.training import loop
from effdeg.lab.training.environment import environment
from effdeg.lab.training.evaluation import FOLLOWED
from effdeg.lab.training.turns import shares_gpu
from tests.lab.training.runs import StoppedError, breaking_off, carried_out, metrics, small, summary, weights

METHODS = ["plain", "mixup+ed", "sam"]


def assert_same_end(one, two):
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert metrics(one) == metrics(two)
    times = {"seconds", "seconds_per_epoch", "milliseconds_per_step"}
    ends = [{key: value for key, value in summary(folder).items() if key not in times} for folder in (one, two)]
    assert ends[0] == ends[1]


def test_runs_share_a_gpu_where_that_is_asked_for(monkeypatch):
    assert not shares_gpu(torch.device("cuda"))
    monkeypatch.setenv("EFFDEG_SHARE_GPU", "1")
    assert shares_gpu(torch.device("cuda"))
    assert not shares_gpu(torch.device("cpu"))
    assert "shared" not in environment(torch.device("cpu"))


def test_a_run_learns_and_says_what_it_found(tmp_path):
    settings = small(limit=500, batch=50, epochs=15, evaluate_every=5, measure_every=15, method="ed", lr=5e-3)
    folder = carried_out(tmp_path, settings)
    found, logged = summary(folder), metrics(folder)
    assert [line["epoch"] for line in logged] == [5, 10, 15]
    assert found["test_accuracy"] > 0.85
    assert found["gap"] == found["train_accuracy"] - found["test_accuracy"]
    assert found["epochs"] == 15
    assert found["parameters"] == sum(each.numel() for each in weights(folder).values())
    assert found["effective_degree"]["value"] > 0
    assert all(line["penalty"] > 0 for line in logged)
    assert [line["epoch"] for line in logged if "effective_degree" in line] == [15]
    assert logged[-1]["weight"] == 7.0
    assert logged[0]["train_loss"] > logged[-1]["train_loss"]


def test_the_last_accuracies_are_those_of_the_kept_weights(tmp_path):
    settings = small(limit=300)
    folder = carried_out(tmp_path, settings)
    digits = data.load("digits", None)
    kept = list(weights(folder).values())
    for split, (x, y) in {
        "test": (digits.test_inputs, digits.test_labels),
        "train": (digits.train_inputs[:300], digits.train_labels[:300]),
    }.items():
        hidden = x
        for weight, bias in zip(kept[::2], kept[1::2], strict=True):
            hidden = hidden @ weight.T + bias
            hidden = hidden if weight is kept[-2] else hidden.clamp(min=0)
        assert summary(folder)[f"{split}_accuracy"] == pytest.approx(float((hidden.argmax(1) == y).float().mean()))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_ends_the_same_and_another_does_not(tmp_path, method):
    folders = [carried_out(tmp_path / name, small(method=method, seed=seed)) for name, seed in (("a", 3), ("b", 3))]
    assert_same_end(*folders)
    other = carried_out(tmp_path, small(method=method, seed=4))
    assert any(
        not torch.equal(one, two)
        for one, two in zip(weights(folders[0]).values(), weights(other).values(), strict=True)
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_breaks_off_goes_on_where_it_was(tmp_path, method):
    settings = small(method=method, epochs=5)
    whole = carried_out(tmp_path / "whole", settings)
    with breaking_off(2):
        carried_out(tmp_path / "broken", settings)
    assert_same_end(whole, carried_out(tmp_path / "broken", settings))


def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path):
    settings = small(method="ed", epochs=6)
    program = f"""
import os, signal, sys
sys.path.insert(0, ".")
from effdeg.lab.training import Training, loop
from tests.lab.training.runs import carried_out

train_epoch = loop._TrainingRun._train_epoch
def killed(self):
    train_epoch(self)
    if self._epoch == 3:
        os.kill(os.getpid(), signal.SIGKILL)
loop._TrainingRun._train_epoch = killed
carried_out({str(tmp_path / "killed")!r}, {settings!r})
"""
    folder = Store(tmp_path / "killed").run(settings).folder
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(metrics(folder)) == 3
    assert not (folder / "summary.json").exists()
    assert_same_end(carried_out(tmp_path / "whole", settings), carried_out(tmp_path / "killed", settings))


def test_accuracies_are_logged_wherever_the_effective_degree_is(tmp_path):
    logged = metrics(carried_out(tmp_path, small(epochs=7, evaluate_every=4, measure_every=3)))
    assert [entry["epoch"] for entry in logged] == [3, 4, 6, 7]
    measured = [entry for entry in logged if "effective_degree" in entry]
    assert [entry["epoch"] for entry in measured] == [3, 6, 7]
    for entry in measured:
        assert {"train_accuracy", "test_accuracy"} <= entry.keys()
        # As it is measured during training, and not at the end.
        assert {key: entry["effective_degree"][key] for key in FOLLOWED} == FOLLOWED


def test_a_corrupt_checkpoint_costs_an_epoch_and_nothing_else(tmp_path, monkeypatch):
    settings = small(method="ed", epochs=5)
    whole = carried_out(tmp_path / "whole", settings)
    monkeypatch.setattr(loop._TrainingRun, "summary", lambda self: (_ for _ in ()).throw(StoppedError))
    with pytest.raises(StoppedError):
        carried_out(tmp_path / "broken", settings)
    monkeypatch.undo()
    newest = max((tmp_path / "broken").rglob("*.pt"), key=lambda file: file.stat().st_mtime_ns)
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=newest.name):
        broken = carried_out(tmp_path / "broken", settings)
    assert_same_end(whole, broken)


def test_what_is_held_out_is_tested_on_and_the_test_set_is_not_touched(tmp_path, monkeypatch):
    settings = small(held_out=200)
    digits = data.load("digits", None)
    poisoned = replace(digits, test_inputs=torch.full_like(digits.test_inputs, float("nan")))
    monkeypatch.setattr(loop.data, "load", lambda *_: poisoned)
    folder = carried_out(tmp_path, settings)
    kept = list(weights(folder).values())
    hidden = digits.train_inputs[-200:]
    for weight, bias in zip(kept[::2], kept[1::2], strict=True):
        hidden = hidden @ weight.T + bias
        hidden = hidden if weight is kept[-2] else hidden.clamp(min=0)
    right = float((hidden.argmax(1) == digits.train_labels[-200:]).float().mean())
    assert summary(folder)["test_accuracy"] == pytest.approx(right)
    assert summary(folder)["effective_degree"]["value"] > 0


def test_proxies_at_the_end(tmp_path):
    settings = small(proxies=("parameter_norm", "distance", "sharpness@0.05"), proxy_examples=40)
    folder = carried_out(tmp_path, settings)
    found = summary(folder)
    norm = torch.cat([each.flatten() for each in weights(folder).values()]).norm()
    assert found["proxies"]["parameter_norm"]["value"] == pytest.approx(float(norm))
    torch.manual_seed(0)
    first = models.make("mlp", shape=(64,), classes=10).state_dict()
    moved = torch.cat([(weights(folder)[name] - first[name]).flatten() for name in first]).norm()
    assert found["proxies"]["distance"]["value"] == pytest.approx(float(moved), rel=1e-4)
    # The effective degree comes along, on the same training examples.
    assert found["proxies"].keys() == {*settings.proxies, "effective_degree", "effective_degree_normalized"}
    assert found["proxies"]["effective_degree"]["value"] != found["effective_degree"]["value"]
    assert found["effective_degree_random_pixels"]["value"] != found["effective_degree"]["value"]


def test_other_nodes_and_degrees_at_the_end(tmp_path):
    settings = small(measure_also=("4/3", "15/7"))
    folder = carried_out(tmp_path, settings)
    model = models.make("mlp", shape=(64,), classes=10)
    model.load_state_dict(weights(folder))
    inputs = data.load("digits", None).test_inputs

    def measure(nodes, degree, output="softmax"):
        return effdeg.measure(model, inputs, paths=20, nodes=nodes, degree=degree, output=output)

    found = summary(folder)["measured_also"]
    assert list(found) == ["4/3", "15/7"]
    precise, coarse = measure(20, 8), measure(4, 3)
    assert torch.equal(precise.pairs, coarse.pairs)
    assert summary(folder)["effective_degree"]["value"] == pytest.approx(precise.value)
    assert found["4/3"]["value"] == pytest.approx(coarse.value)
    assert found["4/3"]["stderr"] == pytest.approx(coarse.stderr)
    assert found["4/3"]["normalized"] == pytest.approx(measure(4, 3, "identity").normalized)
    assert found["15/7"]["normalized_stderr"] == pytest.approx(measure(15, 7, "identity").normalized_stderr)
    correlation = np.corrcoef(coarse.per_path, precise.per_path)[0, 1]
    assert found["4/3"]["per_path_correlation"] == pytest.approx(correlation)
    assert found["4/3"]["value_at_degree"] == pytest.approx(measure(20, 3).value)
    assert found["15/7"]["normalized_at_degree"] == pytest.approx(measure(20, 7, "identity").normalized)


def test_measuring_in_more_ways_changes_neither_the_training_nor_older_runs_names(tmp_path):
    plain, more = small(), small(measure_also=(" 4 / 3 ",))
    assert more == small(measure_also=("4/3",))
    assert "measure_also" not in identity(plain)
    assert identity(more) == identity(plain) | {"measure_also": ["4/3"]}
    folders = [carried_out(tmp_path, settings) for settings in (plain, more)]
    assert all(torch.equal(one, two) for one, two in zip(*(weights(each).values() for each in folders), strict=True))
    assert "measured_also" not in summary(folders[0])


@pytest.mark.parametrize(
    ("also", "match"),
    [("4", "write nodes/degree, such as 4/3"), ("4/x", "write nodes/degree"), ("3/3", "nodes=3"), ("64/20", "lower")],
)
def test_what_cannot_be_measured_also_is_refused(also, match):
    with pytest.raises(ValueError, match=match):
        small(measure_also=(also,))


class Watching(torch.nn.Module):
    seen: ClassVar = []

    def __init__(self, classes, channels):
        super().__init__()
        self.linear = torch.nn.Linear(64 * channels, classes)

    def forward(self, x):
        if self.training:
            self.seen.append(x.clone())
        return self.linear(x.flatten(1))


def test_images_are_cropped_and_standardized(tmp_path, monkeypatch):
    digits = data.load("digits", None)
    white = torch.full((len(digits.train_labels), 1, 8, 8), 255, dtype=torch.uint8)
    images = replace(digits, train_inputs=white, test_inputs=white[:50], test_labels=digits.test_labels[:50])
    monkeypatch.setattr(loop.data, "load", lambda *_: replace(images, mean=(0.3,), std=(0.4,)))
    settings = small(model="tests.lab.training.test_loop:Watching", augment="crop-flip", epochs=1)
    carried_out(tmp_path, settings)
    seen = torch.cat(Watching.seen)
    assert seen.shape == (60, 1, 8, 8)
    # White is 1 and the border black.
    assert set(seen.unique().tolist()) == set(torch.tensor([-0.3 / 0.4, 0.7 / 0.4]).tolist())
    # A crop of a white image is a white rectangle that touches two sides at least.
    assert all(int((each[0] > 0).sum()) in {a * b for a in range(4, 9) for b in range(4, 9)} for each in seen)


def test_divergence_is_an_error_that_names_the_epoch(tmp_path):
    with pytest.raises(ValueError, match=r"after epoch \d+: training diverged"):
        carried_out(tmp_path, small(optimizer="sgd", lr=1e30, clip=None, warm_up=0.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 61}, "batch=61 is more than the 60 training examples"),
        ({"held_out": 790, "limit": None}, "batch=20 is more than the 7 training examples"),
        ({"augment": "crop"}, "augment='crop' is for images"),
        ({"model": "mpl"}, "Did you mean 'mlp'"),
        ({"model": "tests.lab.training.test_loop:Narrow"}, r"gives shape \(2, 9\) for 2 examples of digits"),
        ({"method": "ed", "at": "layer.0"}, "layer.0"),
        ({"method": "embedding-mixup", "at": "layers.0"}, "token ids"),
    ],
)
def test_bad_input_is_refused_before_a_folder_is_made(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        carried_out(tmp_path / "runs", small(**settings))
    assert not list(tmp_path.glob("runs/*"))


def test_progress_names_accuracy_and_pace(tmp_path, capsys):
    carried_out(tmp_path, small(method="ed"), progress=True)
    shown = capsys.readouterr().err
    assert "ed, seed 0" in shown
    assert "penalty" in shown
    assert "s/epoch" in shown


class Narrow(torch.nn.Linear):
    def __init__(self):
        super().__init__(64, 9)


def test_other_settings_than_the_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="of other settings"):
        loop.train(small(seed=1), Task(Store(tmp_path).run(small()), None, torch.device("cpu")))


def test_other_data_are_refused_when_a_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(loop._TrainingRun, "summary", lambda self: (_ for _ in ()).throw(StoppedError))
    with pytest.raises(StoppedError):
        carried_out(tmp_path, small())
    monkeypatch.undo()
    digits = data.load("digits", None)
    monkeypatch.setattr(loop.data, "load", lambda *_: replace(digits, train_inputs=digits.train_inputs + 1))
    with pytest.raises(ValueError, match="was begun with other data"):
        carried_out(tmp_path, small())
    monkeypatch.undo()
    # The lock is gone with the error, so that it can go on at once.
    assert summary(carried_out(tmp_path, small()))["epochs"] == 4


def test_nothing_is_left_behind(tmp_path):
    torch.manual_seed(5)
    state, benchmark = torch.get_rng_state(), torch.backends.cudnn.benchmark
    carried_out(tmp_path, small(method="mixup+ed"))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.cudnn.benchmark == benchmark


def test_the_weight_is_logged_whichever_step_was_last(tmp_path):
    folder = carried_out(tmp_path, small(method="ed", every=2, ramp=0.0, weight=3.0))
    assert [line["weight"] for line in metrics(folder)] == [3.0] * 4


PROGRAM = """
import sys, time, torch
sys.path.insert(0, ".")
from effdeg._utils.distributed import process_group, rank_and_size
from effdeg.lab.store import Run
from effdeg.lab.training import loop
from tests.lab.training.runs import carried_out, small

folder, train_epoch, save = sys.argv[1], loop._TrainingRun._train_epoch, Run.save

def breaks(self):
    train_epoch(self)
    if self._epoch == 2:
        raise KeyboardInterrupt

with process_group():
    carried_out(f"{folder}/plain", small(epochs=3, weight_decay=0.0, clip=None, optimizer="sgd", lr=0.1))
    carried_out(f"{folder}/whole", small(method="ed"))
    for name in ("broken", "alone"):
        loop._TrainingRun._train_epoch = breaks
        try:
            carried_out(f"{folder}/{name}", small(method="ed"))
        except KeyboardInterrupt:
            pass
        loop._TrainingRun._train_epoch = train_epoch
    carried_out(f"{folder}/broken", small(method="ed"))
    # The first process saves slowly, so that by its own clock the other would save at other times.
    Run.save = lambda self, state: (time.sleep(0.05), save(self, state))
    loop.SECONDS_AT_RISK = 0.1
    carried_out(f"{folder}/slow", small(epochs=12, evaluate_every=12))
"""


def test_two_processes(tmp_path):
    """With DDP each of two processes takes half of every batch, and their gradients are averaged."""
    plain = small(epochs=3, weight_decay=0.0, clip=None, optimizer="sgd", lr=0.1)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run([*torchrun, str(program), str(tmp_path)], check=True, timeout=180, capture_output=True)
    alone, two = carried_out(tmp_path / "one", plain), Store(tmp_path / "plain").run(plain).folder
    for one, other in zip(weights(alone).values(), weights(two).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert summary(two)["test_accuracy"] == pytest.approx(summary(alone)["test_accuracy"], abs=0.003)
    settings = small(method="ed")
    assert_same_end(*(Store(tmp_path / name).run(settings).folder for name in ("whole", "broken")))
    assert Store(tmp_path / "slow").run(small(epochs=12, evaluate_every=12)).finished
    with pytest.warns(RuntimeWarning, match="another number of processes"):
        assert summary(carried_out(tmp_path / "alone", settings))["epochs"] == 4
