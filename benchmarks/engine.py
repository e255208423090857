"""How fast the lab's engine trains, on random images in the shape and number of CIFAR-10's."""

import json
import runpy
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch

from benchmarks.timing import Record, device, interleaved
from effdeg_lab.core.runs import Job, RunFolder
from effdeg_lab.data import Labeled
from effdeg_lab.engine import Task, Training, open_loop
from effdeg_lab.engine.classify import make_network, make_task
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.loop import Loop
from effdeg_lab.engine.step import Step

EXAMPLES, STEPS = 50_000, 50
AIMS = {"plain": 0.8, "ed": 1.4}
BATCH = 256


def engine_epochs() -> Record:
    """Time an epoch of plain training and of training with the penalty, evaluation left out."""
    runs = [lambda name=name: _train(name) for name in AIMS]
    times = dict(zip(AIMS, interleaved(*runs, repeats=5), strict=True))
    epoch = EXAMPLES // BATCH / STEPS
    rows = [
        {
            "method": name,
            "seconds_per_epoch": epoch * time,
            "aim": f"≤ {AIMS[name]} s",
            "milliseconds_per_step": 1e3 * time / STEPS,
            "ratio": time / times["plain"],
        }
        for name, time in times.items()
    ]
    return {
        "name": "seconds per epoch",
        "detail": "ViT-Tiny, CIFAR-10's size, batch 256; the lab's engine",
        "rows": rows,
    }


def engine_move() -> Record:
    """Time whole runs, plain and with the efficient penalty, with their peak memory: for comparing two engines.

    On a GPU ViT-Tiny with batches of 256, compiled and captured; on a CPU a small network, to try it.
    """
    record = {"name": "time and memory of a training step", "rows": [_time_run(name) for name in AIMS]}
    print(json.dumps(record))
    return record


def fast_example() -> Record:
    """Time a step of the example of fast training, against the lab's step with the penalty."""
    file = Path(__file__).parents[1] / "examples" / "fast_training.py"
    given, sys.argv = sys.argv, [str(file), "--epochs", "1"]
    try:
        example = runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.argv = given

    def train() -> None:
        for _ in range(STEPS):
            example["train"]()  # the graph works in the memory of what else is in there

    ours, lab = interleaved(train, lambda: _train("ed", "vit-tiny-mean"), repeats=5)
    detail = f"ViT-Tiny on 64 tokens, batch 256, ed; {1e3 * ours / STEPS:.2f} and {1e3 * lab / STEPS:.2f} ms"
    return {
        "name": "step of examples/fast_training.py / step of the lab",
        "ratio": ours / lab,
        "target": "≤ 1.05",
        "detail": detail,
    }


def _time_run(name: str) -> Record:
    on_gpu = device().type == "cuda"
    own: Record = {"epochs": 6} if on_gpu else {"epochs": 2, "model": "mlp", "batch": 32}
    settings = Training(regularizer=name, weight=7.0, evaluate_every=own["epochs"], **own)
    examples = _examples(settings, EXAMPLES if on_gpu else 640)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    task = make_task(settings, examples, make_network(settings, examples, device()).train())
    loop = run_loop(task, settings)
    return {
        "regularizer": name,
        "milliseconds_per_step": 1e3 * loop.seconds / task.steps,
        "peak_MiB": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        "test_loss": loop.last["test_loss"],
    }


def run_loop(task: Task, settings: Training) -> Loop:
    """Train as a run does, and keep nothing of it."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(settings, "benchmarks", settings.regularizer, settings, RunFolder(Path(folder)), device())
        with open_loop(task, job) as loop:
            loop.start()
            loop.train()
        job.close()
    return loop


def _train(name: str, model: str = "vit-tiny") -> None:
    indices = torch.arange(BATCH, device=device())
    for _ in range(STEPS):
        _step(name, model)(indices, rate=1e-3, weight=0.0 if name == "plain" else 7.0)


@cache
def _step(name: str, model: str) -> Step:
    settings = Training(model=model, regularizer=name, weight=7.0, batch=BATCH)
    examples = _examples(settings)
    step = Step(make_task(settings, examples, make_network(settings, examples, device()).train()), size=BATCH)
    step.capture(penalized=name != "plain")
    return step


def _examples(settings: Training, count: int = EXAMPLES) -> DeviceExamples:
    images, labels = _draw_images(count)
    data = Labeled(images, labels, images[:100], labels[:100], 10, (0.5,) * 3, (0.25,) * 3)
    return DeviceExamples(data, settings, device())


@cache
def _draw_images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return images, torch.randint(10, (count,), generator=generator)


CASES = [engine_epochs, engine_move, fast_example]
