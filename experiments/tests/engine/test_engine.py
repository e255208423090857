import math
import tempfile
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import test_streaming
import torch
from engine_runs import (
    assert_close,
    assert_same_end,
    break_off,
    carry_out,
    carry_out_stopped,
    make_job,
    run_mlp,
    small,
    stop_after,
    stop_in,
)
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import effdeg
from effdeg import baselines
from effdeg_lab.core.runs import RunFolder, StoppedError
from effdeg_lab.data import load
from effdeg_lab.engine import Training, check_training, classify, evaluation, loop, train
from effdeg_lab.engine.classify import Schedules, make_task
from effdeg_lab.engine.evaluation import FOLLOWED
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.step import Step
from effdeg_lab.models import make_model
from tests.properties import run_in_processes

DIGITS = load("digits", None)


def test_a_run_learns_and_reports_what_it_found(tmp_path):
    settings = small(limit=500, batch=50, epochs=15, evaluate_every=5, measure_every=6, regularizer="ed", lr=5e-3)
    done = carry_out(tmp_path, settings)
    # Accuracies are logged wherever the effective degree is.
    assert [(entry["epoch"], entry["step"]) for entry in done.metrics] == [(n, 10 * n) for n in (5, 6, 10, 12, 15)]
    measured = {entry["epoch"]: entry["effective_degree"] for entry in done.metrics if "effective_degree" in entry}
    assert list(measured) == [6, 12, 15]
    assert all(FOLLOWED.items() <= each.items() for each in measured.values())
    assert done.summary["test_accuracy"] > 0.85
    assert done.summary["gap"] == done.summary["train_accuracy"] - done.summary["test_accuracy"]
    assert done.summary["parameters"] == sum(each.numel() for each in done.weights.values())
    assert done.summary["effective_degree"]["value"] > 0
    assert all(entry["penalty"] > 0 for entry in done.metrics)
    assert (done.metrics[-1]["weight"], done.environment["data"]) == (7.0, DIGITS.fingerprint())
    assert sorted(file.name for file in done.file.with_suffix("").iterdir()) == ["weights.pt"]
    assert not {"proxies", "test_proxies", "measured_also"} & done.summary.keys()


def test_the_last_numbers_are_those_of_the_kept_weights_and_tuning_does_not_touch_the_test_set(tmp_path, monkeypatch):
    poisoned = replace(DIGITS, test_inputs=torch.full_like(DIGITS.test_inputs, float("nan")))
    monkeypatch.setattr(classify, "load", lambda *_: poisoned)
    done = carry_out(tmp_path, small(limit=300, held_out=200))
    for name, part in {"test": slice(-200, None), "train": slice(300)}.items():
        right = run_mlp(done.weights, DIGITS.train_inputs[part]).argmax(1) == DIGITS.train_labels[part]
        assert done.summary[f"{name}_accuracy"] == pytest.approx(float(right.float().mean()))


@pytest.mark.parametrize("regularizer", ["mixup+ed", "sam"])
def test_a_run_ends_the_same_wherever_it_is_interrupted(tmp_path, regularizer):
    settings = small(regularizer=regularizer, evaluate_every=2)
    whole = carry_out(tmp_path / "whole", settings)
    for step in (1, 6, 12):  # of 12, three in an epoch
        with break_off(step):
            carry_out(tmp_path / f"killed-{step}", settings)
        assert_same_end(whole, carry_out(tmp_path / f"killed-{step}", settings))
    carry_out_stopped(tmp_path / "stopped", settings, 4)
    assert_same_end(whole, carry_out(tmp_path / "stopped", settings))


def test_a_run_shows_that_it_continues_but_does_not_with_other_data(tmp_path, monkeypatch, capsys):
    carry_out_stopped(tmp_path, small(), 5)
    monkeypatch.setattr(classify, "load", lambda *_: replace(DIGITS, train_inputs=DIGITS.train_inputs + 1))
    with pytest.raises(ValueError, match="was started with other data"):
        carry_out(tmp_path, small())
    monkeypatch.undo()
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich take it for a terminal
    carry_out(tmp_path, small(), progress=True)
    shown = "".join(capsys.readouterr())
    assert "continuing at step 5" in shown
    assert "method, seed 0" in shown
    assert "12/12" in shown


def test_all_that_can_be_measured_at_the_end(tmp_path):
    settings = small(
        proxies=("parameter_norm", "distance", "sharpness@0.05"), test_proxies=("confidence", "total_variation"),
        measure_components=(1, 3), measure_also=(" 4 / 3", "15/7"),
    )  # fmt: skip
    done = carry_out(tmp_path, settings)
    torch.manual_seed(0)
    model = make_model("mlp", shape=(64,), classes=10)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(done.weights)

    def measure(nodes, degree, output="softmax", **options):
        return effdeg.measure(model, DIGITS.test_inputs, paths=20, nodes=nodes, degree=degree, output=output, **options)

    # On training examples, along with the effective degree on them.
    found = done.summary["proxies"]
    assert found.keys() == {*settings.proxies, "effective_degree", "effective_degree_normalized"}
    norm = torch.cat([each.flatten() for each in done.weights.values()]).double().norm()
    assert found["parameter_norm"]["value"] == pytest.approx(float(norm))
    moved = torch.cat([(done.weights[name] - first[name]).flatten() for name in first]).norm()
    assert found["distance"]["value"] == pytest.approx(float(moved), rel=1e-4)
    values = {done.summary[name]["value"] for name in ("effective_degree", "effective_degree_random_pixels")}
    assert len(values | {found["effective_degree"]["value"]}) == 3
    right = model(DIGITS.test_inputs).argmax(1) == DIGITS.test_labels
    assert done.summary["test_accuracy"] == pytest.approx(float(right.float().mean()))
    # On test examples, without their labels.
    found = done.summary["test_proxies"]
    assert found.keys() == {"confidence", "total_variation"}
    confidence = model(DIGITS.test_inputs).softmax(1).amax(1).mean()
    assert found["confidence"]["value"] == pytest.approx(confidence.item(), rel=1e-4)
    assert [*done.summary["effective_degree_components"]] == ["1", "3"]
    for components, each in done.summary["effective_degree_components"].items():
        assert each["value"] == pytest.approx(measure(20, 8, components=int(components)).value, rel=1e-4)
    # With other nodes and degrees.
    found, precise, coarse = done.summary["measured_also"], measure(20, 8), measure(4, 3)
    assert list(found) == ["4/3", "15/7"]
    assert done.summary["effective_degree"]["value"] == pytest.approx(precise.value)
    assert (found["4/3"]["value"], found["4/3"]["stderr"]) == pytest.approx((coarse.value, coarse.stderr))
    assert found["15/7"]["normalized_stderr"] == pytest.approx(measure(15, 7, "identity").normalized_stderr)
    correlation = np.corrcoef(coarse.per_path, precise.per_path)[0, 1]
    assert found["4/3"]["per_path_correlation"] == pytest.approx(correlation)
    assert found["4/3"]["value_at_degree"] == pytest.approx(measure(20, 3).value)
    assert found["15/7"]["normalized_at_degree"] == pytest.approx(measure(20, 7, "identity").normalized)


@pytest.mark.parametrize(("name", "look"), [("evaluate", 4), ("score_test", 1), ("measure_proxies", 30)])
def test_a_run_that_is_stopped_in_its_last_measures_does_not_train_again(tmp_path, monkeypatch, name, look):
    settings = small(regularizer="ed", evaluate_every=4, proxies=("sharpness@0.05",))
    whole = carry_out(tmp_path / "whole", settings)
    with stop_in(evaluation, name, look=look) as asked, pytest.raises(StoppedError):
        carry_out(tmp_path / "stopped", settings, asked_to_stop=asked)
    monkeypatch.setattr(loop.Loop, "_train_step", lambda _: pytest.fail("it trains again"))
    again = carry_out(tmp_path / "stopped", settings)
    assert_same_end(whole, again)
    assert [file.name for file in again.file.with_suffix("").iterdir()] == ["weights.pt"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 61}, "batch=61 is more than the 60 training examples"),
        ({"augment": "crop"}, "augment=crop is for images; digits has features"),
        ({"dropout": 0.1}, "dropout=0.1 is for vision transformers, not for model='mlp'"),
        ({"warm_up_steps": 13}, "warm_up_steps=13 is more than the 12 steps of this run"),
        ({"regularizer": "ed", "at": "layer.0"}, "at='layer.0' is not a layer of mlp. Did you mean 'layers.0'"),
        ({"model": "resnet18"}, "takes images"),
        ({"model": "torch.nn:Identity"}, r"returns shape \(2, 64\) for 2 examples of digits, which has 10 classes"),
        ({"regularizer": "mixup", "ends": "random-pixels"}, "paths of regularizer=ed"),
        ({"regularizer": "ed", "ends": "random-pixels"}, "anchor=none"),
        ({"regularizer": "ed", "ends": "cuts", "anchor": "none"}, "set anchor=labels"),
        ({"regularizer": "ed", "ends": "cuts", "sampling": "uniform"}, "sampling=cosine or chebyshev"),
        ({"regularizer": "mixup", "augment": "cutmix"}, "augment=cutmix and regularizer=mixup both mix the batch"),
        ({"regularizer": "ed", "nodes": 2}, "nodes=2"),
        ({"regularizer": "edd"}, "Did you mean 'ed'"),
        ({"regularizer": "embedding-mixup"}, "token ids"),
        ({"regularizer": "manifold-mixup"}, "draws a layer at every step"),
        ({"regularizer": "ict", "weight": 1.0}, "needs a teacher"),
        ({"regularizer": "consistency"}, "regularizer=consistency needs the weight of its penalty"),
        ({"regularizer": "consistency+regmixup", "weight": 1.0}, "or two of them, or one of them with ed"),
        ({"regularizer": "ed-copies", "weight": 1.0, "loss_on": "points"}, "regularizer=ed-copies works only with"),
        ({"regularizer": "fixmatch", "weight": 1.0}, "regularizer=fixmatch is for images; digits has features"),
        ({"regularizer": "ed", "teacher": 0.9}, "teacher=0.9 gives targets to examples that have no label"),
        ({"regularizer": "mixup", "unlabeled_batch": 8}, "mixup needs labels"),
        ({"regularizer": "ed", "loss_on": "points", "anchor": "self"}, "loss_on=points works only with"),
        ({"regularizer": "ed", "loss_on": "boxes"}, "is for images; digits has features"),
        ({"suspect": 5}, "suspect=5 needs data with known wrong labels"),
        ({"labeled": 59}, "labeled=59 takes 6 examples of each class; one has"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(tmp_path, settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        carry_out(tmp_path, small(**settings))
    assert not list(tmp_path.iterdir())
    # What only the examples themselves or a network of one's own can tell is left to the run.
    if settings.keys() & {"labeled"} or settings.get("model") == "torch.nn:Identity":
        check_training([small(**settings)], None)
        return
    with pytest.raises((ValueError, TypeError), match=message):
        check_training([small(), small(**settings)], None)


def test_divergence_is_an_error_that_names_the_step(tmp_path, monkeypatch):
    diverging = small(optimizer="sgd", lr=1e30, clip=None, warm_up=0.0)
    per_epoch = diverging.limit // diverging.batch
    with pytest.raises(ValueError, match=rf"the loss at step {per_epoch} is not finite. .* was 9\.33e\+29: try"):
        carry_out(tmp_path / "evaluated", diverging)
    # It is found before the epoch ends, and before a checkpoint is written.
    monkeypatch.setattr(loop, "_STEPS_BETWEEN_CHECKS", 2)
    with pytest.raises(ValueError, match="the loss at step 2 is not finite"):
        carry_out(tmp_path / "checked", diverging)
    assert not [*tmp_path.rglob("checkpoint-*")]


def test_runs_on_one_gpu_take_turns_unless_they_share_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="a-gpu"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, two = (loop.GpuLock(make_job(tmp_path, small(), "cuda:0", progress=True)) for _ in range(2))
    with one:
        with one:
            pass
        two._job.asked_to_stop = stop_after(2)
        with pytest.raises(StoppedError), two:
            pass
        assert capsys.readouterr().out.count("waiting for it") == 1
        with one.released(), two:
            pass
    monkeypatch.setenv("EFFDEG_SHARE_GPU", "1")
    assert loop.GpuLock(make_job(tmp_path, small(), "cuda:0"))._lock is None


# What a step does, against a training loop written out by hand.

REGULARIZERS = {
    "plain": {},
    "mixup": {"alpha": 0.5, "classes": 10},
    "sam": {"rho": 0.3},
    "asam": {"rho": 0.7},
    "jacobian": {"share": 0.5},
    "mixup+ed": {"alpha": 0.5, "classes": 10, "nodes": 5, "degree": 2, "pairs": 0.3, "anchor": "labels"},
}


def train_steps(settings, weight):
    torch.manual_seed(0)
    model = make_model("mlp", shape=(64,), classes=10)
    task = make_task(settings, DeviceExamples(DIGITS, settings, torch.device("cpu")), model)
    step = Step(task, size=20)
    for penalized in (False, True):
        step.capture(penalized=penalized)
    torch.manual_seed(1)
    for number in range(3):
        step(torch.arange(number, number + 20), rate=0.01 * (number + 1), weight=weight)
    return model.state_dict()


def train_by_hand(loss, optimizer, mix=lambda x, y: (x, y)):
    torch.manual_seed(0)
    model = make_model("mlp", shape=(64,), classes=10)
    optimizer = optimizer(model)
    torch.manual_seed(1)
    for number in range(3):
        x, y = mix(DIGITS.train_inputs[number : number + 20], DIGITS.train_labels[number : number + 20])
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (number + 1)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return value

        optimizer.step(closure)
    return model.state_dict()


@pytest.mark.parametrize("name", REGULARIZERS)
def test_every_regularizer_steps_as_by_hand(name):
    given = REGULARIZERS[name]
    unset = {"classes", "anchor"}  # of the data, and by default
    own = {{"share": "jacobian_share"}.get(key, key): value for key, value in given.items() if key not in unset}
    ours = train_steps(small(regularizer=name, **own), 2.0)
    method = baselines.method(name, **given)
    expected = train_by_hand(
        lambda model, x, y: method.loss(model, x, y, cross_entropy, weight=torch.tensor(2.0)),
        optimizer=lambda model: method.optimizer(model, torch.optim.AdamW, weight_decay=0.1),
        mix=method.batch,
    )
    assert_close(ours, expected, rtol=0, atol=0)


HALVES = small(regularizer="ed", components=3, batch=40, limit=120, decay_on="matrices", weight_decay=0.3)
MOVED = small(batch=10, decay_on="matrices", weight_decay=0.3, lr=5e-3)
# Images in files; unlike flips, the place of a crop depends on no process.
STREAMED = test_streaming.small(augment="resized-crop", regularizer="plain", optimizer="sgd", lr=0.1, weight_decay=0.0)


def train_as(rank, folder):
    def attempt(name, settings, **given):
        job = make_job(folder / name, settings, **given)
        try:
            train(settings, job)
        except StoppedError:
            pass
        finally:
            job.close()

    # A few steps in float64, in which every process draws the pairs of its own half.
    torch.manual_seed(0)
    model = make_model("mlp", shape=(64,), classes=10).double()
    examples = DeviceExamples(replace(DIGITS, train_inputs=DIGITS.train_inputs.double()), HALVES, torch.device("cpu"))
    step = Step(make_task(HALVES, examples, model), size=20, wrapper=DistributedDataParallel(model))
    step.capture(penalized=True)
    torch.manual_seed(10 + rank)
    for first in (0, 40, 80):
        step(torch.arange(first, first + 20) + 20 * rank, rate=0.01, weight=2.0)
    torch.save((model.state_dict(), float(step.penalties)), folder / f"halves.{rank}")

    loop._STEPS_BETWEEN_AGREEMENTS = 2
    attempt("streamed", STREAMED, data=folder / "data")
    # One run is stopped here and goes on with one process; the other was started with one.
    attempt("left", MOVED, asked_to_stop=stop_after(2))
    attempt("joined", MOVED)
    attempt("plain", small(epochs=3, weight_decay=0.0, clip=None, optimizer="sgd", lr=0.1))
    attempt("whole", small(regularizer="ed"))
    # Only the second process is asked to stop; both do, at the same step.
    for name in ("broken", "alone"):
        attempt(name, small(regularizer="ed"), asked_to_stop=stop_after(4) if rank else lambda: False)
    # Only the second process is asked to stop in a measure; both do before the next one, and do not train again.
    measured = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "score_test", lambda *_: measured.append(rank) or {})
        patch.setattr(evaluation, "measure_degree", lambda *_: pytest.fail("it does not stop"))
        attempt("measured", small(regularizer="ed"), asked_to_stop=lambda: 1 in measured)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Loop, "_train_step", lambda _: pytest.fail("it trains again"))
        attempt("measured", small(regularizer="ed"))
    # The second process would save after every step by its own clock, the first never: they agree.
    loop.SECONDS_AT_RISK = -1.0 if rank else 1e9
    attempt("broken", small(regularizer="ed"))


@pytest.mark.filterwarnings("ignore:data=imagenet has 10 classes")
def test_two_processes(tmp_path):
    """With DDP each of two processes takes half of every batch, and their gradients are averaged."""
    carry_out_stopped(tmp_path / "joined", MOVED, 13)
    test_streaming.write_folders(tmp_path / "data" / "imagenet", test_streaming.draw_images())
    run_in_processes(train_as, (tmp_path,), 2)
    alone = carry_out(tmp_path / "one", small(epochs=3, weight_decay=0.0, clip=None, optimizer="sgd", lr=0.1))
    weights = torch.load(next((tmp_path / "plain").rglob("weights.pt")))
    assert_close(alone.weights, weights, rtol=1e-4, atol=1e-5)
    streamed = carry_out(tmp_path / "alone_streamed", STREAMED, data=tmp_path / "data")
    weights = torch.load(next((tmp_path / "streamed").rglob("weights.pt")))
    assert_close(streamed.weights, weights, rtol=1e-4, atol=1e-5)
    (shared,) = RunFolder(tmp_path / "streamed").read()
    for key in ("test_accuracy", "train_accuracy", "test_loss", "effective_degree.value"):
        assert shared.value(key) == pytest.approx(streamed.run.value(key), rel=1e-3), key
    names = ("plain", "whole", "broken", "measured")
    (plain,), (whole,), (broken,), (measured,) = (RunFolder(tmp_path / name).read() for name in names)
    assert plain.environment["processes"] == 2
    for key in ("test_loss", "effective_degree.value"):
        assert broken.value(key) == measured.value(key) == whole.value(key)
    with pytest.warns(RuntimeWarning, match="another number of processes"):
        assert carry_out(tmp_path / "alone", small(regularizer="ed")).summary["epochs"] == 4
    check_steps_of_two_processes(tmp_path)
    # Plain training draws nothing at random within a step: it ends the same with any number of processes.
    with pytest.warns(RuntimeWarning, match="another number of processes"):
        left = carry_out(tmp_path / "left", MOVED).weights
    joined = torch.load(next((tmp_path / "joined").rglob("weights.pt")))
    expected = carry_out(tmp_path / "stayed", MOVED).weights
    for found in (left, joined):
        assert_close(found, expected, rtol=1e-3, atol=1e-5)


def check_steps_of_two_processes(folder):
    """Compare with one process on the joined batch, by hand: the loss is the mean over all, and so is the penalty."""
    torch.manual_seed(0)
    model = make_model("mlp", shape=(64,), classes=10).double()
    weights, others = ([each for each in model.parameters() if (each.dim() > 1) is matrix] for matrix in (True, False))
    groups = [{"params": weights, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer, penalty = torch.optim.AdamW(groups, lr=0.01), effdeg.Penalty(anchor="labels", components=3)
    states, total = [torch.Generator().manual_seed(10 + rank).get_state() for rank in range(2)], torch.zeros(2)
    for first in (0, 40, 80):
        optimizer.zero_grad()
        x, y = DIGITS.train_inputs[first : first + 40].double(), DIGITS.train_labels[first : first + 40]
        degrees = []
        for rank in range(2):
            torch.set_rng_state(states[rank])
            half = slice(20 * rank, 20 * rank + 20)
            degrees.append(penalty(model, x[half], y[half])[1])
            total[rank] += float(degrees[-1].detach())
            states[rank] = torch.get_rng_state()
        (cross_entropy(model(x), y) + 2.0 * torch.stack(degrees).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for rank in range(2):
        found, penalties = torch.load(folder / f"halves.{rank}")
        assert_close(found, model.state_dict(), rtol=1e-9, atol=1e-11)
        assert penalties == pytest.approx(float(total[rank]), rel=1e-5)


# Schedules and settings.


def make_schedules(*, weight=0.0, steps=100, **settings):
    return Schedules(small(lr=0.2, **settings), steps=steps, weight=weight)


def test_the_rate_warms_up_and_falls_along_a_cosine_to_zero_in_steps_or_not():
    rate = make_schedules(warm_up=0.1).rate
    assert [rate(step) for step in range(10)] == pytest.approx([0.02 * (step + 1) for step in range(10)])
    expected = [0.2, 0.1, 0.1 * (1 + math.cos(math.pi * 89 / 90))]
    assert [rate(step) for step in (10, 55, 99)] == pytest.approx(expected)
    rate = make_schedules(warm_up=0.0, decay="steps").rate
    assert [rate(step) for step in (0, 49, 50, 74, 75, 99)] == pytest.approx([0.2, 0.2, 0.02, 0.02, 0.002, 0.002])
    assert {make_schedules(warm_up=0.0, decay="constant").rate(step) for step in range(100)} == {0.2}
    for epochs, warm_up in product((4, 8), ({"warm_up_epochs": 2.5}, {"warm_up_steps": 25})):  # as long in longer runs
        rate = make_schedules(**warm_up, epochs=epochs, steps=10 * epochs).rate
        assert [rate(step) for step in (0, 11, 24, 25)] == pytest.approx([0.2 / 25, 0.2 * 12 / 25, 0.2, 0.2])
        assert rate(26) < 0.2
    with pytest.raises(ValueError, match="warm_up_steps=101 is more than the 100 steps of this run"):
        make_schedules(warm_up_steps=101)


def test_the_weight_rises_along_a_sine_and_stays():
    weight = make_schedules(weight=7.0, ramp=0.3).weight
    expected = [7 * math.sin(math.pi / 60), 7 * math.sin(math.pi / 4), 7, 7, 7]
    assert [weight(step) for step in (0, 14, 29, 30, 99)] == pytest.approx(expected)
    late = [make_schedules(weight=7.0, ramp=0.5, start=0.6).weight(step) for step in range(100)]
    assert set(late[:60]) == {0.0}
    assert late[60] == pytest.approx(7 * math.sin(math.pi / 2 / 20))
    assert late[79:] == pytest.approx([7.0] * 21)
    schedule = make_schedules(weight=7.0, ramp=0.0, every=4)
    assert [schedule.weight(step) for step in range(8)] == [28, 0, 0, 0, 28, 0, 0, 0]
    assert [schedule.strength(step) for step in range(4)] == [7.0] * 4


def test_equal_settings_are_one_run_whatever_they_are_given_as():
    one = Training(weight=7.0, regularizer="mixup+ed", proxies=("all",), pairs=1.0, seed=3, measure_also=("4/3",))
    other = Training(
        weight=7, regularizer=" Mixup + ED", proxies=["all"], pairs=1, seed=np.int64(3), measure_also=(" 4 /3",)
    )
    assert one == other
    assert one.hash == other.hash
    assert Training(warm_up_epochs=10) == Training(warm_up=0.0, warm_up_epochs=10.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proxies": ("sharpnes",)}, "'sharpnes' is not a known proxy"),
        ({"test_proxies": ("margin@10",)}, "test_proxies=margin@10 is not possible: Choose from: 'confidence'"),
        ({"measure_components": (0,)}, "measure_components=0 is out of range: paths of measure_nodes=200 have 1 to"),
        ({"lr": 0.0}, "lr=0 is out of range: it must be above 0"),
        ({"measure_nodes": 8}, "measure_nodes=8 cannot .* Use measure_nodes=41 or more, or a lower measure_degree"),
        ({"warm_up_epochs": 10, "epochs": 5}, "warm_up_epochs=10 is more than epochs=5"),
        ({"warm_up_epochs": 10, "warm_up": 0.1}, "warm_up=0.1 and warm_up_epochs=10 .* set warm_up_epochs=none"),
        ({"warm_up_steps": 10, "warm_up_epochs": 1}, "warm_up_epochs=1 and warm_up_steps=10 cannot be combined"),
        ({"regularizer": "ed", "batch": 1}, "batch=1 has only one example, and regularizer=ed joins two"),
        ({"regularizer": "ed", "unlabeled_batch": 1}, "unlabeled_batch=1 has only one example"),
        ({"regularizer": "ed", "batch": 2, "pairs": 0.2}, "pairs=0.2 of a batch of 2 rounds to no"),
        ({"measure_also": ("4",)}, "write nodes/degree, such as 4/3"),
        ({"measure_also": ("300/200",)}, "lower the degree, or raise measure_nodes"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Training(**settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 2}, "the 1 examples of a process has only one example"),
        ({"batch": 21}, "batch=21 cannot be shared evenly by 2 processes"),
    ],
)
def test_the_share_of_a_process_is_checked_before_data_are_read(tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(loop, "get_rank_and_size", lambda: (0, 2))
    monkeypatch.setattr("effdeg_lab.engine.classify.load", lambda *_: pytest.fail("data were read"))
    with pytest.raises(ValueError, match=message):
        carry_out(tmp_path, small(regularizer="ed", **changes))
    small(batch=1)  # only paths need two examples
