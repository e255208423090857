"""Small runs on the embedded digits, ways to interrupt them, and tiny images of which one half is simple."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.modules.module import _global_forward_pre_hooks

from effdeg_lab.core.runs import Job, RunFolder, StoppedError
from effdeg_lab.data import Labeled
from effdeg_lab.engine import Training, loop, train
from effdeg_lab.engine.examples import DeviceExamples

SMALL = {
    "data": "digits", "model": "mlp", "limit": 60, "batch": 20, "epochs": 4, "evaluate_every": 1, "augment": "none",
    "precision": "float32", "compile": False, "measure_paths": 20, "measure_nodes": 20, "measure_degree": 8,
}  # fmt: skip
TIMES = {"seconds", "seconds_per_epoch", "milliseconds_per_step", "images_per_second", "waited"}
SIZE = (8, 6)


def small(**changes):
    return Training(**{**SMALL, **changes})


def make_job(folder, settings, device="cpu", **given):
    return Job(settings, "tests", "method", settings, RunFolder(Path(folder)), torch.device(device), **given)


def carry_out(folder, settings, run=train, **given):
    """Carry out a run as a sweep does, and return what it left, without its times."""
    job = make_job(folder, settings, **given)
    devices = [job.device] if job.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            run(settings, job)
        finally:
            job.close()
    summary, *metrics = (
        {key: value for key, value in entry.items() if key not in TIMES}
        for entry in (job.read().summary, *job.read().metrics)
    )
    kept = job.folder / "weights.pt"
    weights = torch.load(kept, weights_only=True) if kept.exists() else {}
    found = {"summary": summary, "metrics": metrics, "weights": weights}
    return SimpleNamespace(file=job.file, run=job.read(), environment=job.read().environment, **found)


@contextmanager
def break_off(step):
    """Let runs save after every step, and break off when they have trained this step, before anything of it is kept."""
    train_step = loop.Loop._train_step

    def breaks(self):
        train_step(self)
        if self.step == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SECONDS_AT_RISK", -1.0)
        patch.setattr(loop.Loop, "_train_step", breaks)
        with pytest.raises(KeyboardInterrupt):
            yield


def stop_after(steps):
    """Return a flag that asks to stop after this many steps, as SIGTERM does, and not in an evaluation before."""
    asked = iter(range(1, 10**9))
    return lambda: not _global_forward_pre_hooks and next(asked) >= steps


def carry_out_stopped(folder, settings, steps, run=train, **given):
    with pytest.raises(StoppedError):
        carry_out(folder, settings, run, asked_to_stop=stop_after(steps), **given)


@contextmanager
def stop_in(owner, name, *, call=1, look=1):
    """Yield a flag that asks to stop within a call of a function, the nth time it is looked at from then on."""
    function, calls, looks = getattr(owner, name), [], []

    def watch(*arguments, **given):
        calls.append(name)
        number, found = len(calls), function(*arguments, **given)
        assert number != call, f"{name} was not stopped"
        return found

    def asked():
        looks.extend(calls[call - 1 : call])
        return len(looks) >= look

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, watch)
        yield asked


def carry_out_interrupted(folder, settings, run, owner, name, *, killed, stopped):
    """Carry out a run that is killed at a call of a function, then asked to stop after another; count the calls."""
    function, calls = getattr(owner, name), []

    def count(*arguments):
        calls.append(arguments)
        if len(calls) == killed:
            raise KeyboardInterrupt
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, count)
        with pytest.raises(KeyboardInterrupt):
            carry_out(folder, settings, run)
        with pytest.raises(StoppedError):
            carry_out(folder, settings, run, asked_to_stop=lambda: len(calls) == stopped)
        return carry_out(folder, settings, run), len(calls)


def assert_same_end(one, two):
    assert one.weights.keys() == two.weights.keys()
    assert all(torch.equal(one.weights[name], two.weights[name]) for name in one.weights)
    assert (one.metrics, one.summary) == (two.metrics, two.summary)


def assert_close(one, two, **tolerances):
    for first, second in zip(one.values(), two.values(), strict=True):
        torch.testing.assert_close(first, second, **tolerances)


def make_pictures(count=400, tests=50):
    """Draw noise, with an upper half that is bright in every second image; in a further test no half is."""
    torch.manual_seed(0)
    images = torch.randint(0, 128, (count + tests, 3, *SIZE), dtype=torch.uint8)
    labels = torch.arange(count + tests) % 2
    images[labels == 1, :, : SIZE[0] // 2] += 127
    dark = images[count:].clone()
    dark[:, :, : SIZE[0] // 2] %= 127
    return Labeled(
        train_inputs=images[:count],
        train_labels=labels[:count],
        test_inputs=images[count:],
        test_labels=labels[count:],
        classes=2,
        mean=(0.4, 0.4, 0.4),
        std=(0.2, 0.2, 0.2),
        further_tests={"dark": dark},
    )


def make_picture_examples(device="cpu", **settings):
    return DeviceExamples(make_pictures(), small(limit=None, **settings), torch.device(device))


def run_mlp(weights, x):
    layers = list(weights.values())
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        x = x @ weight.T + bias
        x = x if weight is layers[-2] else x.clamp(min=0)
    return x
